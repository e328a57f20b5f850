"""Cleanup before a retry: with real files, processes and hooks, and GPUs that are counted down."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from prefect_heteroflow.core.cleanup import DEFAULT_PATTERNS, hook_command
from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.infra.cleanup import (
    CleanupPlan,
    Removed,
    clean_up,
    remove_matching,
    wait_for_gpu_memory,
)
from prefect_heteroflow.infra.cleanup_hook import run_hook
from prefect_heteroflow.infra.leftovers import end_leftovers
from prefect_heteroflow.infra.nvml import NvmlUnavailable
from tests.support import wait_until
from tests.support.processes import alive

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture
def marks() -> dict[str, str]:
    return {"HETEROFLOW_TASK_ID": uuid4().hex, "HETEROFLOW_ATTEMPT": "1"}


@contextmanager
def child(marks: dict[str, str], code: str = "import time") -> Iterator[subprocess.Popen[bytes]]:
    """A process with these variables that would run for ten minutes."""
    script = f"{code}; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **marks},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0123456789")


def matching_removed(
    folders: list[Path], patterns: Sequence[str], problems: list[str]
) -> tuple[list[str], int]:
    """Paths and bytes of what went."""
    removed = Removed()
    remove_matching(folders, patterns, problems, removed)
    return removed.paths, removed.bytes


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- files ---------------------------------------------------------------------------------------


def test_stale_locks_go_and_everything_else_stays(tmp_path: Path) -> None:
    write(tmp_path, "a.lock", "op/lock", "op/build.ninja", "model.pt", "nccl-AbC")
    problems: list[str] = []
    removed, total = matching_removed([tmp_path], DEFAULT_PATTERNS, problems)
    assert sorted(removed) == ["a.lock", "nccl-AbC", "op/lock"]
    assert (total, problems) == (30, [])
    assert files(tmp_path) == ["model.pt", "op", "op/build.ninja"]


def test_folder_that_matches_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    write(tmp_path, "work.partial/a/b", "work.partial/c", "work/a")
    removed, total = matching_removed([tmp_path], ["*.partial"], [])
    assert (removed, total) == (["work.partial"], 20)
    assert files(tmp_path) == ["work", "work/a"]


def test_link_out_of_the_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    outside, scratch = tmp_path / "outside", tmp_path / "scratch"
    write(outside, "a.lock")
    write(scratch, "gone.partial/x")
    for link in ("data", "out.lock", "gone.partial/inner"):
        (scratch / link).symlink_to(outside)
    removed, _ = matching_removed([scratch], ["*.lock", "*.partial"], [])
    assert sorted(removed) == ["gone.partial", "out.lock"]
    assert files(outside) == ["a.lock"]
    assert files(scratch) == ["data"]


@pytest.mark.parametrize("folder", ["/", "/tmp", "relative", "/tmp/x/../../etc", str(Path.home())])
def test_folder_that_is_not_the_attempts_own_is_left_alone_and_named(folder: str) -> None:
    problems: list[str] = []
    assert matching_removed([Path(folder)], ["no-such-name"], problems) == ([], 0)
    assert len(problems) == 1
    assert f"{folder!r} was left alone" in problems[0]


def test_folder_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "real", "a.lock")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    problems: list[str] = []
    assert matching_removed([tmp_path / "link"], ["*.lock"], problems) == ([], 0)
    assert "it is a link to somewhere else" in problems[0]
    assert files(tmp_path / "real") == ["a.lock"]


def test_folder_that_is_gone_is_no_problem(tmp_path: Path) -> None:
    problems: list[str] = []
    assert matching_removed([tmp_path / "gone"], ["*.lock"], problems) == ([], 0)
    assert problems == []


# ---- processes -----------------------------------------------------------------------------------


def test_leftover_process_of_the_attempt_is_ended(marks: dict[str, str]) -> None:
    with child(marks) as process:
        assert end_leftovers(marks) == 1
        assert process.wait(5) != 0


def test_leftover_that_ignores_sigterm_is_killed(marks: dict[str, str]) -> None:
    with child(marks, STUBBORN) as process:
        assert end_leftovers(marks, grace_seconds=0.3) == 1
        assert process.wait(5) == -9


@pytest.mark.parametrize(
    ("name", "value"),
    [("HETEROFLOW_ATTEMPT", "2"), ("HETEROFLOW_ATTEMPT", "11"), ("HETEROFLOW_TASK_ID", "other")],
)
def test_process_of_another_attempt_or_task_is_left_alone(
    marks: dict[str, str], name: str, value: str
) -> None:
    with child({**marks, name: value}) as process:
        assert end_leftovers(marks) == 0
        assert process.poll() is None


def test_process_that_cleans_up_spares_itself_and_those_above_it() -> None:
    """Where the worker itself runs within an attempt."""
    found = os.environ["PATH"]
    assert end_leftovers({"PATH": found, "PYTEST_CURRENT_TEST": uuid4().hex}) == 0
    script = (
        "from prefect_heteroflow.infra.leftovers import end_leftovers;"
        "print(end_leftovers({'HETEROFLOW_TASK_ID': 'outer'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HETEROFLOW_TASK_ID": "outer"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "0"


def test_no_marks_are_refused() -> None:
    with pytest.raises(ValueError, match="marks are empty"):
        end_leftovers({})


# ---- hooks ---------------------------------------------------------------------------------------


def hook(text: str, folder: Path, seconds: float = 30.0, **extra: str) -> tuple[bool, str]:
    return run_hook(
        text, folder=folder, environment={**os.environ, **extra}, timeout_seconds=seconds
    )


def test_command_runs_in_the_folder_with_its_environment(tmp_path: Path) -> None:
    assert hook("sh -c 'echo $WORD > said'", tmp_path, WORD="hello") == (
        True,
        "the cleanup hook succeeded",
    )
    assert (tmp_path / "said").read_text() == "hello\n"


@pytest.mark.parametrize("form", ["cleaning.tidy", "cleaning:tidy"])
def test_dotted_function_runs(tmp_path: Path, form: str) -> None:
    (tmp_path / "cleaning.py").write_text("def tidy():\n    open('tidied', 'w').close()\n")
    assert hook(form, tmp_path, PYTHONPATH=str(tmp_path))[0]
    assert (tmp_path / "tidied").exists()


FAILED = [
    ("status", "sh -c 'echo no space; exit 3'", "ended with status 3: no space"),
    ("no such command", "no-such-command --now", "could not be started"),
    ("no such module", "no_such_module.tidy", "No module named 'no_such_module'"),
    ("blank", "  ", "is blank: give a command or package.module.function"),
    ("open quote", "sh -c 'x", "Close the quote"),
    ("secret", "sh -c 'echo AWS_SECRET_ACCESS_KEY=abcdefghijklmnop1234; exit 1'", "ended with"),
]


@pytest.mark.parametrize(("text", "said"), [it[1:] for it in FAILED], ids=[it[0] for it in FAILED])
def test_hook_that_fails_says_how(tmp_path: Path, text: str, said: str) -> None:
    succeeded, message = hook(text, tmp_path)
    assert not succeeded
    assert said in message
    assert "abcdefghijklmnop1234" not in message


def test_hook_of_a_cancelled_run_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid_file, started = tmp_path / "pid", time.monotonic()
    result = run_hook(
        "sh -c 'setsid sleep 600 & echo $! > pid; sleep 600'",
        folder=tmp_path,
        environment=os.environ,
        timeout_seconds=60,
        is_cancelled=lambda: pid_file.exists() and bool(pid_file.read_text()),
    )
    assert result == (False, "the cleanup hook was ended: the run was cancelled")
    assert time.monotonic() - started < 20
    assert not alive(int(pid_file.read_text()))


def test_hook_is_not_begun_when_the_run_is_cancelled_and_the_rest_is_told(tmp_path: Path) -> None:
    write(tmp_path, "a.lock")
    plan = CleanupPlan(folders=[tmp_path], hook="touch begun", is_cancelled=lambda: True)
    assert clean_up(plan).text() == "Cleaned up: removed a.lock (10 bytes)."
    assert not (tmp_path / "begun").exists()


def test_gate_does_not_keep_a_cancelled_run_waiting() -> None:
    started = time.monotonic()
    waited, problem = wait_for_gpu_memory(
        {"GPU-1": 24000},
        read=gpus_with(4000),
        is_cancelled=lambda: time.monotonic() - started > 0.7,
    )
    assert problem is None
    assert waited is not None
    assert 0.7 < waited < 10


def test_hook_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A grandchild in a session of its own too."""
    started = time.monotonic()
    text = "sh -c 'setsid sleep 600 & echo $! > pid; sleep 600'"
    assert hook(text, tmp_path, seconds=1.0) == (False, "the cleanup hook was ended after 1 s")
    assert time.monotonic() - started < 20
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not _runs(pid), what="end of the hook's grandchild", timeout_seconds=10)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_hook_command_is_split_without_a_shell() -> None:
    assert hook_command("rm -f 'a b' $HOME") == ["rm", "-f", "a b", "$HOME"]


