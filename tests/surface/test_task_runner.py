"""`HeteroTaskRunner`: bodies in children that die alone, grow, and are ended with their flow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect import flow
from prefect.settings import PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings

from prefect_heteroflow import HeteroTaskRunner, WorkerDiedError, requires
from tests.core.test_docs import README, blocks
from tests.support import runner_tasks, wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, and nothing waits 30 s for a retry."""
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY", "0")
    monkeypatch.setenv(f"{PREFIX}RETRY_JITTER", "0")
    with flows_run_here(server):
        yield


def run_flow(body: Callable[[], Any], **options: Any) -> Any:
    """What the body returns, run as a flow with our runner."""
    return flow(task_runner=HeteroTaskRunner(**options))(body)()


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_body_runs_in_another_process_and_its_value_comes_home() -> None:
    """The value is the body's, and the body did not run here."""
    pid = run_flow(lambda: runner_tasks.process_id.submit().result())
    assert pid != os.getpid()


def test_child_is_warm_for_the_next_body() -> None:
    """One child at a time runs all bodies, one after the other."""

    def body() -> set[int]:
        return {runner_tasks.process_id.submit().result() for _ in range(5)}

    assert len(run_flow(body, max_workers=1)) == 1


def test_of_eight_tasks_one_that_is_killed_is_retried_and_the_seven_do_not_notice() -> None:
    """A SIGKILL costs one attempt of one task."""

    def body() -> tuple[list[str], list[int], Any]:
        futures = [runner_tasks.square_or_die_once.submit(n, dying=3) for n in range(8)]
        results = [future.result() for future in futures]
        from prefect.runtime import flow_run

        return [future.state.name for future in futures], results, flow_run.id

    names, results, flow_run_id = run_flow(body)
    assert results == [n * n for n in range(8)]
    assert names == ["Completed"] * 8
    counts = sorted(run.run_count for run in task_runs_of(flow_run_id, count=8))
    assert counts == [1] * 7 + [2]


@pytest.mark.parametrize(
    ("number", "failure"),
    [(signal.SIGSEGV, "ProcessCrashed"), (signal.SIGABRT, "ProcessCrashed"), (9, "NodeLost")],
    ids=["SIGSEGV", "SIGABRT", "SIGKILL"],
)
def test_death_without_retries_is_a_worker_died_error(number: int, failure: str) -> None:
    """It carries the signal and the diagnosis."""

    def body() -> Any:
        with requires(max_retries=0):
            return runner_tasks.end_by_signal.submit(int(number)).result(raise_on_failure=False)

    error = run_flow(body)
    assert isinstance(error, WorkerDiedError)
    assert error.signal == number
    assert error.diagnosis is not None
    assert error.diagnosis.failure.value == failure
    assert error.attempt == 1


def test_retries_of_a_task_that_says_none_are_those_of_the_policy() -> None:
    """`max_retries` of the runner; then the error of the last attempt."""

    def body() -> tuple[Any, Any]:
        future = runner_tasks.segfault.submit()
        error = future.result(raise_on_failure=False)
        return future.task_run_id, error

    _, error = run_flow(body, max_retries=2)
    assert isinstance(error, WorkerDiedError)
    assert error.attempt == 3


def test_task_that_needs_3_gb_under_2048_mb_is_completed_in_attempt_2() -> None:
    """The limit is real, and what follows is twice as much of it."""

    def body() -> tuple[str, int]:
        with requires(memory_mb=2048):
            future = runner_tasks.allocate.submit(3000)
        return future.wait() or future.state.name, future.result()

    assert run_flow(body) == ("Completed", 4096)


def test_limit_of_one_task_is_not_that_of_another() -> None:
    """Each runs in a child of its own kind."""

    def body() -> tuple[int, int]:
        with requires(memory_mb=512):
            small = runner_tasks.allocate.submit(10)
        with requires(memory_mb=1024):
            large = runner_tasks.allocate.submit(700)
        return small.result(), large.result()

    assert run_flow(body) == (512, 1024)


