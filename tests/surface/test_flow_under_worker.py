"""What a flow process of a worker is told, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
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


def fill_in_a_task(api: Api, tmp_path: Path, **parameters: Any) -> tuple[str, Path]:
    """A flow run of 600 MB with one task that fills memory: its id, and where the task notes."""
    deployment = api.deploy(
        "tell_what_a_filling_task_sees",
        POOL,
        name="fills",
        file="task_flows.py",
        job_variables={"memory_mb": 600, "max_retries": 2},
    )
    notes = tmp_path / "notes"
    return api.submit(deployment, {"notes": str(notes), **parameters}), notes


def task_rows(api: Api, run: str) -> list[dict[str, Any]]:
    """The attempts of the one task of a flow run."""
    (task_run,) = api.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return api.rows(task_run["id"])


def test_task_that_outgrows_its_flow_run_runs_beside_it_on_the_same_node(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The worker declares what the node has; the flow run may use but 600 MB of it."""
    prefix = "PREFECT_INTEGRATIONS_HETEROFLOW_RETRY_"
    soon = {f"{prefix}DELAY": "0", f"{prefix}JITTER": "0"}
    with Worker(server, tmp_path, pool=POOL, node="under-4000", memory_mb=4000, settings=soon):
        run, notes = fill_in_a_task(api, tmp_path, megabytes=700)
        assert api.wait_end(run).name == "Completed"
    assert json.loads(notes.read_text()) == {"node": "under-4000", "memory_mb": 1200}
    rows = task_rows(api, run)
    assert [(row["memory_mb"], row["failure"], row["node"]) for row in rows] == [
        (600, "CpuOutOfMemory", "under-4000"),
        (1200, None, "under-4000"),
    ]
    assert "as a run of its own: this flow run has 600 MB of memory" in rows[0]["decision"]


def test_task_that_asks_for_more_than_its_flow_run_has_runs_beside_it_on_the_same_node(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Nothing is declared: the node has what the machine has."""
    with Worker(server, tmp_path, pool=POOL, node="under-probed"):
        run, notes = fill_in_a_task(api, tmp_path, megabytes=700, memory_mb=1200)
        assert api.wait_end(run).name == "Completed"
    assert json.loads(notes.read_text()) == {"node": "under-probed", "memory_mb": 1200}
    assert not [line for line in api.logs(run) if "which no node has" in line]


def test_task_beside_its_flow_run_that_waits_for_the_slot_of_that_run_says_so(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    with Worker(server, tmp_path, pool=POOL, node="under-limit-1", limit=1):
        run, _ = fill_in_a_task(api, tmp_path, megabytes=1, memory_mb=1200)
        wait_until(
            lambda: any("raise `--limit` of the worker" in line for line in api.logs(run)),
            what="why the task waits",
            timeout_seconds=90,
        )
        api.cancel(run)
        assert api.wait_end(run).name == "Cancelled"


def test_task_that_fits_no_node_is_told_what_its_flow_run_has(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    with Worker(server, tmp_path, pool=POOL, node="under-2000", memory_mb=2000):
        run, _ = fill_in_a_task(api, tmp_path, megabytes=1, memory_mb=2500)
        state = api.wait_end(run)
    assert state.name == "Failed"
    (row,) = task_rows(api, run)
    assert "it requires memory_mb=2500, which no node has" in row["reason"]
    assert "this flow run has 600 MB of memory" in row["reason"]


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
    rows = api.rows(run)
    assert len(rows) == 2
    # Its end is the flow's own, and the row says all the same why nothing followed.
    assert rows[-1]["decision"].endswith("; the only retry of max_retries is used")
    assert [line for line in api.logs(run) if "is no job variable" in line] == [
        f"max_retrys is no job variable of pool '{POOL}' and is ignored; did you mean max_retries?"
    ]


def fill_in_company(api: Api, folder: Path, **parameters: Any) -> str:
    """A flow run of 600 MB in which one task fills memory beside another; its id."""
    deployment = api.deploy(
        "fill_in_company",
        POOL,
        name="company",
        file="task_flows.py",
        job_variables={"memory_mb": 600, "max_retries": 0, "retry_delay": 2, "retry_jitter": 0},
    )
    folder.mkdir()
    return api.submit(deployment, {"folder": str(folder), **parameters})


def rows_of_filling_task(api: Api, run: str) -> list[dict[str, Any]]:
    found = api.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    (task_run,) = [one for one in found if one["name"].startswith("fill_beside")]
    return api.rows(task_run["id"])


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/memory").exists(),
    reason="only below cgroup v1 do bodies and the flow's process share the flow run's limit here",
)
def test_task_that_is_killed_for_what_others_use_goes_on_beside_its_flow(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It had more of its own to use: the flow run's memory was used up."""
    with Worker(server, tmp_path, pool=POOL, node="under-shared", memory_mb=4000):
        run = fill_in_company(
            api, tmp_path / "shared", holding_mb=150, megabytes=330, memory_mb=400, max_retries=1
        )
        assert api.wait_end(run).name == "Completed"
    first, second = rows_of_filling_task(api, run)
    assert first["failure"] == "CpuOutOfMemory"
    assert "of its own limit of 400 MB: the 600 MB that the flow run" in first["reason"]
    assert first["peak_memory_mb"] < 380
    assert "retry 1 of 1 in 2 s, as a run of its own" in first["decision"]
    assert (second["memory_mb"], second["failure"]) == (800, None)


def test_delay_that_a_run_gives_as_job_variable_holds_for_its_tasks(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The worker's setting is another."""
    settings = {"PREFECT_INTEGRATIONS_HETEROFLOW_RETRY_DELAY": "77"}
    deployment = api.deploy(
        "tell_of_a_task_that_dies",
        POOL,
        name="delays",
        file="task_flows.py",
        job_variables={"retry_delay": 1, "retry_jitter": 0},
    )
    with Worker(server, tmp_path, pool=POOL, node="under-delays", settings=settings):
        run = api.submit(deployment)
        assert api.wait_end(run).name == "Completed"
    assert [line for line in api.logs(run) if "retry 1 of 3 in 1 s" in line]


def test_line_about_an_attempt_of_a_task_says_which_task_it_is(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """`prefect flow-run logs` shows the text alone."""
    deployment = api.deploy(
        "tell_of_a_task_that_dies",
        POOL,
        name="names",
        file="task_flows.py",
        job_variables={"retry_delay": 0, "retry_jitter": 0},
    )
    with Worker(server, tmp_path, pool=POOL, node="under-names"):
        run = api.submit(deployment)
        assert api.wait_end(run).name == "Completed"
    assert [line for line in api.logs(run) if line.startswith("Task run 'dies-once', attempt 1: ")]
