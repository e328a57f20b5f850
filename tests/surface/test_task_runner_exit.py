"""A flow that ends by what is neither an exception nor a signal lets its tasks end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.runtime import flow_run

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    with flows_run_here(server):
        yield


@task
def write_slowly(started: str, ended: str) -> None:
    Path(started).touch()
    time.sleep(1)
    Path(ended).touch()


class Unusual(BaseException):
    """What only a `BaseException` says."""


def end_of_sibling(folder: Path, leave: Any, expected: type[BaseException], count: int) -> str:
    """State of a task that ran when the flow left like that."""
    seen: list[Any] = []
    started, ended = folder / "started", folder / "ended"

    @flow(task_runner=HeteroTaskRunner(max_workers=2))
    def leaving() -> None:
        seen.append(flow_run.id)
        write_slowly.submit(str(started), str(ended))
        runner_tasks.wait_for_file(started)
        leave()

    with pytest.raises(expected):
        leaving()
    assert ended.exists()
    runs = task_runs_of(seen[0], count=count)
    return next(run.state_name for run in runs if run.name.startswith("write_slowly"))


@pytest.mark.parametrize("error", [SystemExit(0), Unusual("x")], ids=["sys.exit", "unusual"])
def test_tasks_of_a_flow_that_exits_are_completed(tmp_path: Path, error: BaseException) -> None:
    def leave() -> None:
        raise error

    assert end_of_sibling(tmp_path, leave, type(error), 1) == "Completed"


@pytest.mark.parametrize(
    "error",
    [SystemExit("usage"), asyncio.CancelledError("x"), KeyboardInterrupt()],
    ids=["sys.exit", "cancelled", "interrupt"],
)
def test_tasks_of_a_flow_that_ends_by_what_one_body_raised_are_completed(
    tmp_path: Path, error: BaseException
) -> None:
    """Nobody has cancelled the flow: it is the result of a task that says so."""

    @task
    def leaves() -> None:
        raise error

    assert end_of_sibling(tmp_path, lambda: leaves.submit().result(), type(error), 2) == "Completed"
