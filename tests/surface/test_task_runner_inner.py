"""Tasks that the body of a task submits: they run in its child."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentTaskRunId
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    """Flows run in this process."""
    with flows_run_here(server):
        yield


def state_and_value(submit: Callable[[], Any]) -> tuple[str, Any]:
    """How one task ends."""

    def body() -> tuple[str, Any]:
        future = submit()
        future.wait()
        return future.state.name, future.result(raise_on_failure=False)

    return flow(task_runner=HeteroTaskRunner(max_retries=0))(body)()


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_task_that_a_body_submits_and_does_not_wait_for_is_run_to_its_end(
    tmp_path: Path, how: str
) -> None:
    """And what that one submits."""

    @task
    def last() -> None:
        time.sleep(0.5)
        (tmp_path / "last").touch()

    @task
    def inner() -> None:
        time.sleep(0.5)
        last.submit()

    @task(retries=0)
    def outer() -> str:
        inner.submit()
        if how == "raises":
            raise ValueError("outer")
        return "done"

    state_and_value(outer.submit)
    assert (tmp_path / "last").exists()


def test_future_that_a_body_returns_becomes_a_state_as_in_a_flow() -> None:
    @task
    def outer() -> Any:
        return runner_tasks.square.submit(3)

    name, state = state_and_value(outer.submit)
    assert (name, state.result()) == ("Completed", 9)


def test_futures_in_the_value_of_a_body_become_states() -> None:
    @task
    async def outer() -> Any:
        return {"one": runner_tasks.square.submit(3), "more": runner_tasks.square.map([1, 2])}

    name, value = state_and_value(outer.submit)
    found = (value["one"].result(), [state.result() for state in value["more"]])
    assert (name, found) == ("Completed", (9, [1, 4]))


@pytest.mark.parametrize("how", ["killed", "timed out"])
def test_inner_tasks_of_a_child_that_ends_do_not_stay_running(tmp_path: Path, how: str) -> None:
    """It is the flow's process that tells the API, for nobody else is left."""

    @task(retries=0)
    def sleep() -> None:
        (tmp_path / "runs").touch()
        time.sleep(600)

    @task(retries=0)
    def end() -> None:
        runner_tasks.wait_for_file(tmp_path / "runs")
        EventsWorker.drain_all()  # the flow has heard of both
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    @task(retries=0, timeout_seconds=None if how == "killed" else 2)
    def outer() -> None:
        sleep.submit()
        end.submit()

    def body() -> Any:
        outer.submit().wait()
        return flow_run.id

    flow_run_id = flow(task_runner=HeteroTaskRunner(max_retries=0))(body)()
    runs = task_runs_of(flow_run_id, count=3)
    names = {run.name.rpartition("-")[0]: run.state_name for run in runs}
    assert names["sleep"] == "Crashed"
    assert names["end"] == ("Crashed" if how == "killed" else "Completed")


@flow
def called(file: str) -> None:
    """A flow that a body calls as a function."""
    wait_in_it(file)


@task(retries=0)
def wait_in_it(file: str) -> None:
    Path(file).touch()
    time.sleep(600)


@pytest.mark.parametrize("how", ["killed", "timed out"])
def test_flow_that_a_body_had_called_ends_with_the_child(tmp_path: Path, how: str) -> None:
    """With its tasks; otherwise they would stay `Running`, and hold the slots of limits."""
    file = tmp_path / "runs"

    @task(retries=0, timeout_seconds=None if how == "killed" else 5)
    def outer() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if how == "killed":
            threading.Thread(target=kill_when, args=(file,)).start()
        called(str(file))

    def body() -> Any:
        outer.submit().wait()
        return flow_run.id

    flow_run_id = flow(task_runner=HeteroTaskRunner(max_retries=0))(body)()
    with get_client(sync_client=True) as client:
        stands_for = [run for run in task_runs_of(flow_run_id, count=2) if "called" in run.name]
        parent = FlowRunFilterParentTaskRunId(any_=[run.id for run in stands_for])
        (subflow,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_task_run_id=parent))
    assert (subflow.state_name, stands_for[0].state_name) == ("Crashed", "Crashed")
    assert [run.state_name for run in task_runs_of(subflow.id, count=1)] == ["Crashed"]


def kill_when(file: Path) -> None:
    runner_tasks.wait_for_file(file)
    EventsWorker.drain_all()  # the flow has heard of the task
    os.kill(os.getpid(), signal.SIGKILL)
