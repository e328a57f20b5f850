"""How often a task with `retries` of its own runs, and what is told of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY", "0")
    monkeypatch.setenv(f"{PREFIX}RETRY_JITTER", "0")
    with flows_run_here(server):
        yield


def ids_of(one_task: Any) -> tuple[str, str]:
    """A flow with that one task, run to its end: ids of the flow run and of the task run."""

    @flow(task_runner=HeteroTaskRunner())
    def body() -> tuple[str, str]:
        from prefect.runtime import flow_run

        future = one_task.submit()
        future.wait()
        return str(flow_run.id), str(future.task_run_id)

    return body()


def test_lost_attempts_are_counted_by_the_retries_of_the_task(api: Api) -> None:
    """They have a budget of their own, of 3."""

    @task(retries=1)
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    flow_run_id, task_run_id = ids_of(killed)
    first, last = (row["decision"] for row in api.rows(task_run_id))
    assert "infrastructure retry 1 of 1" in first
    assert "the task's only retry is used" in last
    wait_until(
        lambda: any("Retry 1/1 will start" in line for line in api.logs(flow_run_id)),
        what="the number that the engine tells",
    )


def test_exception_after_a_lost_attempt_is_not_retried_beyond_the_retries_of_the_task(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"

    @task(retries=1)
    def killed_then_raises() -> None:
        with starts.open("a") as file:
            file.write("x")
        if starts.read_text() == "x":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such day")

    ids_of(killed_then_raises)
    assert starts.read_text() == "xx"


def decisions_of(one_task: Any, api: Api) -> list[str]:
    _, task_run_id = ids_of(one_task)
    return [row["decision"] for row in api.rows(task_run_id)]


def test_rows_of_an_exception_tell_the_retries_that_the_task_asks_for(api: Api) -> None:
    """The policy retries no application error; Prefect's engine does, as often as the task says."""

    @task(retries=1, retry_delay_seconds=0.5)
    def raises() -> None:
        raise ValueError("no such day")

    first, last = decisions_of(raises, api)
    assert first.endswith("`ValueError`; the task's own retries: retry 1 of 1 in 0.5 s")
    assert last.endswith("`ValueError`; the task's only retry is used")


def test_row_of_a_transient_exception_tells_that_a_task_without_a_delay_is_retried_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY", "30")

    @task(retries=1)
    def raises() -> None:
        raise ConnectionResetError("reset")

    first, last = decisions_of(raises, api)
    assert first.endswith("retry 1 of 1 in 0 s")
    assert last.endswith("the task's only retry is used")


def test_row_tells_that_the_condition_of_the_task_wants_no_retry(api: Api) -> None:
    @task(retries=1, retry_condition_fn=lambda task, run, state: False)
    def raises() -> None:
        raise ValueError("no such day")

    (only,) = decisions_of(raises, api)
    assert only.endswith("`ValueError`; the task's `retry_condition_fn` wants no retry")
