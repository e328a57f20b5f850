"""Cgroup v2 on trees of files that look like it, for machines where v1 holds the controllers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_heteroflow.infra import cgroups
from prefect_heteroflow.infra.cgroup_v1 import create_v1_limit
from prefect_heteroflow.infra.cgroup_v2 import WORKER_GROUP, create_v2_limit, find_parent
from prefect_heteroflow.infra.cgroups import (
    MemoryLimitUnavailable,
    group_name,
    locate_cgroup,
    parse_cgroup_mounts,
    parse_cgroup_paths,
)

ME = os.geteuid()

V2_MOUNTS = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
# In a container without a namespace of its own the mount shows the container's part alone.
CONTAINER_MOUNTS = (
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("controller", "self_cgroup", "mounts", "found"),
    [
        ("", "0::/user.slice/x.scope\n", V2_MOUNTS, "/sys/fs/cgroup/user.slice/x.scope"),
        ("memory", "0::/user.slice\n", V2_MOUNTS, None),
        ("memory", "4:memory:/jobs/7\n0::/\n", V1_MOUNTS, "/sys/fs/cgroup/memory/jobs/7"),
        ("", "4:memory:/jobs/7\n0::/\n", V1_MOUNTS, "/sys/fs/cgroup/unified"),
        ("memory", "4:cpu,memory:/a:b\n", V1_MOUNTS, "/sys/fs/cgroup/memory/a:b"),
        ("memory", "4:memory:/docker/abc/x\n", CONTAINER_MOUNTS, "/sys/fs/cgroup/memory/x"),
        ("memory", "4:memory:/elsewhere\n", CONTAINER_MOUNTS, "/sys/fs/cgroup/memory"),
        ("", "0::/../outside\n", V2_MOUNTS, "/sys/fs/cgroup"),
        ("", "", V2_MOUNTS, None),
        ("", "nonsense\n0::/\n", "nonsense\n", None),
    ],
)
def test_own_group_is_located(
    controller: str, self_cgroup: str, mounts: str, found: str | None
) -> None:
    """From `/proc/self/cgroup` and `/proc/self/mountinfo`, in and out of containers."""
    located = locate_cgroup(controller, self_cgroup, mounts)
    assert (located and str(located[1])) == found


def test_mount_points_with_blanks_are_read() -> None:
    """The kernel writes a blank as an octal escape."""
    line = "1 2 0:3 / /mnt/my\\040cgroups rw - cgroup2 cgroup2 rw\n"
    assert parse_cgroup_mounts(line) == {"": ("/", "/mnt/my cgroups")}
    assert parse_cgroup_paths("1:name=systemd:/\n0::/a\n") == {"name=systemd": "/", "": "/a"}


def group(
    path: Path, *, controllers: str = "memory", hands_down: str = "", root: bool = False
) -> Path:
    """A v2 group as the kernel shows it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(f"{controllers}\n")
    (path / "cgroup.subtree_control").write_text(f"{hands_down}\n")
    (path / "cgroup.procs").write_text("")
    if not root:
        (path / "cgroup.type").write_text("domain\n")
        (path / "memory.max").write_text("max\n")
    return path


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that are made get the files that a kernel would give them; joining always works."""

    def make(path: Path) -> None:
        path.mkdir()
        group(path)
        (path / "memory.swap.max").write_text("max\n")
        (path / "memory.peak").write_text("0\n")
        (path / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")

    monkeypatch.setattr(cgroups, "make_group", make)
    monkeypatch.setattr(cgroups, "check_joinable", lambda parent: None)


def test_nearest_ancestor_that_hands_memory_down_is_the_parent(tmp_path: Path) -> None:
    """As root beside a service in `system.slice`, not in the root group."""
    group(tmp_path, hands_down="cpu memory", root=True)
    service = group(tmp_path / "system.slice", hands_down="cpu memory pids")
    own = group(service / "worker.service")
    assert find_parent(tmp_path, own, user_id=ME) == service


def test_own_container_group_is_divided(tmp_path: Path, kernel: None) -> None:
    """In a container the processes move to a leaf first: only leaves may hold processes."""
    top = group(tmp_path, controllers="cpu memory")
    procs = ["12\n34\n", ""]

    original = cgroups.read_text

    def read_text(path: Path) -> str | None:
        # A plain file does not lose the processes that have been moved.
        return procs.pop(0) if path == top / "cgroup.procs" else original(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefect_heteroflow.infra.cgroup_v2.read_text", read_text)
        assert find_parent(top, top, user_id=ME) == top
    assert (top / WORKER_GROUP / "cgroup.procs").read_text() == "34"
    assert (top / "cgroup.subtree_control").read_text() == "+memory"


def test_divided_group_is_found_again_from_its_leaf(tmp_path: Path) -> None:
    """The second attempt, and a restarted worker, divide nothing."""
    top = group(tmp_path, hands_down="memory")
    leaf = group(top / WORKER_GROUP, controllers="memory")
    assert find_parent(top, leaf, user_id=ME) == top


def test_root_group_of_the_machine_keeps_its_processes(tmp_path: Path) -> None:
    """The real root is the one group that may hold processes and hand controllers down."""
    top = group(tmp_path, root=True)
    (top / "cgroup.procs").write_text("1\n2\n")
    assert find_parent(top, top, user_id=ME) == top
    assert not (top / WORKER_GROUP).exists()
    assert (top / "cgroup.procs").read_text() == "1\n2\n"


def test_memory_controller_elsewhere_is_a_reason(tmp_path: Path) -> None:
    """The hybrid layout: v2 is mounted, v1 holds the memory controller."""
    group(tmp_path, controllers="", root=True)
    with pytest.raises(MemoryLimitUnavailable, match="bound to cgroup v1, or switched off"):
        find_parent(tmp_path, tmp_path, user_id=ME)


def test_group_of_somebody_else_is_not_divided(tmp_path: Path) -> None:
    """A login session's group belongs to root: a plain user hears what is missing."""
    group(tmp_path, hands_down="memory", root=True)
    own = group(tmp_path / "session-3.scope")
    with pytest.raises(MemoryLimitUnavailable, match="Delegate=yes"):
        find_parent(tmp_path, own, user_id=ME + 1)
    assert not (own / WORKER_GROUP).exists()


