"""A worker that cannot do its work says so in a sentence, never by a traceback."""

from __future__ import annotations

import socket
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import WorkPool

from prefect_heteroflow.attempts.backend import WorkerCannotStart
from prefect_heteroflow.process_worker import HeteroflowProcessWorker
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker


def test_worker_without_docker_names_the_socket_and_the_other_worker_type(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    worker = Worker(
        server,
        tmp_path,
        pool="no-docker",
        node="no-docker",
        worker_type="heteroflow",
        settings={"DOCKER_HOST": f"unix://{tmp_path}/no.sock"},
    )
    worker.start(wait=False)
    assert worker.wait_end() == 1
    assert "No Docker engine answers" in worker.log()
    assert "heteroflow-process" in worker.log()
    assert "Traceback" not in worker.log()


def test_worker_without_nvml_starts_as_a_node_without_gpus(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    with Worker(server, tmp_path, pool="no-nvml", node="no-nvml") as worker:
        assert "Traceback" not in worker.log()
        (variable,) = api.post(
            "/variables/filter", {"variables": {"name": {"like_": "heteroflow_node_no_nvml"}}}
        )
        assert variable["value"]["gpus"] == []


@pytest.mark.parametrize("gpus", ["many", "8192,-1", "0x8192"])
def test_declared_gpus_that_cannot_be_read_are_refused_with_their_text(
    server: PrefectServer, tmp_path: Path, gpus: str
) -> None:
    worker = Worker(server, tmp_path, pool="bad-gpus", node="bad-gpus", gpus=gpus)
    worker.start(wait=False)
    assert worker.wait_end() == 1
    assert gpus in worker.log()
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("pool_type", ["process", "heteroflow"])
def test_worker_of_another_type_than_its_pool_is_refused(
    server: PrefectServer, api: Api, tmp_path: Path, pool_type: str
) -> None:
    """Prefect only warns, and then runs go where they cannot be started."""
    pool = f"other-{pool_type}"
    api.create_pool(pool, pool_type)
    worker = Worker(server, tmp_path, pool=pool, node=pool)
    worker.start(wait=False)
    try:
        assert worker.wait_end() == 1
    finally:
        worker.kill()
    assert (
        f"The worker cannot run. Work pool '{pool}' is of type '{pool_type}' and this worker of"
        f" type 'heteroflow-process': start it with `--type {pool_type}`, or for a pool of its own"
        " type (`prefect work-pool create NAME --type heteroflow-process`)."
    ) in " ".join(worker.log().split())
    assert "Traceback" not in worker.log()


async def test_pool_of_another_type_ends_a_worker_that_could_not_ask_at_its_start() -> None:
    """The API was away then; nothing is published for the pool."""
    worker = HeteroflowProcessWorker(work_pool_name="late")
    worker._work_pool = WorkPool(
        name="late", type="process", default_queue_id=uuid4(), base_job_template={}
    )
    with pytest.raises(WorkerCannotStart, match="'late' is of type 'process'"):
        await worker.publish()


def test_pool_that_does_not_exist_is_created_with_the_type_of_its_worker(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """As with every worker of Prefect."""
    with Worker(server, tmp_path, pool="made-by-worker", node="maker"):
        assert api.get("/work_pools/made-by-worker")["type"] == "heteroflow-process"


def test_second_worker_with_the_same_node_name_is_refused(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    with Worker(server, tmp_path, pool="twins", node="twin"):
        (tmp_path / "second").mkdir()
        second = Worker(server, tmp_path / "second", pool="twins", node="twin")
        second.start(wait=False)
        assert second.wait_end(90) == 1
        assert "twin" in second.log()
        assert "PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME" in second.log()
        assert "Traceback" not in second.log()


def test_worker_that_was_killed_takes_its_node_name_back_at_once(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    worker = Worker(server, tmp_path, pool="phoenix", node="phoenix")
    worker.start()
    worker.kill()
    with worker:
        assert "started!" in worker.log()


def test_worker_without_a_reachable_api_says_that_it_keeps_trying(
    server: PrefectServer, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/api"
        worker = Worker(
            server,
            tmp_path,
            pool="no-api",
            node="no-api",
            settings={"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "0"},
        )
        worker.start(wait=False)
        try:
            from tests.support import wait_until

            wait_until(
                lambda: "does not answer" in worker.log() or "Unable to reach" in worker.log(),
                what="a word about the API",
                timeout_seconds=60,
            )
            assert "Traceback" not in worker.log()
        finally:
            worker.kill()
