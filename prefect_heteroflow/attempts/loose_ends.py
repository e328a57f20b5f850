"""Task runs that a dead attempt left as if they still ran."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentTaskRunId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.run_pages import (
    in_parts,
    read_all_runs,
    read_all_task_runs,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_OPEN = [StateType.RUNNING, StateType.PENDING]


async def close_task_runs(client: PrefectClient, flow_run_id: UUID, message: str) -> int:
    """End the task runs of an attempt whose process is gone, so that they hold no limit's slot.

    Those that stand for a subflow run are left alone: that one may go on elsewhere.

    Args:
        client: A client in use.
        flow_run_id: The run that carried the attempt.
        message: Why they ended.

    Returns:
        How many were ended.

    Raises:
        httpx.HTTPError: The API failed.
    """
    left = await read_all_task_runs(
        client,
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_OPEN))
        ),
    )
    of_subflows: set[UUID | None] = set()
    for part in in_parts([run.id for run in left]):
        parent = FlowRunFilterParentTaskRunId(any_=list(part))
        subflows = await read_all_runs(
            client, flow_run_filter=FlowRunFilter(parent_task_run_id=parent)
        )
        of_subflows |= {run.parent_task_run_id for run in subflows}
    closed = [run for run in left if run.id not in of_subflows]
    for run in closed:
        # Forced, as the rules leave the states of task runs to whoever runs them.
        await client.set_task_run_state(run.id, Crashed(message=storable(message)), force=True)
    return len(closed)
