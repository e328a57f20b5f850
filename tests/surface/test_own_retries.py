"""A flow's own `retries`, which Prefect does within the process, and ours of the whole attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL, LARGE, OTHER = "own-retries", "own-retries-large", "own-retries-other"
VARIABLES = {"memory_mb": 512}


@pytest.fixture(scope="module")
def worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    root = tmp_path_factory.mktemp("own-retries")
    api.create_pool(POOL, "heteroflow-process")
    with Worker(server, root, pool=POOL, node="own-retries", memory_mb=4096, gpus="8192") as found:
        yield found


def test_attempt_that_dies_after_a_retry_of_the_flow_itself_is_tried_again_over_the_pool(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """Until then Prefect keeps the run from all workers: it is retried where it is."""
    variables = {**VARIABLES, "retry_delay": 3, "retry_jitter": 0}
    flow = api.deploy("own_retry_before", POOL, name="own-retries", job_variables=variables)
    run = api.submit(flow, {"marker": str(tmp_path / "marker")})
    assert api.wait_end(run, timeout_seconds=90).name == "Completed"
    assert [row["failure"] for row in api.rows(run)] == ["NodeLost", None]


def test_attempt_that_moves_after_a_retry_of_the_flow_itself_is_taken_in_the_other_pool(
    server: PrefectServer, api: Api, worker: Worker, tmp_path: Path
) -> None:
    """Its new run had what makes Prefect keep a run from all workers, and hung for ever."""
    api.create_pool(LARGE, "heteroflow-process")
    variables = {**VARIABLES, "gpu_count": 1}
    flow = api.deploy("own_retry_then_gpu", POOL, name="own-moves", job_variables=variables)
    with Worker(server, tmp_path, pool=LARGE, node="own-large", memory_mb=4096, gpus="81920"):
        run = api.submit(flow, {"marker": str(tmp_path / "marker"), "need_gpu_mb": 40_000})
        assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    assert [row["pool"] for row in api.rows(run)] == [POOL, LARGE]


@pytest.fixture
def other(server: PrefectServer, api: Api, tmp_path: Path) -> Iterator[Worker]:
    """A worker that is to go away."""
    api.create_pool(OTHER, "heteroflow-process")
    made = Worker(server, tmp_path, pool=OTHER, node="own-other", memory_mb=4096)
    made.start()
    yield made
    made.stop()


def waiting(api: Api, pool: str, tmp_path: Path, flow: str = "own_retry_later") -> str:
    """A run whose process waits for a retry of the flow's own; it would succeed."""
    deployed = api.deploy(flow, pool, name="own-waits", job_variables=VARIABLES)
    run = api.submit(deployed, {"marker": str(tmp_path / "marker")})
    api.wait_state(run, "AwaitingRetry", timeout_seconds=60)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    return run


def test_worker_that_was_killed_while_a_flow_waited_for_its_own_retry_settles_it_when_it_is_back(
    api: Api, other: Worker, tmp_path: Path
) -> None:
    """Prefect keeps such a run from all workers, so nobody else would ever start it."""
    run = waiting(api, OTHER, tmp_path)
    other.kill()
    other.start()
    assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    assert [row["failure"] for row in api.rows(run)] == ["NodeLost", None]


def test_flow_that_waited_for_its_own_retry_on_a_node_that_was_stopped_goes_on_elsewhere(
    api: Api, worker: Worker, other: Worker, tmp_path: Path
) -> None:
    run = waiting(api, OTHER, tmp_path)
    other.stop()
    assert api.wait_end(run, timeout_seconds=120).name == "Completed"
    assert [(row["failure"], row["pool"]) for row in api.rows(run)] == [
        ("NodeLost", OTHER),
        (None, POOL),
    ]


def test_flow_that_suspends_itself_after_a_retry_of_its_own_goes_on_after_resume(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """Prefect keeps it from all workers, Resume or not."""
    deployed = api.deploy(
        "own_retry_then_suspend", POOL, name="own-suspends", job_variables=VARIABLES
    )
    run = api.submit(deployed, {"marker": str(tmp_path / "marker")})
    wait_until(
        lambda: [row["status"] for row in api.rows(run)] == ["suspended"],
        what="the end of attempt 1",
        timeout_seconds=60,
    )
    api.post(f"/flow_runs/{run}/resume", {})
    assert api.wait_end(run, timeout_seconds=60).name == "Completed"
