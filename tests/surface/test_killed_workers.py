"""A worker that is killed between any two of its steps: its next process sets everything right."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.processes import alive
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


def test_child_ends_with_its_killed_worker_and_its_folders_at_the_next_start(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """It could write nothing any more, and would run beside the attempt that takes its place."""
    notes = tmp_path / "notes"
    worker.start()
    run = api.submit(
        api.deploy("sleepy", POOL, name="moved", job_variables={"memory_mb": 512}),
        {"notes": str(notes)},
    )
    wait_until(notes.exists, what="start of the flow", timeout_seconds=60)
    (child,) = psutil.Process(worker.pid).children()
    worker.kill()
    wait_until(lambda: not alive(child.pid), what="end of the child")
    # As another worker leaves it when it has moved the run to a pool of its own.
    api.post(
        f"/flow_runs/{run}/set_state",
        {"state": {"type": "PAUSED", "name": "Escalated"}, "force": True},
    )
    worker.start()
    try:
        assert list((tmp_path / "tmp").glob("heteroflow-*")) == []
    finally:
        worker.stop()


def killed_in_its_first_attempt(
    api: Api, worker: Worker, notes: Path, name: str, **variables: object
) -> str:
    """A run whose worker is killed, and its process with it, while attempt 1 runs."""
    worker.start()
    flow = api.deploy("sleepy", POOL, name=name, job_variables={"memory_mb": 512, **variables})
    run = api.submit(flow, {"notes": str(notes), "seconds": 4.0})
    wait_until(notes.exists, what="start of the flow", timeout_seconds=60)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    family = psutil.Process(worker.pid).children(recursive=True)
    worker.kill()
    for process in family:
        process.kill()
    return run


def goes_on_once(api: Api, worker: Worker, run: str, *, attempts: int) -> list[dict[str, object]]:
    worker.start()
    try:
        assert api.wait_end(run).name == "Completed"
    finally:
        worker.stop()
    rows = api.rows(run)
    assert [row["attempt"] for row in rows] == list(range(1, attempts + 1))
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]
    return rows


def test_attempt_that_ended_with_its_worker_says_so(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """`Contact was lost and nothing tells why` left its reader alone."""
    notes = tmp_path / "notes"
    run = killed_in_its_first_attempt(api, worker, notes, "told", infrastructure_retries=0)
    worker.start()
    try:
        assert api.wait_end(run).name == "Crashed"
    finally:
        worker.stop()
    (row,) = api.rows(run)
    assert (row["failure"], row["reason"]) == (
        "NodeLost",
        "The worker of node node-killed ended while the attempt ran, and its processes with it.",
    )


def test_killed_between_row_and_state_the_planned_attempt_follows(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """The rows say that attempt 2 follows with more memory; the run is still `Running`."""
    run = killed_in_its_first_attempt(api, worker, tmp_path / "notes", "decided")
    (first,) = api.rows(run)
    failed = {**first, "status": "failed", "failure": "CpuOutOfMemory", "ended": now()}
    planned = {**first, "attempt": 2, "status": "scheduled", "memory_mb": 1024, "started": None}
    api.rewrite_rows(run, [failed, planned])
    rows = goes_on_once(api, worker, run, attempts=2)
    assert [row["memory_mb"] for row in rows] == [512, 1024]


def test_killed_between_state_and_row_the_attempt_gets_its_row_and_is_followed(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """The run is `Running` and no row says that an attempt was started."""
    run = killed_in_its_first_attempt(api, worker, tmp_path / "notes", "unwritten")
    api.rewrite_rows(run, [])
    first, second = goes_on_once(api, worker, run, attempts=2)
    assert (first["failure"], first["node"]) == ("NodeLost", "node-killed")
    assert second["status"] == "completed"


def test_killed_while_it_took_the_run_the_planned_memory_is_kept(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """It had just set `Pending`, and with it the state that carried the variables is gone."""
    run = killed_in_its_first_attempt(api, worker, tmp_path / "notes", "taken")
    (first,) = api.rows(run)
    failed = {**first, "status": "failed", "failure": "CpuOutOfMemory", "ended": now()}
    planned = {**first, "attempt": 2, "status": "scheduled", "memory_mb": 1024, "started": None}
    api.rewrite_rows(run, [failed, planned])
    api.post(f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    rows = goes_on_once(api, worker, run, attempts=2)
    assert [row["memory_mb"] for row in rows] == [512, 1024]


def test_killed_while_its_flow_reported_its_own_end_the_row_is_closed(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    worker.start()
    flow = api.deploy("sleepy", POOL, name="own-end", job_variables={"memory_mb": 512})
    run = api.submit(flow, {"notes": str(notes), "seconds": 4.0})
    wait_until(notes.exists, what="start of the flow", timeout_seconds=60)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    worker.kill()
    api.post(f"/flow_runs/{run}/set_state", {"state": {"type": "COMPLETED"}, "force": True})
    (row,) = goes_on_once(api, worker, run, attempts=1)
    assert (row["status"], row["failure"]) == ("completed", None)


def test_killed_after_the_row_of_a_plain_job_that_ended_well_the_run_completes(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    """It is not run again."""
    worker.start()
    variables = {"command": f"sh -c 'echo x >> {tmp_path}/runs; sleep 600'", "memory_mb": 64}
    run = api.submit(api.deploy("sleepy", POOL, name="job"), job_variables=variables)
    api.wait_state(run, "Running")
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    worker.kill()
    (row,) = api.rows(run)
    api.rewrite_rows(run, [{**row, "status": "completed", "ended_task": True, "ended": now()}])
    goes_on_once(api, worker, run, attempts=1)
    assert (tmp_path / "runs").read_text() == "x\n"


def now() -> str:
    return datetime.now(timezone.utc).isoformat()
