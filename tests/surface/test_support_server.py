"""What the tests rely on: flows tell the server at hand, and places of other tests are gone."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from prefect import flow, task
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.runtime import flow_run

from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.core.routing import is_declared
from prefect_heteroflow.orchestration.nodes import publish_node, read_cluster
from prefect_heteroflow.orchestration.pool_tags import tag_pool
from tests.support.prefect_server import PrefectServer, connected, forget_places
from tests.support.runner_bed import flows_run_here, task_runs_of


@task
def nothing() -> None:
    """A task run is told to the server by events alone."""


@flow
def one_task() -> str:
    nothing.submit().wait()
    return str(flow_run.id)


def run_on(server: PrefectServer) -> list[str]:
    """The names of the ended task runs that the server knows of."""
    with flows_run_here(server):
        return [run.task_key for run in task_runs_of(one_task(), count=1)]


def test_task_runs_reach_the_second_server_and_the_first_again(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Prefect keeps one connection for events in a process, whatever the settings say."""
    first = run_on(server)
    with PrefectServer(tmp_path) as other:
        second = run_on(other)
    assert first == second == run_on(server)


async def test_declared_pools_and_nodes_can_be_taken_back(server: PrefectServer) -> None:
    async with connected(server) as client:
        await client.create_work_pool(WorkPoolCreate(name="declared", type="process"))
        now = datetime.now(timezone.utc)
        await tag_pool(client, "declared", gpu_memory_mb=1024, now=now)
        node = Node(name="alone", pool="declared", memory_mb=1024)
        await publish_node(client, node, worker_instance_id="1", heartbeat_at=now)
        forget_places(server)
        cluster = await read_cluster(client, now=now, liveness_seconds=90)
        assert cluster.nodes == ()
        assert not any(is_declared(pool) for pool in cluster.pools)
