"""`heteroflow attempts` on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from logging import getLogger
from uuid import UUID, uuid4

import pytest
from click.testing import Result
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import TaskRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from prefect_heteroflow.cli import app
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.task_attempts import TaskAttempt
from prefect_heteroflow.orchestration.history import write_attempts
from prefect_heteroflow.task_runner.attempt_rows import AttemptRows
from tests.support.prefect_server import PrefectServer


@flow(name="attempts-test")
def nothing() -> None:
    """Only its runs are needed."""


@task(name="attempts-test-task")
def no_task() -> None:
    """Only its task runs are needed."""


@pytest.fixture(autouse=True)
def _settings(server: PrefectServer) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield


def run_command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, list(arguments))


def new_run(*, own_attempts: int = 0, tasks: int = 0) -> UUID:
    async def create() -> UUID:
        async with get_client() as client:
            run = await client.create_flow_run(nothing, name=f"run-{uuid4()}")
            for number in range(tasks):
                await client.create_task_run(no_task, run.id, dynamic_key=str(number))
            if own_attempts:
                rows = [
                    Attempt(attempt=n + 1, flow_run_id=str(run.id), status=AttemptStatus.FAILED)
                    for n in range(own_attempts)
                ]
                await write_attempts(client, run.id, rows, summary=False)
            return run.id

    return asyncio.run(create())


def test_run_without_tasks_points_to_its_own_attempts() -> None:
    """The two commands are easy to mix up."""
    run_id = new_run(own_attempts=1)
    said = run_command("attempts", str(run_id)).stdout.splitlines()[-1]
    hint = f"`heteroflow retries {run_id}` shows those of the run itself."
    assert said == f"No attempts of tasks to show. {hint}"


def test_run_without_its_own_attempts_points_to_those_of_its_tasks() -> None:
    """The same in the other direction."""
    run_id = new_run(tasks=1)
    said = run_command("retries", str(run_id)).stdout.splitlines()[-1]
    assert said == f"`heteroflow attempts {run_id}` shows the attempts of its tasks."


@pytest.mark.parametrize("command", ["attempts", "retries"])
def test_run_without_any_attempt_gets_no_hint(command: str) -> None:
    """The near miss: there is nothing to see elsewhere."""
    assert "`heteroflow" not in run_command(command, str(new_run())).stdout


def test_filter_that_leaves_nothing_gets_no_hint() -> None:
    """Attempts of the run are not what was asked for."""
    run_id = new_run(own_attempts=1)
    assert "`heteroflow" not in run_command("attempts", str(run_id), "--task", "x").stdout


def failed_task(flow_run_id: UUID) -> str:
    """Name of a task run with one failed attempt."""

    async def create() -> TaskRun:
        async with get_client() as client:
            return await client.create_task_run(no_task, flow_run_id, dynamic_key="0")

    run = asyncio.run(create())
    row = Attempt(
        attempt=1,
        flow_run_id=str(flow_run_id),
        status=AttemptStatus.FAILED,
        failure="ResourceLimitExceeded",
        reason="It needs more than any node has.",
        decision="not retried",
    )
    attempt = TaskAttempt(
        task_run_id=str(run.id), name=run.name, row=row, error_type="TASK_EXECUTION_EXCEPTION"
    )
    AttemptRows().write([attempt], flow_run_id, getLogger(__name__))
    return run.name


def test_failed_attempt_is_told_with_its_reason_and_decision() -> None:
    """The table has only the class of the failure."""
    run_id = new_run()
    name = failed_task(run_id)
    assert run_command("attempts", str(run_id)).stdout.splitlines()[-2:] == [
        f" {name} 1: TASK_EXECUTION_EXCEPTION: It needs more than any node has.",
        f" {name} 1: Then: not retried",
    ]
