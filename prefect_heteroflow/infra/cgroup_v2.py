"""A memory limit by cgroup v2, in the nearest group that is ours to divide.

As root that is an ancestor that already hands the memory controller down (`system.slice`); for
another user a delegated group: a systemd unit with `Delegate=yes`, a user session, a container
with a writable cgroup file system.
"""

from __future__ import annotations

import contextlib
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
from prefect_heteroflow.infra.node_probe import read_v2_limit

WORKER_GROUP = "heteroflow-worker"
"""Leaf that the worker moves to when it divides its own group: processes may only be in leaves."""


class CgroupV2Limit(CgroupLimit):
    """A group of the v2 memory controller."""

    kind = "cgroup v2"

    def _read_counters(self) -> tuple[int | None, bool | None, int | None]:
        events = read_text(self.path / "memory.events") or ""
        reached = parse_counter(events, "oom")
        return (
            parse_counter(events, "oom_kill"),
            None if reached is None else reached > 0,
            read_number(self.path / "memory.peak"),  # Linux 5.19
        )

    def _read_outer_limit(self) -> int | None:
        located = cgroups.locate_own_cgroup("")
        return None if located is None else read_v2_limit(located[0], self.path.parent)


def create_v2_limit(
    name: str, memory_mb: int, *, notes: tuple[str, ...] = (), parent: Path | None = None
) -> CgroupV2Limit:
    """A new v2 group with its limit set and swap barred.

    Args:
        name: Names the attempt; see `create_memory_limit`.
        memory_mb: The limit, MiB.
        notes: Put before this group's own notes.
        parent: The group to create it in, with `memory` in its `cgroup.subtree_control`; `None`
            looks for one.

    Raises:
        MemoryLimitUnavailable: No v2 memory controller, or no group that is ours to divide.
    """
    if parent is None:
        located = cgroups.locate_own_cgroup("")
        if located is None:
            raise MemoryLimitUnavailable("cgroup v2 is not mounted")
        parent = find_parent(*located, user_id=os.geteuid())
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
    return CgroupV2Limit(path, memory_mb, notes=(*notes, *own_notes))


def _set_limits(path: Path, memory_mb: int) -> list[str]:
    if not (path / "memory.max").exists():
        raise MemoryLimitUnavailable(f"{path} has no memory controller")
    notes = []
    (path / "memory.max").write_text(str(mb_to_bytes(memory_mb)))
    if (path / "memory.swap.max").exists():
        (path / "memory.swap.max").write_text("0")
    # Without the file the kernel was built without swap: nothing to bar.
    if not (path / "memory.peak").exists():
        notes.append("this kernel does not record peak memory in cgroup v2")
    return notes


def find_parent(top: Path, own: Path, *, user_id: int) -> Path:
    """The group to create ours in; divides the own group if it is delegated to us.

    Args:
        top: Top of the mounted hierarchy; nothing above it is looked at.
        own: Group of this process.
        user_id: Effective user id; only 0 may use a group of somebody else.

    Raises:
        MemoryLimitUnavailable: There is none; the text says what was looked at.
    """
    if "memory" not in _words(top / "cgroup.controllers"):
        raise MemoryLimitUnavailable(
            f"no memory controller in {top} (it is bound to cgroup v1, or switched off)"
        )
    group = own
    while True:
        if "memory" in _words(group / "cgroup.subtree_control") and _ours(group, user_id):
            return group
        if group in (top, group.parent):
            break
        group = group.parent
    if not _delegated(top, own, user_id):
        raise MemoryLimitUnavailable(
            f"{own} is not delegated to user {user_id} (a systemd unit wants Delegate=yes)"
        )
    try:
        return _divide(own)
    except OSError as error:
        raise MemoryLimitUnavailable(f"{own} cannot be divided: {error}") from error


def _words(path: Path) -> list[str]:
    return (read_text(path) or "").split()


def _ours(group: Path, user_id: int) -> bool:
    # The kernel asks for write access to `cgroup.procs` of the common ancestor of where a process
    # comes from and where it goes; `check_joinable` makes sure of that with a real process.
    return os.access(group, os.W_OK) and (user_id == 0 or group.stat().st_uid == user_id)


def _delegated(top: Path, own: Path, user_id: int) -> bool:
    """Whether the own group is ours to divide, processes of others included.

    Root may write everywhere, but a login session's processes are not ours to move: for root only
    the top of what is mounted (a container's own group) and what systemd marks as delegated count.
    """
    if "memory" not in _words(own / "cgroup.controllers") or not os.access(own, os.W_OK):
        return False
    if own == top or (user_id != 0 and own.stat().st_uid == user_id):
        return True
    for attribute in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError, AttributeError):
            if os.getxattr(own, attribute) == b"1":
                return True
    return False


def _divide(own: Path) -> Path:
    """Move the group's processes into a leaf and hand the memory controller down."""
    is_real_root = not (own / "cgroup.type").exists()
    if not is_real_root:
        leaf = own / WORKER_GROUP
        if not leaf.exists():
            cgroups.make_group(leaf)
        for _ in range(100):  # processes may be born while others are moved
            pids = _words(own / "cgroup.procs")
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
    (own / "cgroup.subtree_control").write_text("+memory")
    return own
