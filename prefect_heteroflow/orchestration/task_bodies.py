"""Runs that carry the body of a task of another flow run: whose they are, and who waits for them.

The process that waits gives a sign of life: a Variable whose token changes with each beat. It has
the form of a lease, so that workers remove it when that process is gone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.leases import LEASE_PREFIX
from prefect_heteroflow.orchestration.run_pages import read_all_runs
from prefect_heteroflow.orchestration.variables import delete_variable, write_variable

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

FLOW_NAME = "heteroflow-task-body"
TASK_RUN_LABEL = "heteroflow.task-run-id"
FLOW_RUN_LABEL = "heteroflow.waiting-flow-run-id"
RUNNER_LABEL = "heteroflow.task-runner"
"""Name of the Variable in which the waiting process gives its sign of life."""
BEAT_SECONDS = 10.0
SILENT = "The process that waits for this task has given no sign of life"
"""How the message of a run begins that was ended for that reason."""

_KEPT = timedelta(hours=1)
_OPEN = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING]
_ENDED_FROM_OUTSIDE = (StateType.CANCELLED, StateType.CANCELLING, StateType.CRASHED)


def sign_name(runner: UUID) -> str:
    """Name of the Variable of a task runner."""
    return f"{LEASE_PREFIX}runner_{runner.hex}"


async def give_sign(client: PrefectClient, name: str, beat: int) -> None:
    """Say that the process lives.

    Raises:
        httpx.HTTPError: The API failed.
    """
    value = {"token": str(beat), "until": (utc_now() + _KEPT).isoformat()}
    await write_variable(client, name, value)


async def remove_sign(client: PrefectClient, name: str) -> None:
    """Nobody waits any more, and all is in order.

    Raises:
        httpx.HTTPError: The API failed.
    """
    await delete_variable(client, name)


async def read_sign(client: PrefectClient, name: str) -> str | None:
    """The token of the last beat, `None` if there is no such Variable.

    Raises:
        httpx.HTTPError: The API failed.
    """
    variable = await client.read_variable_by_name(name)
    value: Any = None if variable is None else variable.value
    return str(value.get("token")) if isinstance(value, dict) else None


async def read_open(client: PrefectClient) -> list[FlowRun]:
    """Runs of bodies that have not ended, on any pool.

    Raises:
        httpx.HTTPError: The API failed.
    """
    return await read_all_runs(
        client,
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW_NAME])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OPEN))
        ),
    )


async def why_unwanted(client: PrefectClient, run: FlowRun) -> str | None:
    """Why the flow run that the body is for needs it no more, `None` if it may.

    `Completed` and `Failed` say nothing: a flow's process waits for its tasks after that too.

    Raises:
        httpx.HTTPError: The API failed.
    """
    label = run.labels.get(FLOW_RUN_LABEL)
    if label is None:
        return None
    try:
        waiting = await client.read_flow_run(UUID(str(label)))
    except ObjectNotFound:
        return "The flow run that waits for this task was deleted."
    state = waiting.state
    if state is None or state.type not in _ENDED_FROM_OUTSIDE:
        return None
    return f"Flow run '{waiting.name}', which waits for this task, is {state.name}."


async def end(client: PrefectClient, run: FlowRun, why: str) -> None:
    """Cancel the run of a body; the worker that runs it ends its process.

    Raises:
        httpx.HTTPError: The API failed.
    """
    await client.set_flow_run_state(run.id, Cancelling(message=storable(why)))
