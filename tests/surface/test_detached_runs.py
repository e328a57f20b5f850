"""Retries whose work queue or pool a person has deleted while they waited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_heteroflow.attempts.run_again import ENDED
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
OWN, OTHER, QUEUE = "detached-own", "detached-other", "detached-queue"
TIMEOUT = "requests.exceptions.ConnectTimeout: timed out"
COMMAND = f"sh -c '[ $HETEROFLOW_ATTEMPT != 1 ] || (echo {TIMEOUT}; exit 1)'"


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


def schedule(api: Api, run: str, name: str) -> None:
    """As the server does when a slot was not free (`AwaitingConcurrencySlot`), for example."""
    state = {"type": "SCHEDULED", "name": name}
    api.post(f"/flow_runs/{run}/set_state", {"state": state, "force": True})


def test_retry_whose_queue_was_deleted_goes_on_in_the_default_queue_of_its_pool(
    api: Api,
) -> None:
    """Whatever it waits for: its time, a slot of a concurrency limit, an approval (Resume)."""
    queue = api.post(f"/work_pools/{OTHER}/queues", {"name": QUEUE})["name"]
    runs = [submit(api, OTHER, queue=queue, strategy="retry_same_node") for _ in range(3)]
    timed, slot, approved = runs
    assert {api.run(run)["work_queue_name"] for run in runs} == {QUEUE}
    details = {"pause_reschedule": True}
    held = {"type": "PAUSED", "name": "AwaitingApproval", "state_details": details}
    api.post(f"/flow_runs/{approved}/set_state", {"state": held, "force": True})
    api.delete(f"/work_pools/{OTHER}/queues/{QUEUE}")
    schedule(api, slot, "AwaitingConcurrencySlot")
    api.post(f"/flow_runs/{approved}/resume", {})
    assert api.run(approved)["state"]["name"] == "Resuming"
    for run in (timed, slot, approved):
        assert api.wait_end(run).name == "Completed"
        assert [(row["pool"], row["node"], row["status"]) for row in api.rows(run)] == [
            (OTHER, OTHER, "failed"),
            (OTHER, OTHER, "completed"),
        ]


def test_run_that_was_scheduled_again_while_it_ran_goes_on_without_its_queue(api: Api) -> None:
    """Its attempt was ended for that, so that no row says what is planned."""
    queue = api.post(f"/work_pools/{OTHER}/queues", {"name": f"{QUEUE}-2"})["name"]
    run = submit(api, OTHER, queue=queue, strategy="retry_same_node")
    (first, planned) = api.rows(run)
    ended = {**planned, "status": "cancelled", "failure": "TaskCancelled", "decision": ENDED}
    api.delete(f"/work_pools/{OTHER}/queues/{queue}")
    api.rewrite_rows(run, [{**first, "attempt": 1}, ended])
    schedule(api, run, "AwaitingRetry")
    assert api.wait_end(run).name == "Completed"
    assert [(row["attempt"], row["status"]) for row in api.rows(run)] == [
        (1, "failed"),
        (2, "cancelled"),
        (3, "completed"),
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
