"""What the tests rely on: flows tell the server at hand, places of other tests are gone, and no
request of a test is lost between two answers.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tests.support.workers import Api


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
        await client.create_work_pool(WorkPoolCreate(name="declared", type="heteroflow"))
        now = datetime.now(timezone.utc)
        await tag_pool(client, "declared", gpu_memory_mb=1024, now=now)
        node = Node(name="alone", pool="declared", memory_mb=1024)
        await publish_node(client, node, worker_instance_id="1", heartbeat_at=now)
        forget_places(server)
        cluster = await read_cluster(client, now=now, liveness_seconds=90)
        assert cluster.nodes == ()
        assert not any(is_declared(pool) for pool in cluster.pools)


class AnswersOnce(BaseHTTPRequestHandler):
    """Answers the first request of a connection, keeps it open, and closes it over the second."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.answered = False

    def do_GET(self) -> None:
        if self.answered:
            self.close_connection = True
            return
        self.answered = True
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: it is not what the test looks at."""


def test_a_server_that_closes_an_idle_connection_costs_no_request(tmp_path: Path) -> None:
    """As Prefect's does after five seconds, at the moment at which the next request is sent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), AnswersOnce) as closing:
        thread = threading.Thread(target=closing.serve_forever)
        thread.start()
        api = Api(PrefectServer(tmp_path, port=closing.server_port))
        try:
            assert [api.get("/health") for _ in range(2)] == [{}, {}]
        finally:
            api.close()
            closing.shutdown()
            thread.join()
