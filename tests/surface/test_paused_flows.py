"""A flow that waits in its process for Resume (`pause_flow_run`), and whose process is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "paused"


def terminate(worker: Worker, child: int) -> None:
    os.kill(child, signal.SIGTERM)


def lose_worker(worker: Worker, child: int) -> None:
    family = psutil.Process(worker.pid).children(recursive=True)
    worker.kill()
    for process in family:
        process.kill()
    worker.start()


@pytest.mark.parametrize("end", [terminate, lose_worker])
def test_paused_flow_whose_process_is_gone_says_so_and_resume_starts_its_next_attempt(
    server: PrefectServer, api: Api, tmp_path: Path, end: Callable[[Worker, int], None]
) -> None:
    notes = tmp_path / "notes"
    api.create_pool(POOL, "heteroflow-process")
    with Worker(server, tmp_path, pool=POOL, node="paused", memory_mb=1024) as worker:
        flow = api.deploy("pauses", POOL, name="paused", job_variables={"memory_mb": 256})
        run = api.submit(flow, {"notes": str(notes)})
        api.wait_state(run, "Paused")
        wait_until(lambda: api.rows(run), what="row of attempt 1")
        end(worker, int(notes.read_text().split()[1]))
        told = "Its process ended while the flow was paused: Resume starts the next attempt."
        wait_until(
            lambda: api.run(run)["state"]["message"] == told, what="word of it", timeout_seconds=60
        )
        (row,) = api.rows(run)
        assert (row["status"], row["decision"]) == ("suspended", told)
        assert api.run(run)["state"]["name"] == "Paused"
        api.post(f"/flow_runs/{run}/resume", {})
        assert api.wait_end(run).name == "Completed"
    assert [(row["attempt"], row["status"]) for row in api.rows(run)] == [
        (1, "suspended"),
        (2, "completed"),
    ]
