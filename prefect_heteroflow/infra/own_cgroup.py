"""What the kernel counts for the cgroup that this very process lives in.

Standard library and `core` only: this module is copied into containers.
"""

from __future__ import annotations

from pathlib import Path

from prefect_heteroflow.core.units import bytes_to_mb_ceil
from prefect_heteroflow.infra.cgroups import (
    locate_own_cgroup,
    parse_counter,
    read_number,
    read_text,
)


def _own_folder() -> tuple[Path, bool] | None:
    """Folder of this process's memory cgroup, and whether it is cgroup v2."""
    for controller, is_v2 in (("memory", False), ("", True)):
        located = locate_own_cgroup(controller)
        if located is not None:
            return located[1], is_v2
    return None


def read_own_oom_kill_count() -> int | None:
    """Processes of this cgroup that the kernel killed for memory so far."""
    found = _own_folder()
    if found is None:
        return None
    folder, is_v2 = found
    text = read_text(folder / ("memory.events" if is_v2 else "memory.oom_control"))
    return None if text is None else parse_counter(text, "oom_kill")


def read_own_peak_memory_mb() -> int | None:
    """Highest memory use of this cgroup so far, MiB."""
    found = _own_folder()
    if found is None:
        return None
    folder, is_v2 = found
    peak = read_number(folder / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes"))
    return None if peak is None else bytes_to_mb_ceil(peak)
