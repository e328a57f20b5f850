"""A retry goes on at once where it was, unless the pool or its queue has a say in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "in-place"


@pytest.fixture(scope="module")
def worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    api.create_pool(POOL, "heteroflow-process")
    root = tmp_path_factory.mktemp("in-place")
    with Worker(server, root, pool=POOL, node="node-in-place", memory_mb=4096) as running:
        yield running


def failed_once(api: Api, name: str, **variables: object) -> str:
    """A run that completes in its second attempt."""
    flow = api.deploy(
        "flaky_network", POOL, name=name, job_variables={"memory_mb": 512, **variables}
    )
    return api.submit(flow, {"failures": 1})


def submissions(api: Api, run: str) -> int:
    """How often a worker took the run from its pool."""
    return sum("submitting flow run" in line for line in api.logs(run))


def test_short_delay_on_the_same_node_needs_no_detour_over_the_pool(
    api: Api, worker: Worker
) -> None:
    run = failed_once(api, "short", retry_delay=0, retry_jitter=0)
    assert api.wait_end(run).name == "Completed"
    assert [state.name for state in api.states(run)].count("AwaitingRetry") == 1
    assert submissions(api, run) == 1


def test_long_delay_gives_the_run_back_to_the_pool(api: Api, worker: Worker) -> None:
    run = failed_once(api, "long", retry_delay=4, retry_jitter=0)
    assert api.wait_end(run).name == "Completed"
    assert submissions(api, run) == 2


def test_queue_with_a_concurrency_limit_decides_who_is_next(api: Api, worker: Worker) -> None:
    api.patch(f"/work_pools/{POOL}/queues/default", {"concurrency_limit": 1})
    try:
        run = failed_once(api, "limited", retry_delay=0, retry_jitter=0)
        assert api.wait_end(run).name == "Completed"
        assert submissions(api, run) == 2
    finally:
        api.patch(f"/work_pools/{POOL}/queues/default", {"concurrency_limit": None})


def test_grown_memory_shows_in_the_job_variables_of_the_run(api: Api, worker: Worker) -> None:
    """A busy SQLite may refuse it for as long as the retry can wait: one of three runs shows it."""
    flow = api.deploy("host_oom", POOL, name="grown", job_variables={"memory_mb": 200})

    def shown() -> int:
        run = api.submit(flow, {"need_mb": 250})
        assert api.wait_end(run).name == "Completed"
        return int(api.run(run)["job_variables"]["memory_mb"])

    assert any(shown() == 400 for _ in range(3))


def test_variables_of_the_next_attempt_travel_with_the_state(api: Api, worker: Worker) -> None:
    """The run itself cannot always be changed in time: its PATCH fails on a busy SQLite."""
    flow = api.deploy("host_oom", POOL, name="state", job_variables={"memory_mb": 200})
    run = api.submit(flow, {"need_mb": 250})
    assert api.wait_end(run).name == "Completed"
    states = api.get(f"/flow_run_states/?flow_run_id={run}")
    (waiting,) = [state for state in states if state["name"] == "AwaitingRetry"]
    assert waiting["data"]["heteroflow-job-variables"]["memory_mb"] == 400


def test_edited_job_variables_of_a_run_that_waits_count_for_its_next_attempt(
    api: Api, worker: Worker
) -> None:
    """Also less memory than was planned."""
    run = failed_once(api, "edited", retry_delay=14, retry_jitter=0)
    api.wait_state(run, "AwaitingRetry")
    variables = api.run(run)["job_variables"]
    api.patch(f"/flow_runs/{run}", {"job_variables": {**variables, "memory_mb": 300}})
    assert api.wait_end(run).name == "Completed"
    assert [row["memory_mb"] for row in api.rows(run)] == [512, 300]
