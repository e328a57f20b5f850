"""A memory limit by cgroup v1, below the group of this very process. Needs root in practice."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_heteroflow.core.units import mb_to_bytes
from prefect_heteroflow.infra import cgroups
from prefect_heteroflow.infra.cgroups import (
    CgroupLimit,
    MemoryLimitUnavailable,
    parse_counter,
    read_number,
    read_text,
)
from prefect_heteroflow.infra.node_probe import read_v1_limit


class CgroupV1Limit(CgroupLimit):
    """A group of the v1 memory controller."""

    kind = "cgroup v1"

    def _read_counters(self) -> tuple[int | None, bool | None, int | None]:
        control = read_text(self.path / "memory.oom_control") or ""
        # The line `oom_kill N` came with Linux 4.13; before it nobody counts kills.
        kills = parse_counter(control, "oom_kill")
        peak = read_number(self.path / "memory.max_usage_in_bytes")
        # Not `memory.failcnt`: it stayed 0 through OOM kills on Linux 6.18.
        reached = None if peak is None else peak >= mb_to_bytes(self.memory_mb)
        return kills, reached, peak

    def _read_outer_limit(self) -> int | None:
        return read_v1_limit(self.path.parent)


def create_v1_limit(
    name: str, memory_mb: int, *, notes: tuple[str, ...] = (), parent: Path | None = None
) -> CgroupV1Limit:
    """A new v1 group with its limit set and swap barred.

    Args:
        name: Names the attempt; see `create_memory_limit`.
        memory_mb: The limit, MiB.
        notes: Put before this group's own notes.
        parent: The group to create it in; `None` takes that of this process, so that its limits
            hold on top.

    Raises:
        MemoryLimitUnavailable: No v1 memory controller, or no right to create groups.
    """
    if parent is None:
        located = cgroups.locate_own_cgroup("memory")
        if located is None:
            raise MemoryLimitUnavailable("the v1 memory controller is not mounted")
        parent = located[1]
    path = parent / cgroups.group_name(name, os.getpid())
    try:
        cgroups.clear_left_groups(parent, name)
        cgroups.make_group(path)
    except OSError as error:
        raise MemoryLimitUnavailable(f"no group can be created in {parent}: {error}") from error
    try:
        own_notes = _set_limits(path, memory_mb)
        cgroups.check_joinable(parent)
    except OSError as error:
        cgroups.remove_group(path)
        raise MemoryLimitUnavailable(f"no limit can be set in {path}: {error}") from error
    except MemoryLimitUnavailable:
        cgroups.remove_group(path)
        raise
    return CgroupV1Limit(path, memory_mb, notes=(*notes, *own_notes))


def _set_limits(path: Path, memory_mb: int) -> list[str]:
    notes = []
    limit = str(mb_to_bytes(memory_mb))
    # Order matters: the kernel refuses a memory + swap limit below the memory limit.
    (path / "memory.limit_in_bytes").write_text(limit)
    swap_limit = path / "memory.memsw.limit_in_bytes"
    if swap_limit.exists():
        swap_limit.write_text(limit)
    else:
        # The kernel was started with swapaccount=0. This keeps anonymous memory out of swap
        # except under pressure of the whole node.
        (path / "memory.swappiness").write_text("0")
        notes.append("swap is not accounted by this kernel and can only be discouraged")
    if parse_counter(read_text(path / "memory.oom_control") or "", "oom_kill") is None:
        notes.append("this kernel does not count kills for memory")
    return notes
