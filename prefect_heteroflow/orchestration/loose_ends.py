"""Runs that a dead process left as if they still ran: tasks, and flows that it had called."""

from __future__ import annotations

from collections.abc import Sequence
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
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.states import Crashed

from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.run_pages import (
    in_parts,
    read_all_runs,
    read_all_task_runs,
)
from prefect_heteroflow.orchestration.sent_once import set_state_once, state_as_json

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

# What is scheduled waits for a retry: its process would have gone on with it.
_OPEN = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED]
_PARENTS = "__parents__"
"""Under this name a task run's inputs tell within which others it was submitted."""


async def close_runs_of_attempt(client: PrefectClient, flow_run_id: UUID, message: str) -> int:
    """End what an attempt had started whose process is gone, so that it holds no limit's slot.

    That is its task runs, and the flows that it had called as functions, with theirs; Prefect
    makes a new run of such a flow when the next attempt calls it. Subflow runs of deployments are
    left alone: they run elsewhere.

    Args:
        client: A client in use.
        flow_run_id: The run that carried the attempt.
        message: Why they ended.

    Returns:
        How many runs were ended.

    Raises:
        httpx.HTTPError: The API failed.
    """
    left = await _open_task_runs(client, flow_run_id)
    return await _close(client, left, storable(message))


async def close_runs_of_body(
    client: PrefectClient, task_run_id: UUID, flow_run_id: UUID, message: str
) -> int:
    """End what the body of a task had started, tasks and flows, when its process is gone.

    A next attempt of the body starts them anew.

    Args:
        client: A client in use.
        task_run_id: Whose body it was.
        flow_run_id: The flow run in which that task runs.
        message: Why they ended.

    Returns:
        How many runs were ended.

    Raises:
        httpx.HTTPError: The API failed.
    """
    left = await _open_task_runs(client, flow_run_id)
    return await _close(client, _within(left, task_run_id), storable(message))


async def _close(client: PrefectClient, left: Sequence[TaskRun], message: str) -> int:
    subflows = await _subflows_of(client, left)
    closed = 0
    for run in left:
        called = subflows.get(run.id)
        if called is not None and called.deployment_id is not None:
            continue
        if called is not None and not (called.state is not None and called.state.is_final()):
            closed += await close_runs_of_attempt(client, called.id, message)
            await set_state_once(
                client, called.id, state_as_json(Crashed(message=message)), force=True
            )
        # Forced, as the rules leave the states of task runs to whoever runs them.
        await client.set_task_run_state(run.id, Crashed(message=message), force=True)
        closed += 1
    return closed


async def _open_task_runs(client: PrefectClient, flow_run_id: UUID) -> list[TaskRun]:
    return await read_all_task_runs(
        client,
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_OPEN))
        ),
    )


async def _subflows_of(
    client: PrefectClient, task_runs: Sequence[TaskRun]
) -> dict[UUID | None, FlowRun]:
    """By the task run that stands for each, the newest one of it."""
    found: dict[UUID | None, FlowRun] = {}
    for part in in_parts([run.id for run in task_runs]):
        parent = FlowRunFilterParentTaskRunId(any_=list(part))
        runs = await read_all_runs(client, flow_run_filter=FlowRunFilter(parent_task_run_id=parent))
        for run in sorted(runs, key=lambda it: (it.expected_start_time or it.created, it.id)):
            found[run.parent_task_run_id] = run
    return found


def _within(task_runs: Sequence[TaskRun], task_run_id: UUID) -> list[TaskRun]:
    """Those that were submitted by the body of that task run, or within one of those."""
    inside, waiting = {task_run_id}, list(task_runs)
    found: list[TaskRun] = []
    while True:
        more = [run for run in waiting if _parents_of(run) & inside]
        if not more:
            return found
        found += more
        inside |= {run.id for run in more}
        waiting = [run for run in waiting if run.id not in inside]


def _parents_of(run: TaskRun) -> set[UUID]:
    inputs = run.task_inputs.get(_PARENTS, [])
    return {given.id for given in inputs if given.input_type == "task_run"}
