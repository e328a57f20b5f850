"""`prefect worker start --run-once`: one poll, and a node until what it took has ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

NODE = "once"
# A heartbeat comes about every 15 s.
ONE_HEARTBEAT_MORE = timedelta(seconds=10)


def node(api: Api) -> dict[str, Any]:
    (variable,) = api.post(
        "/variables/filter", {"variables": {"name": {"like_": f"heteroflow_node_{NODE}"}}}
    )
    return dict(variable["value"])


@pytest.fixture
def run(api: Api, tmp_path: Path) -> str:
    api.create_pool("once", "heteroflow-process")
    flow = api.deploy("gated", "once", name="once", job_variables={"memory_mb": 512})
    return api.submit(flow, {"folder": str(tmp_path)})


@pytest.fixture
def worker(server: PrefectServer, tmp_path: Path, run: str) -> Iterator[Worker]:
    worker = Worker(server, tmp_path, pool="once", node=NODE, run_once=True)
    worker.start(wait=False)
    try:
        wait_until((tmp_path / "started-1").exists, what="start of the attempt", timeout_seconds=90)
        yield worker
    finally:
        worker.kill()


def test_worker_that_polls_once_is_a_live_node_until_its_attempt_has_ended(
    api: Api, worker: Worker, run: str, tmp_path: Path
) -> None:
    """Core tears it down right after the poll, and waits for the runs only there."""
    started = datetime.fromisoformat(node(api)["updated"])

    def still_says_that_it_lives() -> bool:
        now = node(api)
        assert not now["stopped"], worker.log()
        return datetime.fromisoformat(now["updated"]) - started > ONE_HEARTBEAT_MORE

    wait_until(still_says_that_it_lives, what="a heartbeat", timeout_seconds=60)
    (tmp_path / "gate-1").touch()
    assert worker.wait_end() == 0
    assert api.run(run)["state"]["name"] == "Completed"
    assert [row["status"] for row in api.rows(run)] == ["completed"]
    assert "This worker stops" not in worker.log()
    assert node(api)["stopped"]


def test_worker_that_polls_once_stops_at_once_when_it_is_told_to(api: Api, worker: Worker) -> None:
    """Not before its teardown: the signal must not meet its only poll."""
    wait_until(lambda: "submitted to infrastructure" in worker.log(), what="the poll's end")
    worker.stop()
    assert "This worker stops. Attempts that run end with this worker" in " ".join(
        worker.log().split()
    )
    assert node(api)["stopped"]
