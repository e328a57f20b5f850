"""Finds runs that a worker left half-way, and takes them one step further.

Every worker does so now and then; each step is safe to repeat.
"""

from __future__ import annotations

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
from prefect_heteroflow.attempts.orphans import planned
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# The worker that ends an attempt acts at once; whoever comes after it leaves it this much time.
_FOR_THE_WORKER_ITSELF = timedelta(seconds=15)


async def reconcile(worker: RetryingWorker) -> None:
    """Take over ended attempts, create planned ones, and finish cancelled runs."""
    await _finish_cancelling(worker)
    await _go_on_with_escalated(worker)


async def _finish_cancelling(worker: RetryingWorker) -> None:
    runs = await _runs_in(
        worker,
        FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
    )
    for run in runs:
        if run.work_pool_name in worker.pools_looked_after or run.id in worker.lives:
            await handle_cancelling(worker, run.id)


async def _go_on_with_escalated(worker: RetryingWorker) -> None:
    fronts = await _runs_in(
        worker, FlowRunFilterState(name=FlowRunFilterStateName(any_=[transitions.ESCALATED]))
    )
    fronts = [front for front in fronts if _settled_for_a_while(front)]
    newest = _newest_by_task(await _runs_below(worker, [front.id for front in fronts]))
    for front in fronts:
        run = newest.get(str(front.id))
        if run is None:
            await create_planned(worker, front)
        elif run.state is not None and run.state.is_final() and _settled_for_a_while(run):
            if await create_planned(worker, front, newest=number_of(run)):
                continue
            if run.state.name != transitions.ATTEMPT_FAILED:
                await transitions.take_over(worker.client, front.id, run.state)


async def create_planned(worker: RetryingWorker, front: FlowRun, *, newest: int = 0) -> bool:
    """Create the attempt run whose row was written before its worker died.

    Args:
        worker: Whose client is used.
        front: The parked front run.
        newest: Number of its newest attempt run. After a person has run an ended task again, that
            one may be of the time before.

    Returns:
        Whether an attempt was planned that no run carries yet.
    """
    history = await read_attempts(worker.client, front.id)
    row = history[-1] if history else None
    if row is None or row.status is not AttemptStatus.SCHEDULED or row.pool is None:
        return False
    if row.attempt <= newest:
        return False
    await transitions.create_attempt_run(
        worker.client,
        front,
        attempt=row.attempt,
        pool=row.pool,
        job_variables=_planned_variables(front, row),
        due=utc_now(),
        message=f"Attempt {row.attempt} was planned by a worker that went away.",
    )
    return True


def _planned_variables(front: FlowRun, row: Attempt) -> dict[str, Any]:
    kept = {k: v for k, v in (front.job_variables or {}).items() if k != "placement"}
    return {**kept, **planned(row)}


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