def test_daemon_of_a_dead_child_is_ended(tmp_path: Path) -> None:
    """Nothing that a body left behind outlives its child."""

    def body() -> Any:
        with requires(max_retries=0):
            return runner_tasks.start_daemon.submit(str(tmp_path)).result(raise_on_failure=False)

    error = run_flow(body)
    assert isinstance(error, WorkerDiedError)
    assert error.exit_code == 3
    pid = int((tmp_path / "daemon").read_text())
    wait_until(lambda: is_gone(pid), what="end of the daemon", timeout_seconds=10)


def test_two_tasks_never_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three tasks on two GPUs the third waits for one to be given back."""
    monkeypatch.setenv(f"{PREFIX}NODE_GPUS", "8192,8192")

    def body() -> list[str]:
        with requires(gpu_count=1):
            tasks = runner_tasks.visible_gpus
            first = tasks.submit(str(tmp_path), "first", until="go")
            second = tasks.submit(str(tmp_path), "second", until="go")
            runner_tasks.wait_for_file(tmp_path / "first")
            runner_tasks.wait_for_file(tmp_path / "second")
            third = tasks.submit(str(tmp_path), "third")
            with requires(gpu_count=0):
                none = runner_tasks.square.submit(2)
            assert none.result() == 4
            assert not (tmp_path / "third").exists()
            (tmp_path / "go").touch()
        return [future.result() for future in (first, second, third)]

    first, second, third = run_flow(body)
    assert {first, second} == {"0", "1"}
    assert third in {"0", "1"}


def test_task_that_asks_for_no_gpu_sees_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would sit on the first one, which is somebody's."""
    monkeypatch.setenv(f"{PREFIX}NODE_GPUS", "8192")
    assert run_flow(lambda: runner_tasks.visible_gpus.submit(str(tmp_path), "a").result()) == ""


def test_tasks_that_share_a_gpu_run_on_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if all of them say so."""
    monkeypatch.setenv(f"{PREFIX}NODE_GPUS", "8192")

    def body() -> list[str]:
        with requires(gpu_count=1, shares_gpu=True):
            one = runner_tasks.visible_gpus.submit(str(tmp_path), "one", until="two")
            two = runner_tasks.visible_gpus.submit(str(tmp_path), "two", until="one")
        return [one.result(), two.result()]

    assert run_flow(body) == ["0", "0"]


def test_body_knows_its_attempt() -> None:
    """`current_attempt` tells what it has, under the task run's id."""

    def body() -> tuple[Any, Any]:
        future = runner_tasks.needs_256.submit()
        return future.task_run_id, future.result()

    task_run_id, attempt = run_flow(body)
    assert (attempt.task_id, attempt.attempt, attempt.memory_mb) == (str(task_run_id), 1, 256)


def test_child_leaves_after_max_calls() -> None:
    """With two calls for a child, five bodies need three."""

    def body() -> list[int]:
        return [runner_tasks.process_id.submit().result() for _ in range(5)]

    pids = run_flow(body, max_workers=1, max_calls=2)
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]


def test_gpu_task_leaves_its_child_after_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a CUDA context holds is free for the next task."""
    monkeypatch.setenv(f"{PREFIX}NODE_GPUS", "8192")

    def body() -> set[int]:
        with requires(gpu_count=1):
            return {runner_tasks.process_id.submit().result() for _ in range(3)}

    assert len(run_flow(body)) == 3


def test_children_are_gone_when_the_flow_has_ended() -> None:
    """Warm children are for one flow run."""
    pid = run_flow(lambda: runner_tasks.process_id.submit().result())
    wait_until(lambda: is_gone(pid), what="end of the child", timeout_seconds=10)


def test_example_of_the_readme_prints_what_it_says(server: PrefectServer, tmp_path: Path) -> None:
    """As a script of its own, whose `__main__` no child imports."""
    code = next(block for block in blocks(README, "python") if "HeteroTaskRunner()" in block)
    script = tmp_path / "tasks.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=server.env(**{f"{PREFIX}RETRY_DELAY": "0", f"{PREFIX}RETRY_JITTER": "0"}),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "(367001600, [0, 1, 2, 3, 4, 5, 6, 7])", done.stderr
    assert done.stdout.strip() in README


def test_task_submitted_without_a_flow_runs_too() -> None:
    """The runner as a context manager, as Prefect's own."""
    quiet = {PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}
    with temporary_settings(quiet), HeteroTaskRunner() as runner:
        future = runner.submit(runner_tasks.square, {"number": 7})
        assert future.result() == 49
