"""Retries whose work queue or pool a person has deleted while they waited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
OWN, OTHER, QUEUE = "detached-own", "detached-other", "detached-queue"
TIMEOUT = "requests.exceptions.ConnectTimeout: timed out"
COMMAND = f"sh -c '[ $HETEROFLOW_ATTEMPT = 2 ] || (echo {TIMEOUT}; exit 1)'"


def worker(server: PrefectServer, root: Path, pool: str) -> Worker:
    settings = {f"{PREFIX}LOST_CONTACT_TIMEOUT": "60"}
    return Worker(server, root, pool=pool, node=pool, memory_mb=512, settings=settings)


@pytest.fixture(scope="module", autouse=True)
def other(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    api.create_pool(OTHER, "heteroflow-process")
    with worker(server, tmp_path_factory.mktemp("other"), OTHER):
        yield


def submit(api: Api, pool: str, *, queue: str | None = None, strategy: str) -> str:
    """A run that waits for its retry longer than workers take runs ahead of their time."""
    deployment = api.deploy("sleepy", pool, name=f"detached-{strategy}-{queue}")
    if queue is not None:
        api.patch(f"/deployments/{deployment}", {"work_queue_name": queue})
    run = api.submit(
        deployment,
        job_variables={
            "memory_mb": 64,
            "command": COMMAND,
            "retry_delay": 25,
            "retry_strategy": strategy,
        },
    )
    api.wait_state(run, "AwaitingRetry")
    return run


def test_retry_whose_queue_was_deleted_goes_on_in_the_default_queue_of_its_pool(
    api: Api,
) -> None:
    queue = api.post(f"/work_pools/{OTHER}/queues", {"name": QUEUE})["name"]
    run = submit(api, OTHER, queue=queue, strategy="retry_same_node")
    assert api.run(run)["work_queue_name"] == QUEUE
    api.delete(f"/work_pools/{OTHER}/queues/{QUEUE}")
    assert api.wait_end(run).name == "Completed"
    assert [(row["pool"], row["node"], row["status"]) for row in api.rows(run)] == [
        (OTHER, OTHER, "failed"),
        (OTHER, OTHER, "completed"),
    ]


def test_retry_whose_pool_was_deleted_goes_on_elsewhere_or_ends_with_the_reason(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It ends if it must stay on its node, which is gone with the pool."""
    api.create_pool(OWN, "heteroflow-process")
    with worker(server, tmp_path, OWN):
        moves = submit(api, OWN, strategy="retry_new_node")
        stays = submit(api, OWN, strategy="retry_same_node")
    api.delete(f"/work_pools/{OWN}")
    assert api.wait_end(moves).name == "Completed"
    assert [(row["pool"], row["status"]) for row in api.rows(moves)] == [
        (OWN, "failed"),
        (OTHER, "completed"),
    ]
    end = api.wait_end(stays)
    assert end.name == "Failed"
    assert f"pool {OWN}, which was deleted" in end.message
    assert [row["status"] for row in api.rows(stays)] == ["failed", "cancelled"]
