"""Flows of this process tell the server at hand, whichever server it met before."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.runtime import flow_run

from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of


@task
def nothing() -> None:
    """A task run is told to the server by events alone."""


@flow
def one_task() -> str:
    nothing.submit().wait()
    return str(flow_run.id)


def run_on(server: PrefectServer) -> list[str]:
    """The names of the ended task runs that the server knows of."""
    with flows_run_here(server):
        return [run.task_key for run in task_runs_of(one_task(), count=1)]


def test_task_runs_reach_the_second_server_and_the_first_again(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Prefect keeps one connection for events in a process, whatever the settings say."""
    first = run_on(server)
    with PrefectServer(tmp_path) as other:
        second = run_on(other)
    assert first == second == run_on(server)
