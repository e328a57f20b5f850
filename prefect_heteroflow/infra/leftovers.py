"""Processes that an ended attempt left behind, found by its variables in their environment."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prefect_heteroflow.infra.resource_trackers import TrackersLast


def end_leftovers(marks: Mapping[str, str], *, grace_seconds: float = 5.0) -> int:
    """End every process whose environment has all of these variables with these values.

    SIGTERM first, SIGKILL after `grace_seconds`, and of trackers another second later. It blocks
    until they are gone, or for a second after SIGKILL. This process and those above it are left
    alone.

    Args:
        marks: The attempt's variables, as `HETEROFLOW_TASK_ID` and `HETEROFLOW_ATTEMPT`.
        grace_seconds: Time to end by themselves.

    Returns:
        How many there were.

    Raises:
        ValueError: No marks: every process would have all of them.
    """
    if not marks:
        raise ValueError("marks are empty: name the variables of the attempt")
    needles = [f"{name}={value}".encode() for name, value in marks.items()]
    spared = _own_line()
    found: dict[int, int] = {}
    try:
        for pid in _pids():
            if pid not in spared and (descriptor := _open_if_marked(pid, needles)) is not None:
                found[pid] = descriptor
        _signal_all(found, signal.SIGTERM)
        if not _all_gone(found, grace_seconds):
            order = TrackersLast(grace_seconds=1.0)  # beyond that they hold up the next attempt
            _signal_all({pid: found[pid] for pid in order.due(list(found))}, signal.SIGKILL)
            if not _all_gone(found, 1.0):
                _signal_all(found, signal.SIGKILL)
                _all_gone(found, 1.0)
    finally:
        for descriptor in found.values():
            os.close(descriptor)
    return len(found)


def _open_if_marked(pid: int, needles: list[bytes]) -> int | None:
    if not _is_marked(pid, needles):
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # Read again: the number may have gone to another process before it was opened.
    if _is_marked(pid, needles):
        return descriptor
    os.close(descriptor)
    return None


def _is_marked(pid: int, needles: list[bytes]) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(needle in variables for needle in needles)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _own_line() -> set[int]:
    line, pid = set(), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pid = int(fields[1])
        except (OSError, ValueError, IndexError):
            break
    return line


def _signal_all(found: Mapping[int, int], number: signal.Signals) -> None:
    for descriptor in found.values():
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)


def _all_gone(found: Mapping[int, int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    left = set(found.values())
    poller = select.poll()
    for descriptor in left:
        poller.register(descriptor, select.POLLIN)  # readable: the process has ended
    while left and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(remaining * 1000):
            poller.unregister(descriptor)
            left.discard(descriptor)
    return not left
