"""CUDA out-of-memory in containers: moved to the pool with the larger GPU, seen in the real UI."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import click_text, screenshot, see, why_no_browser
from tests.support.docker_engine import DockerEngine
from tests.support.images import BASE_IMAGE, ensure_image, why_not_buildable
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.workers import FLOWS, Api, StartWorker

SMALL, LARGE = "docker-gpu-8gb", "docker-gpu-24gb"
PICTURES = os.environ.get("HETEROFLOW_TEST_PICTURES")


@pytest.fixture(scope="module")
def nodes(docker_worker: StartWorker, gpu_engine: DockerEngine) -> Iterator[None]:
    """Two nodes, each with a worker and declared GPUs, on one engine that takes GPU requests."""
    need(why_not_buildable(BASE_IMAGE))
    ensure_image(gpu_engine.client(), BASE_IMAGE)
    with contextlib.ExitStack() as stack:
        for pool, gpu_mb in ((SMALL, 8192), (LARGE, 24576)):
            started = docker_worker(
                gpu_engine, pool=pool, node=f"node-{pool}", memory_mb=8192, gpus=str(gpu_mb)
            )
            stack.enter_context(started)
        yield


@pytest.fixture(scope="module")
def moved_run(api: Api, nodes: None) -> str:
    """A run whose first attempt ran out of GPU memory on the small pool."""
    flow = api.deploy(
        "gpu_oom",
        SMALL,
        name="docker-gpu",
        job_variables={
            "image": BASE_IMAGE,
            "memory_mb": 1024,
            "gpu_count": 1,
            "volumes": [f"{FLOWS}:{FLOWS}:ro"],
        },
    )
    run = api.submit(flow, {"need_gpu_mb": 20000})
    api.wait_end(run)
    return run


def test_container_out_of_gpu_memory_completes_on_the_larger_pool(api: Api, moved_run: str) -> None:
    assert api.run(moved_run)["state"]["type"] == "COMPLETED"
    assert [(r["pool"], r["failure"], r["gpu_memory_mb"]) for r in api.rows(moved_run)] == [
        (SMALL, "GpuOutOfMemory", 8192),
        (LARGE, None, 24576),
    ]


def test_front_run_is_not_final_before_its_end(api: Api, moved_run: str) -> None:
    states = api.states(moved_run)
    assert "Escalated" in [state.name for state in states]
    assert [state.name for state in states if state.is_final] == ["Completed"]


def picture(tmp_path: Path, name: str) -> Path:
    folder = Path(PICTURES) if PICTURES else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


@pytest.mark.parametrize("prefix", ["", "/v2"], ids=["v1", "v2"])
def test_page_of_the_run_shows_its_attempts_as_artifacts(
    server: PrefectServer, moved_run: str, tmp_path: Path, prefix: str
) -> None:
    need(why_no_browser())
    text = screenshot(
        f"{server.url}{prefix}/runs/flow-run/{moved_run}?tab=Artifacts",
        picture(tmp_path, f"run-artifacts{prefix.replace('/', '-')}.png"),
        script_steps=[see("Artifacts"), click_text("Artifacts")],
        wait_for_text=[f"heteroflow-attempts-{moved_run}", f"heteroflow-summary-{moved_run}"],
    )
    assert "Completed" in text


def test_page_of_the_run_lists_the_attempt_as_its_subflow(
    server: PrefectServer, moved_run: str, tmp_path: Path
) -> None:
    need(why_no_browser())
    text = screenshot(
        f"{server.url}/runs/flow-run/{moved_run}?tab=Subflow+Runs",
        picture(tmp_path, "run-subflows.png"),
        script_steps=[see("Subflow Runs"), click_text("Subflow Runs")],
        wait_for_text=["-attempt-2"],
    )
    assert "Completed" in text


def test_page_of_the_table_shows_where_with_what_and_why(
    server: PrefectServer, api: Api, moved_run: str, tmp_path: Path
) -> None:
    need(why_no_browser())
    (table,) = api.post(
        "/artifacts/filter",
        {"artifacts": {"key": {"any_": [f"heteroflow-attempts-{moved_run}"]}}},
    )
    text = screenshot(
        f"{server.url}/artifacts/artifact/{table['id']}",
        picture(tmp_path, "attempts-table.png"),
        wait_for_text=["GpuOutOfMemory", SMALL, LARGE],
        size=(2200, 900),
    )
    assert "24576" in text
