"""A flow's own `retries`, which Prefect does within the process, and ours of the whole attempt."""

from __future__ import annotations

from pathlib import Path

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "own-retries"


def test_attempt_that_dies_after_a_retry_of_the_flow_itself_is_tried_again_over_the_pool(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Until then Prefect keeps the run from all workers: it is retried where it is."""
    variables = {"memory_mb": 512, "retry_delay": 3, "retry_jitter": 0}
    api.create_pool(POOL, "heteroflow-process")
    flow = api.deploy("own_retry_before", POOL, name="own-retries", job_variables=variables)
    with Worker(server, tmp_path, pool=POOL, node="own-retries", memory_mb=4096):
        run = api.submit(flow, {"marker": str(tmp_path / "marker")})
        assert api.wait_end(run, timeout_seconds=90).name == "Completed"
    assert [row["failure"] for row in api.rows(run)] == ["NodeLost", None]
