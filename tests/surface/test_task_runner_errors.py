"""What arrives when a body fails, and what a body may do wrong without harm to the others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.runtime import flow_run
from typer.testing import CliRunner

from prefect_heteroflow import HeteroTaskError, HeteroTaskRunner, WorkerDiedError, requires
from prefect_heteroflow.cli import app
from prefect_heteroflow.task_runner.errors import TaskNotPortableError
from tests.support import runner_tasks, wait_until
from tests.support.conformance_tasks import refuse, succeed_at
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of
from tests.support.workers import Api

ROOT = Path(__file__).parents[2]
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


def error_and_neighbour(submit: Callable[[], Any], **options: Any) -> tuple[Any, str, int]:
    """The error of one task, the name of its state, and what a task after it returns."""

    def body() -> tuple[Any, str, int]:
        with requires(max_retries=0):
            future = submit()
        error = future.result(raise_on_failure=False)
        return error, future.state.name, runner_tasks.square.submit(3).result()

    return run_flow(body, **options)


@pytest.mark.parametrize("kind", [ValueError, HeteroTaskError])
def test_exception_of_a_body_is_caught_as_its_own_type_and_as_ours(
    kind: type[Exception],
) -> None:
    """With the traceback of the child, the node and the attempt."""

    def body() -> Any:
        try:
            refuse.submit("bad").result()
        except kind as error:
            return error

    error = run_flow(body)
    assert type(error).__name__ == "ValueError"
    assert error.args == ("bad",)
    assert "raise ValueError(text)" in error.remote_traceback
    assert (error.attempt, bool(error.node)) == (1, True)
    assert type(error.cause) is ValueError


def test_exception_that_cannot_travel_arrives_as_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plain `HeteroTaskError`, and a warning that says so."""

    @task
    def fail() -> None:
        made = threading.Lock()

        class OwnError(Exception):
            lock = made  # no other process can have the class

        raise OwnError("one 1")

    error, state, nine = error_and_neighbour(fail.submit)
    assert type(error) is HeteroTaskError
    assert "one 1" in str(error)
    assert error.cause is None
    assert (state, nine) == ("Failed", 9)
    assert "cannot be sent between processes" in caplog.text


def test_retry_exceptions_of_the_runner_are_retried(tmp_path: Path) -> None:
    """The types of the list are; the policy gives the number."""

    def body() -> int:
        once = succeed_at.with_options(retries=0)
        return once.submit(str(tmp_path), 3).result()

    assert run_flow(body, retry_exceptions=[RuntimeError]) == 3


def test_exception_outside_of_retry_exceptions_is_not_retried(tmp_path: Path) -> None:
    """The near miss: another type in the list."""

    def body() -> Any:
        once = succeed_at.with_options(retries=0)
        return once.submit(str(tmp_path), 3).result(raise_on_failure=False)

    assert isinstance(run_flow(body, retry_exceptions=[KeyError]), RuntimeError)


