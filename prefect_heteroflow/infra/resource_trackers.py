"""Processes that clean up after others, and so are the last ones to be killed.

`multiprocessing` and `loky` start one beside a program that uses shared memory or semaphores. It
waits until every process that knows its pipe is gone, removes what they left in `/dev/shm`, and
ends. Killed with them, it leaves that memory taken until the machine restarts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

GRACE_SECONDS = 5.0
"""For the end of a tracker by itself; it needs milliseconds."""
START_SECONDS = 1.0
"""For a new process to have a command line, by which a tracker is known."""
_PROGRAM = b"resource_tracker import main"


def is_resource_tracker(pid: int) -> bool | None:
    """Whether the process runs the resource tracker of `multiprocessing` or `loky`.

    Both are started as `python -c "from <package>.resource_tracker import main; main(...)"`.
    `None` for one that has no command line: it has just been started, or has ended.
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if words == [b""]:
        return None
    programs = (after for word, after in itertools.pairwise(words) if word == b"-c")
    return any(
        program.startswith(b"from ") and _PROGRAM in program.partition(b";")[0]
        for program in programs
    )


class TrackersLast:
    """Says which of the processes that are left have to be killed now.

    Args:
        grace_seconds: How long a tracker is left alone from when it was first seen here.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._until: dict[int, float] = {}
        """When the time of a tracker is over."""
        self._unknown_until: dict[int, float] = {}

    def due(self, pids: Sequence[int]) -> list[int]:
        """Those that are no trackers, and trackers whose time is over."""
        now = time.monotonic()
        known, unknown = self._until, self._unknown_until
        self._until, self._unknown_until = {}, {}
        for pid in pids:
            is_tracker = True if pid in known else is_resource_tracker(pid)
            if is_tracker:
                self._until[pid] = known.get(pid, now + self._grace_seconds)
            elif is_tracker is None:
                self._unknown_until[pid] = unknown.get(pid, now + START_SECONDS)
        spared = {**self._until, **self._unknown_until}
        return [pid for pid in pids if spared.get(pid, now) <= now]

    def seconds_left(self) -> float | None:
        """Until `due` has to be asked again; `None` if nothing was spared."""
        times = [*self._until.values(), *self._unknown_until.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None
