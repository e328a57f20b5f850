"""The one line of a work pool's description that says what its nodes have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prefect_heteroflow.core.resources import Node, Pool

SHOWN_NODES = 5
_OURS = re.compile(r"heteroflow: .+, (?:no live node|\d+ live nodes? \(.*\))\r?")


def pool_line(pool: Pool, nodes: Iterable[Node]) -> str | None:
    """The line of a pool, or `None` when nothing is declared and no live node is known.

    What is declared comes before what live nodes have; unequal nodes give a range.

    Args:
        pool: The pool, with what is declared of it.
        nodes: All known nodes; those of other pools are left out here.
    """
    live = sorted(
        (node for node in nodes if node.pool == pool.name and node.live), key=lambda it: it.name
    )
    declared = (pool.memory_mb, pool.gpu_memory_mb, pool.gpu_count)
    if not live and declared == (None, None, None):
        return None
    parts = [f"heteroflow: {_gpus_text(pool, live)}"]
    memory = [pool.memory_mb] if pool.memory_mb is not None else [node.memory_mb for node in live]
    if memory:
        parts.append(f"{_range(memory)} MB memory")
    parts.append(_nodes_text([node.name for node in live]))
    return ", ".join(parts)


def _gpus_text(pool: Pool, live: list[Node]) -> str:
    sizes = [gpu.memory_mb for node in live for gpu in node.gpus]
    counts = [len(node.gpus) for node in live]
    if pool.gpu_memory_mb is not None:
        sizes = [pool.gpu_memory_mb]
        counts = [pool.gpu_count if pool.gpu_count is not None else 1]
    elif pool.gpu_count is not None:
        counts = [pool.gpu_count]
    if not counts and not sizes:
        return "GPUs unknown"
    if not any(counts):
        return "no GPU"
    times = "" if set(counts) == {1} else f"{_range(counts)} x "
    return f"{times}{_range(sizes)} MB GPU memory" if sizes else f"{_range(counts)} GPUs"


def _range(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _nodes_text(names: list[str]) -> str:
    if not names:
        return "no live node"
    shown = [" ".join(name.split()) for name in names[:SHOWN_NODES]]
    more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
    count = "1 live node" if len(names) == 1 else f"{len(names)} live nodes"
    return f"{count} ({', '.join(shown)}{more})"


def with_tag_line(description: str | None, line: str | None) -> str:
    """The description with our line as given, and every other character as it was.

    A line of ours that is there is replaced in its place; otherwise the new one is put last. A
    line is ours when it has the form that `pool_line` gives: a user's own line that starts with
    `heteroflow:` is left alone.

    Args:
        description: The pool's description now.
        line: What `pool_line` gave; `None` takes our line away.
    """
    lines = (description or "").split("\n") if description else []
    kept: list[str] = []
    placed = line is None
    for existing in lines:
        if not _OURS.fullmatch(existing):
            kept.append(existing)
        elif not placed and line is not None:
            kept.append(line + ("\r" if existing.endswith("\r") else ""))
            placed = True
    if not placed and line is not None:
        kept.append(line)
    return "\n".join(kept)