def test_environment_says_how_often_a_task_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither the runner nor the task says it."""
    monkeypatch.setenv(f"{PREFIX}MAX_RETRIES", "1")

    def body() -> Any:
        return runner_tasks.segfault.submit().result(raise_on_failure=False)

    assert run_flow(body).attempt == 2


# ---- bad input ---------------------------------------------------------------------------------


def test_argument_that_cannot_be_pickled_is_an_error_of_its_task() -> None:
    """It names the trouble; the next task runs."""
    error, state, nine = error_and_neighbour(lambda: runner_tasks.take.submit(threading.Lock()))
    assert isinstance(error, TaskNotPortableError)
    assert "arguments cannot be pickled" in str(error)
    assert (state, nine) == ("Failed", 9)


def test_value_that_cannot_be_pickled_is_an_error_of_its_task() -> None:
    """The same on the way back."""
    error, state, nine = error_and_neighbour(runner_tasks.give_lambda_of_lock.submit)
    assert isinstance(error, TaskNotPortableError)
    assert "its value, a lock, cannot be pickled" in str(error)
    assert (state, nine) == ("Failed", 9)


def test_body_that_cannot_be_pickled_runs_at_home_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twice submitted, once said."""
    lock = threading.Lock()

    @task
    def holds_a_lock() -> bool:
        return lock.acquire(blocking=False)

    assert run_flow(lambda: [holds_a_lock.submit().result() for _ in range(2)]) == [True, False]
    # Not `record.message`: a record that another thread adds just now has none yet.
    said = [record for record in caplog.records if "runs in the flow's own" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("code", [0, 1, 77])
def test_body_that_leaves_without_an_answer_is_a_worker_died_error(code: int) -> None:
    """Exit code 0 is no success of a body that did not return."""
    error, state, nine = error_and_neighbour(lambda: runner_tasks.leave.submit(code))
    assert isinstance(error, WorkerDiedError)
    assert error.exit_code == code
    assert (state, nine) == ("Failed", 9)


def test_body_that_closes_all_descriptors_is_told_what_it_did() -> None:
    """The child cannot answer any more."""
    error, state, nine = error_and_neighbour(runner_tasks.close_all_descriptors.submit)
    assert isinstance(error, WorkerDiedError)
    assert "closed the file descriptor" in str(error)
    assert (state, nine) == ("Failed", 9)


def test_answer_is_never_written_into_a_file_that_took_the_descriptor(tmp_path: Path) -> None:
    """The number of a closed descriptor is given to the next file."""
    error, _, nine = error_and_neighbour(
        lambda: runner_tasks.close_and_open_another.submit(str(tmp_path))
    )
    assert isinstance(error, WorkerDiedError)
    assert nine == 9
    assert {path.stat().st_size for path in tmp_path.glob("file-*")} == {0}


def test_body_that_forks_answers_once() -> None:
    """The second process that comes out of the body has nothing to say."""
    value, state, nine = error_and_neighbour(runner_tasks.fork_and_return.submit, max_workers=1)
    assert isinstance(value, int)
    assert (state, nine) == ("Completed", 9)


def test_body_that_prints_a_gigabyte_is_completed(server: PrefectServer) -> None:
    """All of it goes to the flow's own output, and is in nobody's memory."""
    command = [sys.executable, "-m", "tests.support.printing_flow", "1024"]
    process = subprocess.Popen(
        command, env=server.env(PYTHONPATH=str(ROOT)), cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    seen, last = 0, b""
    with process.stdout as output:
        while chunk := output.read(1 << 20):
            seen, last = seen + len(chunk), chunk
    assert process.wait(60) == 0
    assert seen >= 1 << 30
    assert last.endswith(b"[1024, 9]\n")


@pytest.mark.parametrize(
    "body", [runner_tasks.too_slow, runner_tasks.too_slow_and_stubborn], ids=["polite", "stubborn"]
)
def test_body_that_never_returns_ends_with_its_timeout(body: Any) -> None:
    """Also one that ignores SIGINT."""
    _, state, nine = error_and_neighbour(body.submit)
    assert (state, nine) == ("TimedOut", 9)


def test_requirement_that_no_node_has_is_an_error_that_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing waits for a node that does not exist."""
    monkeypatch.setenv(f"{PREFIX}NODE_MEMORY_MB", "4096")

    def submit() -> Any:
        # Pools that other tests declared may hold any memory, but not so many GPUs.
        with requires(memory_mb=8192, gpu_count=64):
            return runner_tasks.square.submit(2)

    error, state, nine = error_and_neighbour(submit)
    assert isinstance(error, HeteroTaskError)
    assert "memory_mb=8192" in str(error)
    assert "4096 MB" in str(error)
    assert (state, nine) == ("Failed", 9)


def test_generator_runs_at_home_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """As with threads, its values come from the flow's process."""

    @task
    def count() -> Iterator[int]:
        yield 1

    run_flow(lambda: count.submit().wait())
    assert "is a generator" in caplog.text


# ---- what is kept of attempts ------------------------------------------------------------------


def test_attempts_tell_the_errors_of_bodies_from_the_deaths_of_workers(tmp_path: Path) -> None:
    """`heteroflow attempts --json`: every attempt, of every task run."""

    def body() -> Any:
        from prefect.runtime import flow_run

        runner_tasks.square_or_die_once.submit(2, dying=2).result()
        refuse.submit("bad").wait()
        runner_tasks.square.submit(2).wait()
        return flow_run.id

    flow_run_id = run_flow(body)
    task_runs_of(flow_run_id, count=3)

    def shown(*options: str) -> list[tuple[Any, ...]]:
        result = CliRunner().invoke(app, ["attempts", str(flow_run_id), "--json", *options])
        assert result.exit_code == 0, result.output
        entries = json.loads(result.stdout)["attempts"]
        return [
            (
                entry["name"].rpartition("-")[0],
                entry["attempt"],
                entry["state"],
                entry["error_type"],
                entry["failure"],
            )
            for entry in entries
        ]

    died = ("square_or_die_once", 1, "failed", "WORKER_DIED", "NodeLost")
    again = ("square_or_die_once", 2, "completed", None, None)
    raised = ("refuse", 1, "failed", "TASK_EXECUTION_EXCEPTION", "ApplicationError")
    good = ("square", 1, "completed", None, None)
    assert wait_until(lambda: shown(), what="attempts") == [died, again, raised, good]
    assert shown("--task", "refuse") == [raised]
    assert shown("--state", "completed") == [again, good]


def test_last_words_of_a_killed_body_are_in_the_log(server: PrefectServer) -> None:
    """What a body logs is sent at once, not with the next batch."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterTaskRunId

    def body() -> Any:
        with requires(max_retries=0):
            future = runner_tasks.log_and_die.submit("here")
        future.wait()
        return future.task_run_id

    task_run_id = run_flow(body)
    with get_client(sync_client=True) as client:

        def messages() -> list[str]:
            wanted = LogFilter(task_run_id=LogFilterTaskRunId(any_=[task_run_id]))
            return [log.message for log in client.read_logs(wanted)]

        wait_until(lambda: "last words here" in messages(), what="the last words")


@pytest.mark.parametrize(
    ("memory_mb", "said"),
    [
        (99_999_999, "memory_mb 99999999 is above oom_memory_limit"),
        (50_000_000, "which no node has"),
    ],
    ids=["above the limit of growth", "more than this node has"],
)
def test_task_that_asks_for_what_nobody_has_fails_alone(
    monkeypatch: pytest.MonkeyPatch, memory_mb: int, said: str
) -> None:
    monkeypatch.setenv(f"{PREFIX}NODE_MEMORY_MB", "3000")
    # Nodes of other tests are on the server too: none of them has as much as this.
    monkeypatch.setenv(f"{PREFIX}OOM_MEMORY_LIMIT", "60000000")
    greedy = requires(memory_mb=memory_mb)(runner_tasks.square)
    error, state, neighbour = error_and_neighbour(lambda: greedy.submit(2))
    assert type(error) is HeteroTaskError
    assert said in str(error)
    assert (state, neighbour) == ("Failed", 9)


def test_task_that_asks_for_more_than_may_be_used_is_told_where_that_is_said() -> None:
    """It stands in the code, and no look for a place was made."""

    def body() -> tuple[str, str]:
        future = requires(memory_mb=500_000)(runner_tasks.square).submit(2)
        error = future.result(raise_on_failure=False)
        return str(error), str(flow_run.get_id())

    error, flow_run_id = run_flow(body)
    assert "memory_mb 500000 is above oom_memory_limit" in error
    assert error.endswith(
        "Correct what the task says (`requires`, `retries`), or the settings, and run it again."
    )
    task_runs_of(UUID(flow_run_id), count=1)
    result = CliRunner().invoke(app, ["attempts", flow_run_id, "--json"])
    (entry,) = json.loads(result.stdout)["attempts"]
    assert (entry["error_type"], entry["failure"]) == (
        "TASK_REQUIREMENTS_REFUSED",
        "ResourceLimitExceeded",
    )


def test_exception_whose_text_cannot_be_read_is_still_a_task_error_that_names_it() -> None:
    error, state, neighbour = error_and_neighbour(runner_tasks.fail_unspeakably.submit)
    assert isinstance(error, HeteroTaskError)
    assert "Unspeakable: its text cannot be read (RuntimeError)" in str(error)
    assert (state, neighbour) == ("Failed", 9)


def test_retries_of_a_task_bound_its_attempts_whatever_ends_them(tmp_path: Path) -> None:
    """A kill has a budget of its own, which is larger; the task's word counts before it."""
    starts = tmp_path / "starts"

    @task(retries=1)
    def killed() -> None:
        import os
        import signal

        with starts.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    def body() -> Any:
        return killed.submit().result(raise_on_failure=False)

    assert isinstance(run_flow(body), WorkerDiedError)
    assert starts.read_text() == "xx"


def test_row_of_a_retry_names_the_delay_that_the_task_asks_for(api: Api, tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    @task(retries=2, retry_delay_seconds=[0.25, 7])
    def killed_once() -> None:
        import os
        import signal

        if not starts.exists():
            starts.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def body() -> Any:
        future = killed_once.submit()
        future.wait()
        return future.task_run_id

    rows = api.rows(str(run_flow(body)))
    assert rows[0]["decision"].endswith("in 0.25 s") or "in 0.2 s" in rows[0]["decision"]
