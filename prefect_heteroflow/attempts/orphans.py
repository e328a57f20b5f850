"""Runs of this node that an earlier process of its worker left half-way.

Containers are found by their labels and watched again; this is for what has no container any
more, or never had one. It is done once, when a worker starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.outcome import went_on
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_PAGE = 200
# A run that core has just proposed to us is Pending without a trace of ours for a moment.
_JUST_NOW = timedelta(seconds=15)


async def settle_orphans(worker: RetryingWorker) -> None:
    """Settle each run of this pool that this node was running and of which nothing is left."""
    runs = await worker.client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(
                type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
            )
        ),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[worker.node.pool])),
        limit=_PAGE,
    )
    for run in runs:
        if worker.has_life(run.id):
            continue
        try:
            await _settle_orphan(worker, run)
        except httpx.HTTPError:
            raise  # the API is away: all of them again, later
        except Exception as error:
            worker.get_flow_run_logger(run).warning("The run cannot be settled: %s", error)


async def _settle_orphan(worker: RetryingWorker, run: FlowRun) -> None:
    history = tuple(await read_attempts(worker.client, transitions.task_id_of(run)))
    last = history[-1] if history else None
    if last is not None and _is_of_this_node(last, run, worker):
        await worker.settle_lost(run, history)
    elif _is_abandoned_submission(run, worker):
        await schedule_again(worker, run, "The worker ended before the attempt was started.")


def _is_of_this_node(row: Attempt, run: FlowRun, worker: RetryingWorker) -> bool:
    return (
        row.status is AttemptStatus.RUNNING
        and row.node == worker.node.name
        and row.flow_run_id == str(run.id)
    )


def _is_abandoned_submission(run: FlowRun, worker: RetryingWorker) -> bool:
    """This worker, by its name, had taken the run and never started it."""
    state = run.state
    return (
        state is not None
        and state.type is StateType.PENDING
        and utc_now() - state.timestamp > _JUST_NOW
        and run.labels.get("prefect.worker.name") == worker.name
    )


async def go_on_after(worker: RetryingWorker, task_id: UUID, run: FlowRun) -> None:
    """Do what was written down when an attempt ended, if its worker died before it was done."""
    state = run.state
    if state is None or state.type not in (StateType.RUNNING, StateType.PENDING):
        return
    history = await read_attempts(worker.client, task_id)
    last = history[-1] if history else None
    if last is None or _was_taken_up(state, history):
        return
    if last.status is AttemptStatus.SCHEDULED and last.pool == worker.node.pool:
        await schedule_again(worker, run, "The worker ended after it had decided.", planned(last))
    elif last.status is AttemptStatus.SCHEDULED:
        # `reconcile` creates the planned attempt run of a front run that is parked.
        await transitions.escalate(worker.client, task_id, f"Goes on in pool {last.pool}.")
        if run.id != task_id:
            ended = transitions.ended_state(transitions.ATTEMPT_FAILED, "Goes on elsewhere.")
            await transitions.finish(worker.client, run.id, ended, force=True)
    elif last.status is AttemptStatus.FAILED and last.ended_task:
        ended = transitions.ended_state(last.ending or "Failed", last.decision or "")
        await transitions.finish(worker.client, run.id, ended, force=True)
        if run.id != task_id:
            await transitions.take_over(worker.client, task_id, ended)


def _was_taken_up(state: State[Any], history: Sequence[Attempt]) -> bool:
    """Another worker is about to start the attempt that was planned."""
    ended = next((row.ended for row in reversed(history) if row.ended), None)
    return went_on(state, since=ended, is_retry=False)


def planned(row: Attempt) -> dict[str, Any]:
    """Job variables of the attempt that a row plans."""
    names = ("memory_mb", "shm_mb", "gpu_count", "gpu_memory_mb")
    return {name: getattr(row, name) for name in names if getattr(row, name) is not None}


async def schedule_again(
    worker: RetryingWorker, run: FlowRun, message: str, variables: dict[str, Any] | None = None
) -> None:
    """Give a run back to its pool, with further job variables if there are any."""
    now = utc_now()
    kept = {**transitions.job_variables_of(run), **(variables or {})}
    if await transitions.await_retry(
        worker.client, run, due=now, message=message, job_variables=kept
    ):
        worker.wake_at(now, run.id)