# ---- GPU memory ----------------------------------------------------------------------------------


def gpus_with(*free_mb: int | None) -> Callable[[], tuple[Gpu, ...]]:
    """A GPU whose free memory is the next figure at each look, and stays at the last."""
    left = list(free_mb)

    def read() -> tuple[Gpu, ...]:
        free = left.pop(0) if len(left) > 1 else left[0]
        return (Gpu(uuid="GPU-1", name="A10", memory_mb=24576, free_mb=free),)

    return read


def test_gate_opens_when_the_memory_of_before_is_free_again() -> None:
    waited, problem = wait_for_gpu_memory({"GPU-1": 24000}, read=gpus_with(4000, 23488))
    assert problem is None
    assert waited is not None
    assert 0.4 < waited < 10


FREE_AT_ONCE = [("as before", 24000), ("within the tolerance", 23488), ("unknown", None)]


@pytest.mark.parametrize("free", [it[1] for it in FREE_AT_ONCE], ids=[it[0] for it in FREE_AT_ONCE])
def test_gate_is_open_at_once_when_nothing_is_known_to_be_missing(free: int | None) -> None:
    assert wait_for_gpu_memory({"GPU-1": 24000}, read=gpus_with(free)) == (None, None)


def test_gate_gives_up_after_its_time_and_says_what_is_missing() -> None:
    waited, problem = wait_for_gpu_memory(
        {"GPU-1": 24000}, read=gpus_with(23487), timeout_seconds=0.6
    )
    assert waited is not None
    assert 0.6 <= waited < 10
    assert problem == "GPU memory is still in use (GPU-1: 23487 of 24000 MB free)"


