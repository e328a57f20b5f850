"""What the kernel counts for the cgroup that this very process lives in.

Standard library and `core` only: this module is copied into containers.
"""

from __future__ import annotations

from pathlib import Path

from prefect_heteroflow.core.units import bytes_to_mb_ceil

_ROOT = Path("/sys/fs/cgroup")


def _own_folder() -> tuple[Path, bool] | None:
    """Folder of this process's memory cgroup, and whether it is cgroup v2."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base = _ROOT / "memory"
            own = base / path.lstrip("/")
            # Inside a container the path is the host's, while the mount shows the own group.
            return (own if own.is_dir() else base), False
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            own = _ROOT / path.lstrip("/")
            return (own if own.is_dir() else _ROOT), True
    return None


def _keyed_number(path: Path, key: str) -> int | None:
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return None
    return None


def read_own_oom_kill_count() -> int | None:
    """Processes of this cgroup that the kernel killed for memory so far."""
    found = _own_folder()
    if found is None:
        return None
    folder, is_v2 = found
    return _keyed_number(folder / ("memory.events" if is_v2 else "memory.oom_control"), "oom_kill")


def read_own_peak_memory_mb() -> int | None:
    """Highest memory use of this cgroup so far, MiB."""
    found = _own_folder()
    if found is None:
        return None
    folder, is_v2 = found
    try:
        text = (folder / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes")).read_text()
        return bytes_to_mb_ceil(int(text))
    except (OSError, ValueError):
        return None
