"""Finds runs that a worker left half-way, and takes them one step further.

Every worker does so now and then; each step is safe to repeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from prefect_heteroflow.attempts.cancelling import handle_cancelling
from prefect_heteroflow.attempts.deleted_runs import settle_deleted
from prefect_heteroflow.attempts.ended_by_hand import end_with_waiting
from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.rerouting import planned, pool_exists, replan
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# The worker that ends an attempt acts at once; whoever comes after it leaves it this much time.
_FOR_THE_WORKER_ITSELF = timedelta(seconds=15)


async def finish_cancelling(worker: RetryingWorker, guard: Guard) -> None:
    """Finish cancelled runs."""
    runs = await _runs_in(
        worker,
        FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
    )
    for run in runs:
        if run.work_pool_name in worker.pools_looked_after or run.id in worker.lives:
            with guard.over(f"The cancel of run '{run.name}'", worker.get_flow_run_logger(run)):
                await handle_cancelling(worker, run.id)


async def go_on_with_escalated(worker: RetryingWorker, guard: Guard) -> None:
    """Take over ended attempts on other pools, and create planned ones."""
    fronts = await _runs_in(
        worker, FlowRunFilterState(name=FlowRunFilterStateName(any_=[transitions.ESCALATED]))
    )
    fronts = [front for front in fronts if _settled_for_a_while(front)]
    newest = _newest_by_task(await _runs_below(worker, [front.id for front in fronts]))
    for front in fronts:
        with guard.over(f"The next attempt of '{front.name}'", worker.get_flow_run_logger(front)):
            await _go_on_with(worker, front, newest.get(str(front.id)))


async def _go_on_with(worker: RetryingWorker, front: FlowRun, newest: FlowRun | None) -> None:
    state = None if newest is None else newest.state
    if newest is not None and not (state and state.is_final() and _settled_for_a_while(newest)):
        return
    number = 0 if newest is None else number_of(newest)
    if newest is not None and await end_with_waiting(worker, front, newest, number):
        return
    if await create_planned(worker, front, newest=number) or await settle_deleted(worker, front):
        return
    if state is not None and state.name != transitions.ATTEMPT_FAILED:
        await transitions.take_over(worker.client, front.id, state)


async def create_planned(
    worker: RetryingWorker,
    front: FlowRun,
    *,
    newest: int = 0,
    placement: dict[str, Any] | None = None,
    why: str | None = None,
) -> bool:
    """Create the attempt run whose row was written before its worker died.

    Args:
        worker: Whose client is used.
        front: The parked front run.
        newest: Number of its newest attempt run. After a person has run an ended task again, that
            one may be of the time before.
        placement: Which nodes of the pool it may have, where that is known.
        why: Message of its first state, if it is not that a worker went away.

    Returns:
        Whether an attempt was planned that no run carries yet.
    """
    history = await read_attempts(worker.client, front.id)
    row = history[-1] if history else None
    if row is None or row.status is not AttemptStatus.SCHEDULED or row.pool is None:
        return False
    if row.attempt <= newest:
        return False
    if not await pool_exists(worker.client, row.pool):
        replanned = await replan(worker, front, row)
        if replanned is None or replanned.pool is None:
            return True
        row = replanned
    if row.flow_run_id:
        # It waited in a run that was deleted, or that was not scheduled again. Whoever takes the
        # new run would leave the attempt to that other one.
        row = dataclasses.replace(row, flow_run_id="")
        await write_attempts(worker.client, front.id, [row], summary=True)
    await transitions.create_attempt_run(
        worker.client,
        front,
        attempt=row.attempt,
        pool=str(row.pool),
        job_variables=_planned_variables(front, row, placement),
        due=utc_now(),
        message=why or f"Attempt {row.attempt} was planned by a worker that went away.",
    )
    return True


def _planned_variables(
    front: FlowRun, row: Attempt, placement: dict[str, Any] | None
) -> dict[str, Any]:
    kept = {k: v for k, v in (front.job_variables or {}).items() if k != "placement"}
    chosen = {} if placement is None else {"placement": placement}
    return {**kept, **planned(row), **chosen}


async def _runs_in(worker: RetryingWorker, state: FlowRunFilterState) -> list[FlowRun]:
    return await read_all_runs(worker.client, flow_run_filter=FlowRunFilter(state=state))


async def _runs_below(worker: RetryingWorker, front_ids: Sequence[UUID]) -> list[FlowRun]:
    """Subflow runs of these runs, their attempt runs among them."""
    found = []
    for part in in_parts(front_ids):
        parent = FlowRunFilterParentFlowRunId(any_=list(part))
        found += await read_all_runs(
            worker.client, flow_run_filter=FlowRunFilter(parent_flow_run_id=parent)
        )
    return found


def _newest_by_task(runs: Iterable[FlowRun]) -> dict[str, FlowRun]:
    newest: dict[str, FlowRun] = {}
    for run in runs:
        if not transitions.is_attempt_run(run):
            continue
        task = str(run.labels[transitions.TASK_ID_LABEL])
        known = newest.get(task)
        if known is None or number_of(run) > number_of(known):
            newest[task] = run
    return newest


def number_of(run: FlowRun) -> int:
    """Number of the attempt that an attempt run carries; 0 for any other run."""
    return int(str(run.labels.get(transitions.ATTEMPT_LABEL, 0)))


def _settled_for_a_while(run: FlowRun) -> bool:
    state = run.state
    return state is not None and utc_now() - state.timestamp > _FOR_THE_WORKER_ITSELF
