"""Front runs that wait for an attempt on another pool, when their worker is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.states import Failed

from prefect_heteroflow.attempts.stranded import move_planned
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api, Worker

POOL, OTHER = "front", "front-other"


def row(attempt: int, pool: str, **more: object) -> Attempt:
    values: dict[str, object] = {"flow_run_id": "", "status": AttemptStatus.FAILED, **more}
    return Attempt(attempt=attempt, pool=pool, **values)  # type: ignore[arg-type]


async def test_end_of_the_time_before_a_retry_by_hand_is_not_taken_for_the_planned_attempts(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Attempt 2 ended the task on another pool; run again, attempt 4 is planned there."""
    for pool in (POOL, OTHER):
        api.create_pool(pool, "heteroflow-process")
    flow = api.deploy("sleepy", POOL, name="front", job_variables={"memory_mb": 64})
    run = api.submit(flow, job_variables={"command": "true"})
    async with PrefectClient(server.api_url) as client:
        await transitions.escalate(client, UUID(run), "Goes on elsewhere.")
        front = await client.read_flow_run(UUID(run))
        second = await transitions.create_attempt_run(
            client,
            front,
            attempt=2,
            pool=OTHER,
            job_variables={"command": "true"},
            due=utc_now(),
            message="moved",
        )
        await transitions.finish(client, second.id, Failed(message="long ago"), force=True)
        now = utc_now().isoformat()
        rows = [
            row(1, POOL, flow_run_id=run, ended=now),
            row(2, OTHER, flow_run_id=str(second.id), ended=now, ended_task=True),
            row(3, POOL, flow_run_id=run, ended=now),
            row(4, OTHER, status=AttemptStatus.SCHEDULED, memory_mb=64),
        ]
        await write_attempts(client, run, rows, summary=False)
    with Worker(server, tmp_path, pool=OTHER, node="front-other", memory_mb=4096):
        assert api.wait_end(run).name == "Completed"
    assert [it["status"] for it in api.rows(run)] == ["failed", "failed", "failed", "completed"]


async def test_further_retry_of_an_attempt_run_is_moved_to_the_pool_that_was_chosen(
    server: PrefectServer, api: Api
) -> None:
    """Attempt 3 waits in the run of attempt 2, whose pool has gone away."""
    third = "front-third"
    for pool in (POOL, OTHER, third):
        api.create_pool(pool, "heteroflow-process")
    run = api.submit(api.deploy("sleepy", POOL, name="moved"))
    with flows_run_here(server):
        async with get_client() as client:
            await transitions.escalate(client, UUID(run), "Goes on elsewhere.")
            front = await client.read_flow_run(UUID(run))
            second = await transitions.create_attempt_run(
                client,
                front,
                attempt=2,
                pool=OTHER,
                job_variables={},
                due=utc_now(),
                message="moved",
            )
            waits = row(3, OTHER, flow_run_id=str(second.id), status=AttemptStatus.SCHEDULED)
            rows = [row(1, POOL, flow_run_id=run), row(2, OTHER, flow_run_id=str(second.id)), waits]
            await write_attempts(client, run, rows, summary=False)
            worker: Any = SimpleNamespace(client=client)
            await move_planned(worker, second, waits, third, "No node took runs.")
    assert [it["pool"] for it in api.rows(run)] == [POOL, OTHER, third]
    states = {it["work_pool_name"]: it["state"]["name"] for it in api.subflow_runs(run)}
    assert states == {OTHER: "AttemptFailed", third: "AwaitingRetry"}
    api.cancel(run)