def test_attempt_without_a_gpu_asks_no_driver() -> None:
    def fail() -> NvmlUnavailable:
        raise AssertionError("asked")

    assert wait_for_gpu_memory({}, read=fail) == (None, None)


# ---- all together --------------------------------------------------------------------------------


def test_cleanup_does_all_of_it_and_reports_it(tmp_path: Path, marks: dict[str, str]) -> None:
    write(tmp_path, "a.lock")
    with child(marks):
        report = clean_up(
            CleanupPlan(
                folders=[tmp_path],
                marks=marks,
                gpu_free_mb={"GPU-1": 24000},
                hook="sh -c 'ls > seen'",
                hook_environment=dict(os.environ),
            ),
            read=gpus_with(24000),
        )
    assert report.text() == (
        "Cleaned up: removed a.lock (10 bytes); ended 1 leftover process; the cleanup hook"
        " succeeded."
    )
    assert (tmp_path / "seen").read_text() == "seen\n"


def test_step_that_fails_keeps_the_others_from_nothing(
    tmp_path: Path, marks: dict[str, str]
) -> None:
    write(tmp_path, "a.lock")
    report = clean_up(
        CleanupPlan(folders=[Path("/tmp"), tmp_path], marks=marks, hook="no-such-command"),
        read=lambda: NvmlUnavailable("no driver"),
    )
    assert report.removed == ("a.lock",)
    assert [it.partition(" ")[0] for it in report.problems] == ["'/tmp'", "the"]


def test_hook_with_variables_that_no_process_can_have_is_a_problem(tmp_path: Path) -> None:
    succeeded, text = hook("true", tmp_path, WORD="a\0b")
    assert not succeeded
    assert "could not be started" in text
