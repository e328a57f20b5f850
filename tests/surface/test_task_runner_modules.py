"""Where the code of a task comes from, and how its child gets it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.flows import load_flow_from_entrypoint

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

FLOW_FILE = """
from prefect import flow, task
from prefect_heteroflow import HeteroTaskRunner


class Box:
    def __init__(self, content):
        self.content = content


class BoxError(Exception):
    pass


def doubled(box):
    return Box(2 * box.content)


@task(retries=0)
def work(box, change):
    if box.content < 0:
        raise BoxError("less than nothing")
    return change(box)


@flow(task_runner=HeteroTaskRunner(max_retries=0))
def boxes():
    box = work.submit(Box(2), doubled).result()
    try:
        work.submit(Box(-1), doubled).result()
    except BoxError as error:
        return type(box) is Box, box.content, str(error)
"""


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, whose path is as before afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    with flows_run_here(server):
        yield


def test_flow_file_that_is_loaded_twice_runs_its_tasks_with_all_that_it_defines(
    tmp_path: Path,
) -> None:
    """Prefect gives it a name then under which no other process finds it."""
    file = tmp_path / "boxes_loaded_twice.py"
    file.write_text(FLOW_FILE)
    load_flow_from_entrypoint(f"{file}:boxes")
    boxes: Any = load_flow_from_entrypoint(f"{file}:boxes")
    assert boxes.fn.__module__.startswith("__prefect_loader_")
    assert boxes() == (True, 4, "less than nothing")


def test_module_from_a_folder_that_the_flow_adds_to_its_path_is_found_by_its_children(
    tmp_path: Path,
) -> None:
    (tmp_path / "added_late.py").write_text(
        "from prefect import task\n@task(retries=0)\ndef late():\n    return __name__\n"
    )

    def body() -> tuple[int, str]:
        warm = runner_tasks.square.submit(3).result()
        sys.path.insert(0, str(tmp_path))
        return warm, import_module("added_late").late.submit().result()

    runner = HeteroTaskRunner(max_retries=0, max_workers=1)
    assert flow(task_runner=runner)(body)() == (9, "added_late")
