"""Runs that only a node of their pool fits that is away just now: the smaller ones leave them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.nodes import publish_node
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api, Worker


async def publish_node_that_is_away(name: str, pool: str, *, stopped: bool = False) -> None:
    async with get_client() as client:
        await publish_node(
            client,
            Node(name=name, pool=pool, memory_mb=4096),
            worker_instance_id="away",
            heartbeat_at=utc_now() - timedelta(hours=1),
            stopped=stopped,
        )


def has_looked_again(api: Api, pool: str) -> None:
    """Its worker has polled since: another run, submitted now, is done."""
    small = api.deploy("host_oom", pool, name="small", job_variables={"memory_mb": 300})
    other = api.submit(small, {"need_mb": 1})
    assert api.wait_end(other).name == "Completed"


@pytest.mark.parametrize(
    ("memory_mb", "need_mb", "rows"),
    [
        (1024, 1, [("own-large", 1024)]),
        (400, 500, [("own-small", 400), ("own-large", 800)]),
    ],
    ids=["too large from the start", "out of memory"],
)
def test_run_waits_for_the_larger_node_of_its_pool_until_that_is_back(
    server: PrefectServer,
    api: Api,
    tmp_path: Path,
    memory_mb: int,
    need_mb: int,
    rows: list[tuple[str, int]],
) -> None:
    pool = f"own-{memory_mb}"
    api.create_pool(pool, "heteroflow-process")
    with flows_run_here(server):
        run_coro_as_sync(publish_node_that_is_away("own-large", pool))
    deployment = api.deploy("host_oom", pool, name=pool, job_variables={"memory_mb": memory_mb})
    with Worker(server, tmp_path, pool=pool, node="own-small", memory_mb=400):
        run = api.submit(deployment, {"need_mb": need_mb})
        waiting = api.wait_state(run, "AwaitingRetry")
        assert "own-large would fit and is not live" in waiting["state"]["message"]
        has_looked_again(api, pool)
        assert api.run(run)["state"]["id"] == waiting["state"]["id"]
        with Worker(server, tmp_path, pool=pool, node="own-large", memory_mb=4096):
            assert api.wait_end(run).name == "Completed"
    assert [(row["node"], row["memory_mb"]) for row in api.rows(run)] == rows


def test_run_out_of_memory_does_not_wait_for_a_node_that_was_stopped(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    pool = "own-stopped"
    api.create_pool(pool, "heteroflow-process")
    with flows_run_here(server):
        run_coro_as_sync(publish_node_that_is_away("own-gone", pool, stopped=True))
    deployment = api.deploy("host_oom", pool, name=pool, job_variables={"memory_mb": 300})
    with Worker(server, tmp_path, pool=pool, node="own-only", memory_mb=400):
        run = api.submit(deployment, {"need_mb": 500})
        assert api.wait_end(run).name == "PermanentFailure"
    first, last = api.rows(run)
    assert "no node that takes runs now has more, so a last run" in first["decision"]
    assert "all that was to be had, as its last run" in last["decision"]


def test_run_that_waits_for_a_node_which_stays_away_goes_to_another_pool_that_has_one(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The smaller node of its pool lives all the time."""
    pool, other = "own-burned", "own-elsewhere"
    for name in (pool, other):
        api.create_pool(name, "heteroflow-process")
    with flows_run_here(server):
        run_coro_as_sync(publish_node_that_is_away("own-ash", pool))
    deployment = api.deploy("host_oom", pool, name=pool, job_variables={"memory_mb": 400})
    quick = {"PREFECT_INTEGRATIONS_HETEROFLOW_LOST_CONTACT_TIMEOUT": "10"}
    with Worker(server, tmp_path, pool=pool, node="own-little", memory_mb=400, settings=quick):
        run = api.submit(deployment, {"need_mb": 500})
        api.wait_state(run, "AwaitingRetry")
        with Worker(server, tmp_path, pool=other, node="own-new", memory_mb=4096):
            assert api.wait_end(run).name == "Completed"
    assert [(row["node"], row["memory_mb"]) for row in api.rows(run)] == [
        ("own-little", 400),
        ("own-new", 800),
    ]
    messages = [state.message for state in api.states(run) if state.name == "Escalated"]
    assert ["of pool own-burned for which it waited took no runs" in text for text in messages] == [
        True
    ]
