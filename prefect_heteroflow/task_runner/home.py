"""What the flow's own process may use: the place of attempts that need no run of their own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.context import FlowRunContext

from prefect_heteroflow import environment
from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.core.units import bytes_to_mb_ceil, bytes_to_mb_floor
from prefect_heteroflow.current import current_attempt
from prefect_heteroflow.infra.cgroups import read_text
from prefect_heteroflow.infra.memory_watcher import parse_kb
from prefect_heteroflow.infra.node_probe import (
    parse_declared_gpus,
    probe_node,
    read_cgroup_limit,
)

if TYPE_CHECKING:
    from prefect_heteroflow.settings import HeteroflowSettings

LOCAL_POOL = "local"
"""Pool of this machine when no work pool started the flow."""

TEMPLATE_MB = 75
"""Memory of the template process, MiB: a Python that has imported Prefect."""

_probed: dict[tuple[Any, ...], Node] = {}


def read_home(settings: HeteroflowSettings, pool: str) -> Node:
    """What this process may use of its machine, probed once per process.

    In an attempt it has the name of the worker's node, whatever the settings of this process say.
    Its memory is the least of what is declared for the node, or else that of the machine, of the
    attempt's `memory_mb`, and of the limit of this process's cgroup: a worker's settings reach its
    flows, and tell what the node has, not what one flow run may use of it.

    Raises:
        ValueError: A setting of the node cannot be used.
    """
    name = os.environ.get(environment.NODE) or settings.node_name
    key = (name, pool, settings.node_memory_mb, settings.node_gpus)
    if key not in _probed:
        gpus = settings.node_gpus
        _probed[key] = probe_node(
            name,
            pool,
            declared_memory_mb=settings.node_memory_mb,
            declared_gpus=None if gpus is None else parse_declared_gpus(gpus),
            docker=False,
        )
    node = _probed[key]
    bounds_mb = [node.memory_mb]
    attempt = current_attempt()
    if attempt is not None and attempt.memory_mb:
        bounds_mb.append(attempt.memory_mb)
    limit = read_cgroup_limit()
    if limit is not None:
        bounds_mb.append(bytes_to_mb_floor(limit))
    return replace(node, memory_mb=min(bounds_mb))


def flow_share_mb() -> int:
    """What the flow run's own processes use of its memory, MiB; 0 where nothing bounds a flow run.

    The template counts too: it starts only now, so it is given what its imports are known to take.
    """
    attempt = current_attempt()
    if attempt is None or not attempt.memory_mb:
        return 0
    status = read_text(Path("/proc/self/status")) or ""
    # Without what is mapped from files: the kernel takes that back where memory is short.
    used = parse_kb(status, "RssAnon", "RssShmem") or 0
    return bytes_to_mb_ceil(used) + TEMPLATE_MB


def read_given_delays() -> dict[str, float]:
    """The delays that job variables of the flow run gave, by name; none outside of a worker."""
    path = os.environ.get(environment.CONTEXT_FILE)
    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
        return dict(environment.AttemptContext.from_json(text).given_delays)
    except (OSError, ValueError, TypeError, KeyError):  # gone, or written by another version
        return {}


def own_pool() -> str:
    """The work pool of the flow run, or `LOCAL_POOL`."""
    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    return (flow_run.work_pool_name if flow_run is not None else None) or LOCAL_POOL
