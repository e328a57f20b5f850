"""Runs that make no progress stop; hardware that fails is taken out of use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_heteroflow.orchestration.node_values import cordon_variable_name
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL, OTHER = "progress", "progress-other"


@pytest.fixture(scope="module", autouse=True)
def nodes(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    root = tmp_path_factory.mktemp("progress")
    for pool in (POOL, OTHER):
        api.create_pool(pool, "heteroflow-process")
    with (
        Worker(server, root, pool=POOL, node="node-progress", memory_mb=4096, gpus="8192"),
        Worker(server, root, pool=OTHER, node="node-spare", memory_mb=4096, gpus="8192"),
    ):
        yield


def submit(api: Api, points: list[str], file: Path) -> str:
    values = {
        "memory_mb": 512,
        "retry_delay": 0,
        "retry_jitter": 0,
        "max_retries": 8,
        "progress_file": str(file),
    }
    flow = api.deploy("stuck", POOL, name=file.parent.name, job_variables=values)
    return api.submit(flow, {"points": points, "file": str(file)})


def shown(api: Api, run: str) -> object:
    """Data of the run's progress artifact."""
    body = {"artifacts": {"key": {"any_": [f"heteroflow-progress-{run}"]}}}
    (artifact,) = api.post("/artifacts/latest/filter", body)
    return artifact["data"]


def test_third_end_at_the_same_point_stops_the_run(api: Api, tmp_path: Path) -> None:
    run = submit(api, ["42 %"] * 8, tmp_path / "progress")
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert "3 attempts in a row ended at the same point (42 %)" in (end.message or "")
    assert [row["progress"] for row in api.rows(run)] == ["42 %"] * 3


def test_run_that_comes_further_each_time_goes_on(api: Api, tmp_path: Path) -> None:
    """The near miss: as many failures, at other points."""
    run = submit(api, ["10 %", "42 %", "42 %", "60 %"], tmp_path / "progress")
    assert api.wait_end(run).name == "Completed"
    assert [row["progress"] for row in api.rows(run)][:4] == ["10 %", "42 %", "42 %", "60 %"]


def test_progress_without_success_is_at_most_98_percent(api: Api, tmp_path: Path) -> None:
    run = submit(api, ["100 %"] * 8, tmp_path / "progress")
    api.wait_end(run)
    assert shown(api, run) == 98


def test_progress_after_success_is_100_percent(api: Api, tmp_path: Path) -> None:
    run = submit(api, ["50 %"], tmp_path / "progress")
    assert api.wait_end(run).name == "Completed"
    # The flow says itself that it has completed; its worker hears of it a moment later.
    wait_until(lambda: shown(api, run) == 100, what="100 % on the run's page")


def test_gpu_with_a_hardware_fault_is_cordoned_and_the_run_goes_elsewhere(api: Api) -> None:
    flow = api.deploy(
        "xid",
        POOL,
        name="xid",
        job_variables={"memory_mb": 512, "gpu_count": 1, "retry_delay": 0, "retry_jitter": 0},
    )
    run = api.submit(flow, {"on_node": "node-progress"})
    assert api.wait_end(run).name == "Completed"
    assert [(row["failure"], row["node"]) for row in api.rows(run)] == [
        ("GpuHardwareError", "node-progress"),
        (None, "node-spare"),
    ]
    cordon = api.get(f"/variables/name/{cordon_variable_name('node-progress')}")
    assert "memory or link error" in cordon["value"]["gpus"]["declared-node-progress-0"]
