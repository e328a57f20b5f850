"""Memory limits of process trees, on the means that this very machine has."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from prefect_heteroflow.infra import cgroups
from prefect_heteroflow.infra.cgroup_v2 import CgroupV2Limit
from prefect_heteroflow.infra.memory_limits import (
    MemoryLimit,
    MemoryLimitUnavailable,
    create_memory_limit,
)
from prefect_heteroflow.infra.memory_watcher import ResidentMemoryWatcher
from tests.support import wait_until
from tests.support.processes import alive

LIMIT_MB = 100
SIGKILLED = -9

ALLOCATE = "data = bytearray({mb} << 20)\nimport time; time.sleep(1)\n"
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {marks}
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(120)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


@pytest.fixture(params=["cgroup", "watcher"])
def limit(request: pytest.FixtureRequest) -> Iterator[MemoryLimit]:
    try:
        limit = create_memory_limit(f"test-{os.getpid()}", LIMIT_MB, prefer=request.param)
    except MemoryLimitUnavailable as reason:
        pytest.skip(f"no cgroup can be used on this machine: {reason}")
    yield limit
    limit.close()


@pytest.fixture
def new_cgroup() -> Iterator[Callable[[str], cgroups.CgroupLimit]]:
    """Makes cgroup limits by name and takes them down again."""
    made: list[cgroups.CgroupLimit] = []

    def make(name: str) -> cgroups.CgroupLimit:
        try:
            limit = create_memory_limit(name, LIMIT_MB, prefer="cgroup")
        except MemoryLimitUnavailable as reason:
            pytest.skip(f"no cgroup can be used on this machine: {reason}")
        assert isinstance(limit, cgroups.CgroupLimit)
        made.append(limit)
        return limit

    yield make
    for limit in made:
        limit.close()


def start(limit: MemoryLimit, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    process = subprocess.Popen(limit.wrap(command))
    limit.enter(process.pid)
    return process


def test_child_beyond_the_limit_is_killed_and_counted(limit: MemoryLimit) -> None:
    """A child that allocates more than the limit dies by SIGKILL, and the kill has a witness."""
    process = start(limit, ALLOCATE.format(mb=3 * LIMIT_MB))
    assert process.wait(30) == SIGKILLED
    assert limit.oom_kill_count() == 1
    assert limit.limit_reached() is True
    assert (limit.peak_memory_mb() or 0) >= LIMIT_MB


def test_child_below_the_limit_is_left_alone(limit: MemoryLimit) -> None:
    """A child that stays below the limit ends by itself, and its peak is about what it used."""
    process = start(limit, ALLOCATE.format(mb=LIMIT_MB // 2))
    assert process.wait(30) == 0
    assert limit.oom_kill_count() == 0
    assert limit.limit_reached() is False
    assert LIMIT_MB // 2 <= (limit.peak_memory_mb() or 0) < LIMIT_MB


def test_growth_by_small_steps_is_killed(limit: MemoryLimit) -> None:
    """The limit holds for memory that is taken bit by bit, too."""
    process = start(
        limit,
        """
        import time
        kept = []
        for _ in range(100):
            kept.append(bytearray(5 << 20))
            time.sleep(0.02)
        """,
    )
    assert process.wait(30) == SIGKILLED
    assert limit.oom_kill_count() == 1


def test_grandchild_killed_while_parent_exits_zero_is_counted(limit: MemoryLimit) -> None:
    """Exit status 0 of the main process does not hide that a process below it was killed."""
    process = start(
        limit,
        f"""
        import os, signal, subprocess, sys
        code = {ALLOCATE.format(mb=3 * LIMIT_MB)!r}
        ended = subprocess.run([sys.executable, "-c", code]).returncode
        sys.exit(0 if ended == -signal.SIGKILL else 7)
        """,
    )
    status = process.wait(30)
    if isinstance(limit, ResidentMemoryWatcher):
        # The watcher has no way to tell which process is to blame: all of them go.
        assert status == SIGKILLED
        assert limit.oom_kill_count() == 2
    else:
        assert status == 0
        assert limit.oom_kill_count() == 1


def test_memory_of_the_whole_tree_counts(limit: MemoryLimit) -> None:
    """Processes that are each below the limit are over it together."""
    process = start(
        limit,
        f"""
        import subprocess, sys
        code = {ALLOCATE.format(mb=LIMIT_MB * 6 // 10)!r}
        children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
        [child.wait() for child in children]
        """,
    )
    process.wait(30)
    assert (limit.oom_kill_count() or 0) >= 1


def test_pages_shared_by_forked_children_count_once(limit: MemoryLimit) -> None:
    """Four forks of a process of 50 MB that only read it stay below a limit of 100 MB."""
    process = start(
        limit,
        """
        import os, sys, time
        data = bytearray(50 << 20)
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(1)
                os._exit(0)
        sys.exit(max(os.wait()[1] for _ in range(4)))
        """,
    )
    assert process.wait(30) == 0
    assert limit.oom_kill_count() == 0


@pytest.mark.parametrize("waited_for", [True, False])
def test_kill_all_takes_a_daemon_that_left_the_session(
    limit: MemoryLimit, tmp_path: Path, waited_for: bool
) -> None:
    """A daemon by double fork, its parents gone, is of the attempt still."""
    mark = tmp_path / "pid"
    process = start(limit, DAEMON.format(marks="pass"), str(mark))
    if waited_for:
        assert process.wait(30) == 0
    else:
        wait_until(lambda: mark.exists() and mark.read_text(), what="the daemon")
    daemon = int(mark.read_text())
    assert alive(daemon)
    assert daemon in limit.pids()
    assert limit.kill_all()
    assert not alive(daemon)
    process.wait(30)
    assert limit.oom_kill_count() == 0


def test_close_kills_what_is_left_and_keeps_the_counters(
    limit: MemoryLimit, tmp_path: Path
) -> None:
    """After `close` no process of the attempt runs, no cgroup is there, the figures still are."""
    mark = tmp_path / "pid"
    assert start(limit, DAEMON.format(marks="data = bytearray(40 << 20)"), str(mark)).wait(30) == 0
    if isinstance(limit, ResidentMemoryWatcher):
        wait_until(limit.peak_memory_mb, what="a sample")
    limit.close()
    limit.close()
    assert not alive(int(mark.read_text()))
    assert limit.oom_kill_count() == 0
    assert limit.peak_memory_mb() is not None
    if isinstance(limit, cgroups.CgroupLimit):
        assert not limit.path.exists()


def test_process_entered_after_its_start_is_under_the_limit(limit: MemoryLimit) -> None:
    """`enter` alone limits a process that was started without `wrap`."""
    code = f"input(); {ALLOCATE.format(mb=3 * LIMIT_MB)}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        limit.enter(process.pid)
        process.communicate(b"\n", timeout=30)
    assert process.returncode == SIGKILLED
    assert limit.oom_kill_count() == 1


def test_entering_a_process_that_ended_is_no_error(limit: MemoryLimit) -> None:
    """A process may end before anybody gets to enter it."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    limit.enter(process.pid)
    assert limit.pids() == []


def test_wrapped_command_keeps_its_arguments_environment_and_exit_status(
    limit: MemoryLimit, tmp_path: Path
) -> None:
    """The launcher leaves no trace on what the command sees."""
    code = "import os, sys; print(sys.argv[1:], os.environ['X'], os.getcwd()); sys.exit(41)"
    command = limit.wrap([sys.executable, "-c", code, "--", "a b", "--cgroup", ""])
    environment = {**os.environ, "X": "é ü"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ended.returncode == 41
    assert ended.stdout == f"['--', 'a b', '--cgroup', ''] é ü {tmp_path}\n"
    assert ended.stderr == ""


def test_command_that_does_not_exist_is_told_with_127(limit: MemoryLimit) -> None:
    """As a shell does it, with one line and no traceback."""
    ended = subprocess.run(limit.wrap(["no-such-command"]), capture_output=True, text=True)
    assert ended.returncode == 127
    assert ended.stderr.startswith("heteroflow launch: cannot start no-such-command: ")
    assert len(ended.stderr.splitlines()) == 1


def test_better_kinds_that_are_not_in_force_are_explained() -> None:
    """A watcher says why it is no cgroup."""
    limit = create_memory_limit("explained", LIMIT_MB)
    try:
        kinds = ["cgroup v2", "cgroup v1", "resident memory watcher"]
        better = kinds[: kinds.index(limit.kind)]
        assert [note for note in limit.notes if note.startswith("no cgroup")] == [
            note for kind in better for note in limit.notes if note.startswith(f"no {kind}: ")
        ]
        assert len([note for note in limit.notes if note.startswith("no ")]) == len(better)
    finally:
        limit.close()


def test_group_of_a_dead_worker_goes_with_its_processes(
    new_cgroup: Callable[[str], cgroups.CgroupLimit],
) -> None:
    """The same attempt started again kills what a dead worker left of it; empty groups go too."""
    dead = _unused_pid()
    parent = new_cgroup("here").path.parent
    left, empty = (parent / cgroups.group_name(name, dead) for name in ("left", "empty"))
    left.mkdir()
    empty.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]) as process:
        (left / "cgroup.procs").write_text(str(process.pid))
        new_cgroup("left")
        assert process.wait(10) == SIGKILLED
    assert not left.exists()
    assert not empty.exists()


def test_living_process_of_a_dead_worker_stays_with_its_group(
    new_cgroup: Callable[[str], cgroups.CgroupLimit],
) -> None:
    """Another attempt's process may yet be taken over by whoever comes after its worker."""
    parent = new_cgroup("here").path.parent
    left = parent / cgroups.group_name("left", _unused_pid())
    left.mkdir()
    try:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            (left / "cgroup.procs").write_text(str(process.pid))
            new_cgroup("another")
            assert alive(process.pid)
            process.communicate(b"\n", timeout=10)
    finally:
        assert cgroups.remove_group(left)


def test_group_of_a_living_worker_stays(
    new_cgroup: Callable[[str], cgroups.CgroupLimit],
) -> None:
    """Another worker's group is not touched, also while it is still empty."""
    first = new_cgroup("first")
    new_cgroup("second")
    assert first.path.exists()


def test_hundred_limits_side_by_side_leave_nothing(
    new_cgroup: Callable[[str], cgroups.CgroupLimit],
) -> None:
    """Limits do not see each other's processes."""
    limits = [new_cgroup(f"many-{index}") for index in range(100)]
    with start(limits[3], "import time; time.sleep(60)") as process:
        wait_until(limits[3].pids, what="the process in its group")
        assert [limit.pids() for limit in limits if limit is not limits[3]] == [[]] * 99
        for limit in limits:
            limit.close()
        assert process.wait(10) == SIGKILLED
    assert not any(limit.path.exists() for limit in limits)


@pytest.mark.parametrize("memory_mb", [0, -5])
def test_limit_below_one_is_refused(memory_mb: int) -> None:
    """A limit of nothing is a mistake of the caller."""
    with pytest.raises(ValueError, match=f"memory_mb is {memory_mb}"):
        create_memory_limit("refused", memory_mb)


def test_read_only_cgroups_leave_a_watcher_that_works(tmp_path: Path) -> None:
    """In a container, or as a plain user, the watcher is in force, says why, and kills."""
    read_only = "mount -o remount,bind,ro {0} && touch {0}/x 2>/dev/null && exit 9; "
    mounts = cgroups.parse_cgroup_mounts(Path("/proc/self/mountinfo").read_text())
    points = [mounts[key][1] for key in ("", "memory") if key in mounts]
    script = "".join(map(read_only.format, points)) + 'exec "$0" "$@"'
    namespace = ["unshare", "--mount", "/bin/sh", "-c"]
    try:
        subprocess.run([*namespace, script, "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as reason:
        pytest.skip(f"no mount namespace can be made: {reason}")
    code = f"""
    import subprocess, sys
    from prefect_heteroflow.infra.memory_limits import create_memory_limit
    limit = create_memory_limit("confined", {LIMIT_MB})
    code = {ALLOCATE.format(mb=3 * LIMIT_MB)!r}
    process = subprocess.Popen(limit.wrap([sys.executable, "-c", code]))
    limit.enter(process.pid)
    print(process.wait(30), limit.kind, limit.oom_kill_count())
    print(*limit.notes, sep=chr(10))
    """
    ended = _run(code, tmp_path, [*namespace, script])
    lines = ended.stdout.splitlines()
    assert lines[0] == "-9 resident memory watcher 1", ended
    assert lines[1].startswith("no cgroup v2: ")
    assert lines[2].startswith("no cgroup v1: ")


def test_real_v2_group_is_killed_and_removed_as_a_whole(tmp_path: Path) -> None:
    """Joining, `cgroup.kill` and removal on a real v2 hierarchy, with or without controllers."""
    located = cgroups.locate_own_cgroup("")
    if located is None:
        pytest.skip("cgroup v2 is not mounted on this machine")
    path = located[1] / cgroups.group_name("v2-test", os.getpid())
    try:
        path.mkdir()
    except OSError as reason:
        pytest.skip(f"no v2 group can be created: {reason}")
    limit = CgroupV2Limit(path, LIMIT_MB)
    try:
        mark = tmp_path / "pid"
        assert start(limit, DAEMON.format(marks="pass"), str(mark)).wait(30) == 0
        assert limit.pids() == [int(mark.read_text())]
        (path / "below").mkdir()
        assert limit.kill_all()
        assert not alive(int(mark.read_text()))
    finally:
        limit.close()
    assert not path.exists()


def _unused_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _run(code: str, folder: Path, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
