"""What cgroup v1 and v2 have in common: where this process stands, and the life of one group."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from prefect_heteroflow.core.units import bytes_to_mb_ceil, bytes_to_mb_floor
from prefect_heteroflow.infra import launch
from prefect_heteroflow.infra.resource_trackers import TrackersLast

GROUP_PREFIX = "heteroflow."
_CHUNK_BYTES = 1 << 16
KILL_SECONDS = 10.0
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(launch.__file__).resolve()))
_joinable: set[Path] = set()


class MemoryLimitUnavailable(Exception):
    """This kind of limit cannot be used here; the text says why."""


def launcher_command(options: Sequence[str], command: Sequence[str]) -> list[str]:
    """The command that starts `command` through `launch.py`.

    It ends with the thread that starts it: take one that lives as long as this process.
    """
    return [*_LAUNCHER, "--parent", str(os.getpid()), *options, "--", *command]


def parse_cgroup_paths(self_cgroup: str) -> dict[str, str]:
    """Controller -> path, from `/proc/<pid>/cgroup`; the key of cgroup v2 is the empty string."""
    paths: dict[str, str] = {}
    for line in self_cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def parse_cgroup_mounts(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Controller -> (root of the mount in its hierarchy, mount point), from `mountinfo`.

    The key of cgroup v2 is the empty string. Of several mounts of one hierarchy the first counts.
    """
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 5 or not tail:
            continue
        where = (_unescape(fields[3]), _unescape(fields[4]))
        if tail[0] == "cgroup2":
            mounts.setdefault("", where)
        elif tail[0] == "cgroup" and len(tail) > 2:
            for option in tail[2].split(","):
                mounts.setdefault(option, where)
    return mounts


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def locate_cgroup(controller: str, self_cgroup: str, mountinfo: str) -> tuple[Path, Path] | None:
    """(top of what is mounted, directory of the process), or `None` if it is not mounted.

    In a container without a cgroup namespace the mount shows only a part of the hierarchy; a
    path outside of that part is taken as its top.
    """
    mount = parse_cgroup_mounts(mountinfo).get(controller)
    path = parse_cgroup_paths(self_cgroup).get(controller)
    if mount is None or path is None:
        return None
    root, point = mount
    try:
        inside = PurePosixPath(path).relative_to(root)
    except ValueError:
        inside = PurePosixPath()
    if ".." in inside.parts:
        inside = PurePosixPath()
    return Path(point), Path(point) / inside


def locate_own_cgroup(controller: str) -> tuple[Path, Path] | None:
    """`locate_cgroup` for this very process; `None` where there is no such `/proc`."""
    try:
        self_cgroup = Path("/proc/self/cgroup").read_text()
        mountinfo = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    return locate_cgroup(controller, self_cgroup, mountinfo)


def parse_counter(text: str, key: str) -> int | None:
    """The number after `key` in lines of `key number`; `None` if there is no such line."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None


def read_text(path: Path) -> str | None:
    """The content of a control file; `None` if it is missing or cannot be read."""
    # A task runner reads one for each body; `Path.read_text` takes five times as long.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            chunks.append(chunk)
        return b"".join(chunks).decode()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_number(path: Path) -> int | None:
    """The number in a control file; `None` if it is missing, unreadable or `max`."""
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else None


def group_name(name: str, owner_pid: int) -> str:
    """Directory name of the group of attempt `name`; distinct names give distinct directories."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100]
    if safe != name:
        safe = f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{GROUP_PREFIX}{owner_pid}.{safe}"


def process_exists(pid: int) -> bool:
    """Some process, of whatever user, has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def clear_left_groups(parent: Path, name: str) -> None:
    """Remove what dead workers left below `parent`.

    Groups of attempt `name` go with their processes, whoever made them; other groups only if
    they are empty and their worker is dead.
    """
    own = group_name(name, 0).split(".", 2)[2]
    for path in parent.glob(f"{GROUP_PREFIX}*"):
        _, owner, attempt = path.name.split(".", 2) if path.name.count(".") >= 2 else ("", "", "")
        if not owner.isdigit():
            continue
        if attempt == own:
            kill_group(path)
            remove_group(path)
        elif not process_exists(int(owner)) and not read_pids(path):
            remove_group(path, seconds=0)


def make_group(path: Path) -> None:
    """Create the group's directory; the kernel fills it with control files."""
    path.mkdir()


