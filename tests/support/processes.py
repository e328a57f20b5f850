"""Processes and mounts that a test service may leave behind, found in `/proc`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support import wait_until


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process, or `None` when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in brackets and may itself contain spaces and brackets.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which nobody may ever reap, does not."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def processes() -> list[int]:
    """Every process id of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def mentioning(text: str) -> list[int]:
    """Live processes, this one apart, whose command line contains `text`."""
    found = []
    for pid in processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text.encode() in command and pid != os.getpid() and alive(pid):
            found.append(pid)
    return found


def children(pids: Iterable[int]) -> list[int]:
    """Direct children of any of `pids`."""
    parents = set(pids)
    return [pid for pid in processes() if (stat := _stat(pid)) and stat[1] in parents]


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents first."""
    found: list[int] = []
    layer = [pid]
    while layer := children(layer):
        found += layer
    return found


def kill_all(pids: Iterable[int], *, timeout_seconds: float = 10.0) -> None:
    """SIGKILL, and wait until each is gone (or a zombie)."""
    targets = list(pids)
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(alive(pid) for pid in targets),
        what=f"end of killed processes {targets}",
        timeout_seconds=timeout_seconds,
    )


def unmount_below(folder: Path) -> None:
    """Unmount everything that is mounted on `folder` or below it, deepest first."""
    points = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        # Spaces in a mount point are written as \040.
        point = line.split()[1].encode().decode("unicode_escape")
        if point == str(folder) or point.startswith(f"{folder}/"):
            points.append(point)
    for point in sorted(points, key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
