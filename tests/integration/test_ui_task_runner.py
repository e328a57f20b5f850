"""A task of `HeteroTaskRunner` in the real UI: its attempts are found on its own page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks
from tests.support.browser import click_text, screenshot, see, why_no_browser
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of
from tests.support.workers import Api, Worker

PICTURES = os.environ.get("HETEROFLOW_TEST_PICTURES")
PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
LARGE = "ui-runner-large"


@pytest.fixture(scope="module")
def moved_task(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A task whose second attempt ran on a larger GPU of another pool: ids of flow and task run."""
    need(why_no_browser())
    api.create_pool(LARGE, "heteroflow-process")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RETRY_DELAY", "0"), ("RETRY_JITTER", "0"), ("NODE_GPUS", "8192")):
            patch.setenv(f"{PREFIX}{name}", value)
        root = tmp_path_factory.mktemp("ui-large")
        large = Worker(server, root, pool=LARGE, node="ui-large", memory_mb=8192, gpus="81920")
        with large, flows_run_here(server):

            @flow(task_runner=HeteroTaskRunner())
            def pipeline() -> str:
                from prefect.runtime import flow_run

                assert runner_tasks.need_gpu_mb.submit(40000).result() == ("ui-large", 2)
                return str(flow_run.id)

            flow_run_id = pipeline()
            (task_run,) = task_runs_of(flow_run_id, count=1)
            yield flow_run_id, str(task_run.id)


def picture(tmp_path: Path, name: str) -> Path:
    folder = Path(PICTURES) if PICTURES else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


@pytest.mark.parametrize("prefix", ["", "/v2"], ids=["v1", "v2"])
def test_page_of_the_task_run_shows_its_attempts(
    server: PrefectServer, moved_task: tuple[str, str], tmp_path: Path, prefix: str
) -> None:
    _, task_run = moved_task
    text = screenshot(
        f"{server.url}{prefix}/runs/task-run/{task_run}?tab=Artifacts",
        picture(tmp_path, f"task-run-artifacts{prefix.replace('/', '-')}.png"),
        script_steps=[see("Artifacts"), click_text("Artifacts")],
        wait_for_text=[f"heteroflow-attempts-{task_run}", f"heteroflow-summary-{task_run}"],
    )
    assert "Completed" in text


def test_page_of_the_flow_run_lists_the_attempt_elsewhere_as_a_subflow(
    server: PrefectServer, moved_task: tuple[str, str], tmp_path: Path
) -> None:
    flow_run, _ = moved_task
    screenshot(
        f"{server.url}/runs/flow-run/{flow_run}?tab=Subflow+Runs",
        picture(tmp_path, "task-run-subflow.png"),
        script_steps=[see("Subflow Runs"), click_text("Subflow Runs")],
        wait_for_text=["heteroflow-task-body", "Completed"],
    )
