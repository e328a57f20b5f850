"""What a flow process of a worker is told, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "under-worker"


@pytest.fixture(autouse=True)
def pool(api: Api) -> None:
    api.create_pool(POOL, "heteroflow-process")


def test_settings_in_the_workers_prefect_toml_hold_for_the_task_runner_of_its_flows(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Else its node would be two: the worker's, and the one that the flow takes itself for."""
    (tmp_path / "prefect.toml").write_text(
        '[integrations.heteroflow]\nnode_name = "named-by-toml"\n'
    )
    deployment = api.deploy(
        "tell_what_a_task_sees", POOL, name="toml", file="task_flows.py", job_variables={}
    )
    notes = tmp_path / "notes"
    worker = Worker(server, tmp_path, pool=POOL, node=None, folder=tmp_path)
    with worker:
        run = api.submit(deployment, {"notes": str(notes)}, {"memory_mb": 1024})
        assert api.wait_end(run).name == "Completed"
    seen = json.loads(notes.read_text())
    assert seen["node"] == "named-by-toml"


def test_task_that_asks_for_no_memory_fits_into_a_flow_that_has_less_than_the_default(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    deployment = api.deploy("tell_what_a_task_sees", POOL, name="small", file="task_flows.py")
    notes = tmp_path / "notes"
    with Worker(server, tmp_path, pool=POOL, node="under-small"):
        run = api.submit(deployment, {"notes": str(notes)}, {"memory_mb": 1024})
        assert api.wait_end(run).name == "Completed"
    assert json.loads(notes.read_text()) == {"node": "under-small", "memory_mb": 1024}


def test_flow_that_raises_prints_its_traceback_and_no_fault_of_the_logging(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    deployment = api.deploy("application_error", POOL, name="raises")
    with Worker(server, tmp_path, pool=POOL, node="under-raises") as worker:
        run = api.submit(deployment, {"notes": str(tmp_path / "notes")})
        assert api.wait_end(run).name == "Failed"
    assert "Traceback (most recent call last)" in worker.log()
    assert "Logging error" not in worker.log()
    assert "without a flow run id" not in worker.log()


def test_mistyped_job_variable_is_told_once_in_the_log_of_the_run(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """With the first attempt; a variable that is nothing of ours is left alone."""
    deployment = api.deploy("application_error", POOL, name="mistyped")
    twice = {"retry_exceptions": True, "max_retries": 1, "retry_delay": 0, "retry_jitter": 0}
    with Worker(server, tmp_path, pool=POOL, node="under-mistyped"):
        run = api.submit(
            deployment,
            {"notes": str(tmp_path / "notes")},
            {**twice, "max_retrys": 7, "team": "vision"},
        )
        assert api.wait_end(run).name == "Failed"
    assert len(api.rows(run)) == 2
    assert [line for line in api.logs(run) if "is no job variable" in line] == [
        f"max_retrys is no job variable of pool '{POOL}' and is ignored; did you mean max_retries?"
    ]
