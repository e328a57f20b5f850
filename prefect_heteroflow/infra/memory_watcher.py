"""A memory limit without cgroups: samples a process tree and kills it above the limit.

Needs no rights beyond those of the watched processes' user. It acts after the fact: between two
samples a process can grow past the limit by what it allocates in that time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

from prefect_heteroflow.core.units import bytes_to_mb_ceil, mb_to_bytes
from prefect_heteroflow.infra.cgroups import KILL_SECONDS, launcher_command
from prefect_heteroflow.infra.resource_trackers import TrackersLast

SAMPLE_SECONDS = 0.1
SEARCH_SECONDS = 1.0
"""Between two searches of all processes for the mark: only those find a daemon by double fork."""
MARK = "HETEROFLOW_PROCESS_TREE"
_ON_LINUX = sys.platform.startswith("linux")


class ResidentMemoryWatcher:
    """Limits the resident memory (with swap) of a process and its descendants.

    Descendants are found by parentage, and those that left it (daemons) by a mark in their
    environment, which `wrap` sets. What counts is the sum of resident memory and swap; above the
    limit the proportional set size decides, which counts pages shared between the processes once.

    Args:
        name: Names the attempt; also names the thread.
        memory_mb: The limit, MiB.
        notes: Why no cgroup is in force.
        sample_seconds: Time between two samples.
    """

    kind = "resident memory watcher"

    def __init__(
        self,
        name: str,
        memory_mb: int,
        *,
        notes: tuple[str, ...] = (),
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._name = name
        self._memory_mb = memory_mb
        self._notes = notes
        self._sample_seconds = sample_seconds
        self._mark = uuid.uuid4().hex
        self._known: dict[int, float] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._peak = 0
        self._kills = 0

    @property
    def memory_mb(self) -> int:
        """The limit, MiB."""
        return self._memory_mb

    @property
    def notes(self) -> tuple[str, ...]:
        """Why no cgroup is in force."""
        return self._notes

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command with the mark in its environment."""
        return launcher_command(["--env", f"{MARK}={self._mark}"], command)

    def enter(self, pid: int) -> None:
        """Watch the process and its descendants from now on."""
        start = _start_of(pid)
        if start is not None:
            with self._lock:
                self._known[pid] = start
        if self._thread is None and not self._done.is_set():
            self._thread = threading.Thread(
                target=self._watch, name=f"heteroflow-memory-{self._name}", daemon=True
            )
            self._thread.start()

    def pids(self) -> list[int]:
        """The living processes of the tree."""
        return self._find(search=True)

    def oom_kill_count(self) -> int:
        """Processes that this watcher killed, all of the tree at once; 0 for none."""
        return self._kills

    def limit_reached(self) -> bool:
        """The watcher saw more than the limit, and killed the tree."""
        return self._kills > 0

    def peak_memory_mb(self) -> int | None:
        """Highest memory sampled, MiB; `None` if it ended before the first sample.

        Pages shared between processes count once for each of them, unless the sum was above the
        limit.
        """
        return bytes_to_mb_ceil(self._peak) if self._peak else None

    def outer_limit_mb(self) -> None:
        """Nothing around it kills in its name."""

    def kill_all(self) -> bool:
        """SIGKILL every process of the tree; False if some live on."""
        return self._kill()

    def close(self) -> None:
        """Kill what is left and stop watching."""
        self._done.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(KILL_SECONDS)
        self._kill()

    def _watch(self) -> None:
        next_search = 0.0
        while not self._done.is_set():
            started = time.monotonic()
            search = started >= next_search
            if search:
                next_search = started + SEARCH_SECONDS
            self._sample(self._find(search=search))
            # Proportional sizes are slow to read for large processes: sleep at least as long as
            # it took nine times over, so that the watcher stays below a tenth of a core.
            took = time.monotonic() - started
            self._done.wait(max(self._sample_seconds - took, 9 * took))

    def _sample(self, pids: list[int]) -> None:
        used = sum(map(_resident_bytes, pids))
        limit = mb_to_bytes(self._memory_mb)
        if used > limit and len(pids) > 1:
            used = sum(map(_proportional_bytes, pids))
        self._peak = max(self._peak, used)
        if used > limit:
            self._kill(for_memory=True)

    def _find(self, *, search: bool) -> list[int]:
        """The living processes of the tree, as far as parentage or the mark tell.

        Args:
            search: Also look at every process of the machine for the mark, and at every thread of
                the known ones for children.
        """
        with self._lock:
            self._known = {
                pid: start for pid, start in self._known.items() if _start_of(pid) == start
            }
            waiting = list(self._known)
            if search:
                waiting += [pid for pid in _marked_pids(self._mark) if pid not in self._known]
            while waiting:
                pid = waiting.pop()
                if pid not in self._known:
                    start = _start_of(pid)
                    if start is None:
                        continue
                    self._known[pid] = start
                waiting += [
                    child
                    for child in _children(pid, every_thread=search)
                    if child not in self._known
                ]
            return list(self._known)

    def _kill(self, *, for_memory: bool = False) -> bool:
        """SIGKILL until none is left, trackers last; False if some live on."""
        killed: set[int] = set()
        order = TrackersLast()
        deadline = time.monotonic() + KILL_SECONDS
        while pids := self._find(search=True):
            for pid in order.due(pids):
                if for_memory and pid not in killed:
                    # Counted first: whoever waits for the process reads the count at its end.
                    killed.add(pid)
                    self._kills += 1
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def _start_of(pid: int) -> float | None:
    """When the process started, which tells a reused id apart; `None` if it is gone or a zombie."""
    try:
        if _ON_LINUX:
            # The command in brackets may itself hold spaces and brackets.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return float(fields[19]) if fields[0] not in "ZX" else None
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (OSError, IndexError, psutil.Error):
        return None


def _children(pid: int, *, every_thread: bool) -> list[int]:
    # These files list the children of one thread without a look at every process of the machine,
    # which is what psutil does. Few programs fork from other threads than the first, and some
    # have hundreds of threads.
    pattern = "*" if every_thread else str(pid)
    try:
        files = list(Path(f"/proc/{pid}/task").glob(f"{pattern}/children")) if _ON_LINUX else []
        if files:
            return [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return []  # it ended meanwhile
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _marked_pids(mark: str) -> list[int]:
    found: list[int] = []
    if _ON_LINUX:
        needle = f"{MARK}={mark}".encode()
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if needle in Path(entry.path, "environ").read_bytes():
                        found.append(int(entry.name))
        return found
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
    return found


def parse_kb(text: str, *keys: str) -> int | None:
    """Sum in bytes of the `Key:  N kB` lines of a `/proc` file; `None` if none of them is there."""
    found = re.findall(rf"^(?:{'|'.join(keys)}):\s+(\d+) kB$", text, re.MULTILINE)
    return sum(map(int, found)) * 1024 if found else None


def _resident_bytes(pid: int) -> int:
    try:
        if _ON_LINUX:
            return parse_kb(Path(f"/proc/{pid}/status").read_text(), "VmRSS", "VmSwap") or 0
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return 0


def _proportional_bytes(pid: int) -> int:
    try:
        if _ON_LINUX:
            size = parse_kb(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss", "SwapPss")
            if size is not None:
                return size
    except OSError:
        pass  # ended, another user's, or a kernel before 4.14: the larger figure it is
    return _resident_bytes(pid)
