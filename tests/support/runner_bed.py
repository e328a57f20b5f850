"""This process as the home of flows on a test server, for the tests of the task runner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer


@contextlib.contextmanager
def flows_run_here(server: PrefectServer) -> Iterator[None]:
    """Flows of this process talk to that server.

    Their results are in one folder for all tests: other settings would need another template.
    """
    storage = server.root / "results"
    with temporary_settings(
        {
            PREFECT_API_URL: server.api_url,
            PREFECT_LOCAL_STORAGE_PATH: str(storage),
            PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
        }
    ):
        yield


def task_runs_of(flow_run_id: Any, *, count: int) -> list[TaskRun]:
    """The task runs of a flow run by name, once the server knows that so many have ended."""
    with get_client(sync_client=True) as client:

        def ended() -> list[TaskRun] | None:
            found = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])), limit=200
            )
            final = [run for run in found if run.state is not None and _settled(run)]
            return found if len(final) >= count else None

        found = wait_until(ended, what=f"{count} ended task runs of {flow_run_id}")
    return sorted(found, key=lambda run: (run.name, str(run.id)))


def _settled(run: TaskRun) -> bool:
    assert run.state is not None
    return run.state.is_final() or run.state.name == "NotReady"
