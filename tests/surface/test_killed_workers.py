"""A worker that is killed between any two of its steps: its next process sets everything right."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "killed"


@pytest.fixture
def worker(server: PrefectServer, api: Api, tmp_path: Path) -> Worker:
    api.create_pool(POOL, "heteroflow-process")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    settings = {"TMPDIR": str(scratch)}
    return Worker(
        server, tmp_path, pool=POOL, node="node-killed", memory_mb=4096, settings=settings
    )


def test_child_of_a_run_that_was_moved_meanwhile_is_ended_by_the_next_process(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """Nobody else can: it would run beside the attempt that took its place."""
    notes = tmp_path / "notes"
    worker.start()
    run = api.submit(
        api.deploy("sleepy", POOL, name="moved", job_variables={"memory_mb": 512}),
        {"notes": str(notes)},
    )
    wait_until(lambda: notes.exists(), what="start of the flow", timeout_seconds=60)
    (child,) = psutil.Process(worker.pid).children()
    worker.kill()
    # As another worker leaves it when it has moved the run to a pool of its own.
    api.post(
        f"/flow_runs/{run}/set_state",
        {"state": {"type": "PAUSED", "name": "Escalated"}, "force": True},
    )
    assert child.is_running()
    worker.start()
    try:
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert list((tmp_path / "tmp").glob("heteroflow-*")) == []
    finally:
        worker.stop()
