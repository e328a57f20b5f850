"""One run that nothing can be done for keeps no worker from seeing to the others."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient, get_client

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import task_bodies, transitions
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
POOL, GONE = "poisoned", "poisoned-gone"


async def planned_in_a_pool_that_is_gone(
    client: PrefectClient, api: Api, *, memory_mb: int, **variables: object
) -> str:
    """An `Escalated` run whose attempt run was deleted, and its pool as well."""
    flow = api.deploy("sleepy", POOL, name=f"poisoned-{uuid4().hex[:6]}")
    run = api.submit(flow, job_variables={"command": "true", "memory_mb": memory_mb, **variables})
    await transitions.escalate(client, UUID(run), "Goes on elsewhere.")
    rows = [
        Attempt(attempt=1, flow_run_id=run, pool=POOL, status=AttemptStatus.FAILED),
        Attempt(
            attempt=2,
            flow_run_id="",
            pool=GONE,
            status=AttemptStatus.SCHEDULED,
            memory_mb=memory_mb,
        ),
    ]
    await write_attempts(client, run, rows, summary=False)
    return run


async def body_of_a_deleted_flow_run(client: PrefectClient) -> str:
    """Ended by a later step of the same look."""
    flow_id = await client.create_flow_from_name(task_bodies.FLOW_NAME)
    labels = {task_bodies.FLOW_RUN_LABEL: str(uuid4())}
    body = {"flow_id": str(flow_id), "labels": labels, "state": {"type": "RUNNING"}}
    response = await client.request("POST", "/flow_runs/", json=body)
    return str(response.json()["id"])


async def test_run_planned_in_a_deleted_pool_ends_no_look_and_ends_with_a_reason_at_last(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    api.create_pool(POOL, "heteroflow-process")
    settings = {f"{PREFIX}LOST_CONTACT_TIMEOUT": "75"}
    with flows_run_here(server):
        async with get_client() as client:
            run = await planned_in_a_pool_that_is_gone(client, api, memory_mb=4096)
            with Worker(
                server, tmp_path, pool=POOL, node="poisoned", memory_mb=512, settings=settings
            ) as worker:
                said = f"Work pool '{GONE}'"
                wait_until(
                    lambda: any(said in line for line in api.logs(run)),
                    what="the warning",
                    timeout_seconds=60,
                )
                body = await body_of_a_deleted_flow_run(client)
                wait_until(
                    lambda: api.run(body)["state"]["type"] in ("CANCELLING", "CANCELLED"),
                    what="the end of the body",
                    timeout_seconds=60,
                )
                end = api.wait_end(run)
                log = worker.log()
    assert end.name == "Failed"
    assert f"pool {GONE}" in end.message
    assert "was deleted" in end.message
    assert "does not answer" not in log
    assert len([line for line in api.logs(run) if said in line]) == 1
    assert [row["status"] for row in api.rows(run)] == ["failed", "cancelled"]


async def test_attempt_planned_in_a_deleted_pool_goes_on_in_another(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    api.create_pool(POOL, "heteroflow-process")
    with flows_run_here(server):
        async with get_client() as client:
            run = await planned_in_a_pool_that_is_gone(client, api, memory_mb=64)
    with Worker(server, tmp_path, pool=POOL, node="poisoned", memory_mb=512):
        assert api.wait_end(run).name == "Completed"
    assert [(row["pool"], row["status"]) for row in api.rows(run)] == [
        (POOL, "failed"),
        (POOL, "completed"),
    ]
