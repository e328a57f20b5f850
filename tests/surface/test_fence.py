"""The engine entry looks whether others have given its attempt up, before it reports an end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Pending, Running, State

from prefect_heteroflow import environment
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.policy import RetryPolicy
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

POOL = "fence"


def engine(server: PrefectServer, run: str, folder: Path) -> subprocess.Popen[bytes]:
    """The entry as a worker starts it for attempt 1."""
    context = environment.AttemptContext(
        policy=RetryPolicy(), resources=Resources(), pool=POOL, node="first"
    )
    (folder / "context.json").write_text(context.to_json())
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_heteroflow.engine"],
        env=server.env(
            PREFECT__FLOW_RUN_ID=run,
            HETEROFLOW_TASK_ID=run,
            HETEROFLOW_ATTEMPT="1",
            HETEROFLOW_CONTEXT_FILE=str(folder / "context.json"),
            HETEROFLOW_REPORT_FILE=str(folder / "report.json"),
        ),
        cwd=folder,
    )


def row(number: int, run: str, **values: Any) -> Attempt:
    return Attempt(attempt=number, flow_run_id=run, pool=POOL, **values)


def lost(run: str) -> Attempt:
    return row(1, run, status=AttemptStatus.FAILED, failure="NodeLost", ended="2026-01-01T00:00:00")


def write(server: PrefectServer, run: str, rows: list[Attempt], state: State[Any] | None) -> None:
    async def on_server() -> None:
        async with get_client() as client:
            await write_attempts(client, run, rows, summary=False)
            if state is not None:
                await client.set_flow_run_state(UUID(run), state, force=True)

    with temporary_settings({PREFECT_API_URL: server.api_url}):
        asyncio.run(on_server())


def end_after(
    server: PrefectServer, api: Api, folder: Path, ends: str, failure: bool, state: Any
) -> list[str]:
    """Names of the states after attempt 1, given up or not, has come to its end."""
    api.create_pool(POOL, "heteroflow-process")
    run = api.submit(api.deploy("gated", POOL, name="fence"), {"folder": str(folder), "ends": ends})
    process = engine(server, run, folder)
    try:
        wait_until(lambda: (folder / "started-1").exists(), what="the flow", timeout_seconds=60)
        rows = [lost(run)] if failure else [row(1, run, status=AttemptStatus.RUNNING)]
        if state is not None:
            rows.append(row(2, run, status=AttemptStatus.SCHEDULED))
        write(server, run, rows, state)
        before = len(api.states(run))
        (folder / "gate-1").touch()
        process.wait(timeout=60)
    finally:
        process.kill()
    return [state.name for state in api.states(run)][before:]


@pytest.mark.parametrize("ends", ["return", "raise"])
@pytest.mark.parametrize("state", [Pending(), Running()], ids=["Pending", "Running"])
def test_end_of_a_lost_attempt_is_not_reported_once_the_run_has_gone_on(
    server: PrefectServer, api: Api, tmp_path: Path, ends: str, state: State[Any]
) -> None:
    assert end_after(server, api, tmp_path, ends, True, state) == []


@pytest.mark.parametrize(("ends", "name"), [("return", "Completed"), ("raise", "Failed")])
def test_end_of_a_lost_attempt_counts_while_nobody_has_started_another(
    server: PrefectServer, api: Api, tmp_path: Path, ends: str, name: str
) -> None:
    waiting = AwaitingRetry(scheduled_time=utc_now())
    assert end_after(server, api, tmp_path, ends, True, waiting) == [name]


@pytest.mark.parametrize(("ends", "name"), [("return", "Completed"), ("raise", "Failed")])
def test_end_of_an_attempt_that_is_not_lost_is_reported(
    server: PrefectServer, api: Api, tmp_path: Path, ends: str, name: str
) -> None:
    assert end_after(server, api, tmp_path, ends, False, None) == [name]