def read_pids(path: Path) -> list[int]:
    """Processes in the group and in groups below it; empty if the group is gone."""
    pids: list[int] = []
    for directory, _, _ in os.walk(path):
        text = read_text(Path(directory, "cgroup.procs")) or ""
        pids += [int(word) for word in text.split() if word != "0"]
    return pids


def kill_group(path: Path, *, seconds: float = KILL_SECONDS) -> bool:
    """SIGKILL until the group is empty, trackers last; False if it is not after `seconds`."""
    deadline = time.monotonic() + seconds
    order = TrackersLast()
    while pids := read_pids(path):
        due = order.due(pids)
        # `cgroup.kill` (v2, Linux 5.14) takes forking processes in one go; the loop is for others.
        with contextlib.suppress(OSError):
            if due == pids and (path / "cgroup.kill").exists():
                (path / "cgroup.kill").write_text("1")
        for pid in due:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def remove_group(path: Path, *, seconds: float = 2.0) -> bool:
    """Remove the group and the groups below it; False if it is still there after `seconds`.

    A group stays busy for some milliseconds after its last process was killed.
    """
    deadline = time.monotonic() + seconds
    while path.exists():
        for directory, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if time.monotonic() >= deadline:
            return not path.exists()
        if path.exists():
            time.sleep(0.01)
    return True


def check_joinable(parent: Path) -> None:
    """Make sure, once per parent, that a child process of ours can join a group there.

    Raises:
        MemoryLimitUnavailable: It cannot; the text carries what the launcher said.
    """
    if parent in _joinable:
        return
    path = parent / group_name(f"probe-{uuid.uuid4().hex[:8]}", os.getpid())
    try:
        make_group(path)
        command = launcher_command(["--cgroup", str(path)], [sys.executable, "-I", "-S", "-c", ""])
        probe = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemoryLimitUnavailable(f"no group can be used in {parent}: {error}") from error
    finally:
        remove_group(path)
    if probe.returncode != 0:
        said = probe.stderr.strip().splitlines()[-1:] or [f"exit code {probe.returncode}"]
        raise MemoryLimitUnavailable(said[0])
    _joinable.add(parent)


class CgroupLimit:
    """One cgroup as a memory limit; what differs between v1 and v2 is in the subclasses."""

    kind = "cgroup"

    def __init__(self, path: Path, memory_mb: int, *, notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self._memory_mb = memory_mb
        self._notes = notes
        self._closed = False
        self._last: tuple[int | None, bool | None, int | None] = (None, None, None)

    @property
    def memory_mb(self) -> int:
        """The limit, MiB."""
        return self._memory_mb

    @property
    def notes(self) -> tuple[str, ...]:
        """Why no better kind is in force, and what this one cannot do here."""
        return self._notes

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command that joins the group and then becomes `command`."""
        return launcher_command(["--cgroup", str(self.path)], command)

    def enter(self, pid: int) -> None:
        """Move a process into the group; its memory so far may stay charged elsewhere (v1, v2)."""
        if pid in read_pids(self.path):
            return
        with contextlib.suppress(ProcessLookupError):
            (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """The living processes in the group."""
        return read_pids(self.path)

    def oom_kill_count(self) -> int | None:
        """Processes of the group that the kernel killed for memory."""
        return self._counters()[0]

    def limit_reached(self) -> bool | None:
        """Memory use came up to the limit at least once."""
        return self._counters()[1]

    def peak_memory_mb(self) -> int | None:
        """Highest memory use, MiB, page cache included."""
        peak = self._counters()[2]
        return None if peak is None else bytes_to_mb_ceil(peak)

    def outer_limit_mb(self) -> int | None:
        """The least memory limit of the groups above it, MiB."""
        limit = self._read_outer_limit()
        return None if limit is None else bytes_to_mb_floor(limit)

    def kill_all(self) -> bool:
        """SIGKILL every process in the group; False if some live on."""
        return kill_group(self.path)

    def close(self) -> None:
        """Kill what is left and remove the group; the counters stay readable."""
        if self._closed:
            return
        kill_group(self.path)
        self._last = self._read_counters()
        self._closed = True
        remove_group(self.path)

    def _counters(self) -> tuple[int | None, bool | None, int | None]:
        return self._last if self._closed else self._read_counters()

    def _read_counters(self) -> tuple[int | None, bool | None, int | None]:
        """(processes killed for memory, limit reached, peak in bytes)."""
        raise NotImplementedError

    def _read_outer_limit(self) -> int | None:
        """The least limit of the groups above it, bytes."""
        raise NotImplementedError
