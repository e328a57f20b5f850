"""A memory limit without cgroups: samples a process tree and kills it above the limit.

Needs no rights beyond those of the watched processes' user. It acts after the fact: between two
samples a process can grow past the limit by what it allocates in that time.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from prefect_heteroflow.core.units import bytes_to_mb_ceil, mb_to_bytes
from prefect_heteroflow.infra.cgroups import KILL_SECONDS, launcher_command

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
        self._known: dict[int, psutil.Process] = {}
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
        with contextlib.suppress(psutil.NoSuchProcess), self._lock:
            self._known[pid] = psutil.Process(pid)
        if self._thread is None and not self._done.is_set():
            self._thread = threading.Thread(
                target=self._watch, name=f"heteroflow-memory-{self._name}", daemon=True
            )
            self._thread.start()

    def pids(self) -> list[int]:
        """The living processes of the tree."""
        return [process.pid for process in self._find(search=True)]

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

    def _sample(self, processes: Iterable[psutil.Process]) -> None:
        processes = list(processes)
        used = sum(map(_resident_bytes, processes))
        limit = mb_to_bytes(self._memory_mb)
        if used > limit and len(processes) > 1:
            used = sum(map(_proportional_bytes, processes))
        self._peak = max(self._peak, used)
        if used > limit:
            self._kill(for_memory=True)

    def _find(self, *, search: bool) -> list[psutil.Process]:
        """The living processes of the tree, as far as parentage or the mark tell."""
        with self._lock:
            for pid, process in list(self._known.items()):
                if not _alive(process):
                    del self._known[pid]
            if search:
                for process in _marked_processes(self._mark):
                    self._known.setdefault(process.pid, process)
            waiting = list(self._known.values())
            while waiting:
                for child in _children(waiting.pop()):
                    if child.pid not in self._known:
                        self._known[child.pid] = child
                        waiting.append(child)
            return [process for process in self._known.values() if _alive(process)]

    def _kill(self, *, for_memory: bool = False) -> bool:
        """SIGKILL until none is left; False if some live on."""
        killed: set[int] = set()
        deadline = time.monotonic() + KILL_SECONDS
        while processes := self._find(search=True):
            for process in processes:
                if for_memory and process.pid not in killed:
                    # Counted first: whoever waits for the process reads the count at its end.
                    killed.add(process.pid)
                    self._kills += 1
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    # This file lists the children of each thread without a look at every process of the machine,
    # which is what psutil does.
    children: list[psutil.Process] = []
    try:
        files = list(Path(f"/proc/{process.pid}/task").glob("*/children")) if _ON_LINUX else []
        pids = [int(pid) for file in files for pid in file.read_text().split()]
    except OSError:
        return []  # it ended meanwhile
    if not files:
        with contextlib.suppress(psutil.Error):
            return process.children()
        return []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            children.append(psutil.Process(pid))
    return children


def _marked_processes(mark: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    if _ON_LINUX:
        needle = f"{MARK}={mark}".encode()
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError, psutil.Error):
                    if needle in Path(entry.path, "environ").read_bytes():
                        found.append(psutil.Process(int(entry.name)))
        return found
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def parse_kb(text: str, *keys: str) -> int | None:
    """Sum in bytes of the `Key:  N kB` lines of a `/proc` file; `None` if none of them is there."""
    found = re.findall(rf"^(?:{'|'.join(keys)}):\s+(\d+) kB$", text, re.MULTILINE)
    return sum(map(int, found)) * 1024 if found else None


def _resident_bytes(process: psutil.Process) -> int:
    try:
        if _ON_LINUX:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return parse_kb(status, "VmRSS", "VmSwap") or 0
        return int(process.memory_info().rss)
    except (OSError, psutil.Error):
        return 0


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        if _ON_LINUX:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            size = parse_kb(rollup, "Pss", "SwapPss")
            if size is not None:
                return size
    except OSError:
        pass  # ended, another user's, or a kernel before 4.14: the larger figure it is
    return _resident_bytes(process)
