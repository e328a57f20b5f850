"""A flow's own `retries`, which Prefect does within the process, and ours of the whole attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL, LARGE = "own-retries", "own-retries-large"
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