def test_session_of_root_is_not_divided(tmp_path: Path) -> None:
    """Root's shell stays where it is, though root could move it."""
    group(tmp_path, root=True)
    own = group(tmp_path / "session-3.scope")
    with pytest.raises(MemoryLimitUnavailable, match="not delegated"):
        find_parent(tmp_path, own, user_id=0)


def test_limit_is_set_and_swap_is_barred(tmp_path: Path, kernel: None) -> None:
    """In bytes; counters come from the kernel's files, and stay readable after `close`."""
    limit = create_v2_limit("run-1", 100, notes=("before",), parent=group(tmp_path))
    assert limit.kind == "cgroup v2"
    assert limit.notes == ("before",)
    assert limit.path == tmp_path / group_name("run-1", os.getpid())
    assert (limit.path / "memory.max").read_text() == str(100 << 20)
    assert (limit.path / "memory.swap.max").read_text() == "0"
    assert (limit.oom_kill_count(), limit.limit_reached(), limit.peak_memory_mb()) == (0, False, 0)
    (limit.path / "memory.events").write_text("max 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (limit.path / "memory.peak").write_text(f"{(99 << 20) + 1}\n")
    assert (limit.oom_kill_count(), limit.limit_reached(), limit.peak_memory_mb()) == (1, True, 100)


def test_older_kernel_leaves_the_peak_unknown(tmp_path: Path, kernel: None) -> None:
    """`memory.peak` came with Linux 5.19."""
    limit = create_v2_limit("run-1", 100, parent=group(tmp_path))
    (limit.path / "memory.peak").unlink()
    assert limit.peak_memory_mb() is None
    (limit.path / "memory.events").unlink()
    assert limit.oom_kill_count() is None
    assert limit.limit_reached() is None


def test_group_without_the_controller_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of the attempt to use it."""
    monkeypatch.setattr(cgroups, "check_joinable", lambda parent: None)
    with pytest.raises(MemoryLimitUnavailable, match="no memory controller"):
        create_v2_limit("run-1", 100, parent=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_v1_kernel_without_swap_accounting_or_kill_counter_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be witnessed is not known; `limit_reached` is the witness that is left."""

    def make(path: Path) -> None:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
        (path / "memory.swappiness").write_text("60\n")
        (path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
        (path / "memory.max_usage_in_bytes").write_text(f"{100 << 20}\n")

    monkeypatch.setattr(cgroups, "make_group", make)
    monkeypatch.setattr(cgroups, "check_joinable", lambda parent: None)
    limit = create_v1_limit("run-1", 100, parent=tmp_path)
    assert limit.notes == (
        "swap is not accounted by this kernel and can only be discouraged",
        "this kernel does not count kills for memory",
    )
    assert (limit.path / "memory.swappiness").read_text() == "0"
    assert limit.oom_kill_count() is None
    assert limit.limit_reached() is True
    assert limit.peak_memory_mb() == 100


def test_group_names_of_different_attempts_differ() -> None:
    """Characters that a directory cannot bear are replaced, not dropped."""
    names = ["a", "a/b", "a_b", "../a", "x" * 200, "x" * 201, "a.b"]
    groups = [group_name(name, 7) for name in names]
    assert len(set(groups)) == len(names)
    assert all("/" not in it and it.startswith("heteroflow.7.") for it in groups)
