"""Ends a cancelled run wherever it is: running here, waiting for a retry, or on another pool."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger
from prefect.states import Cancelling

from prefect_heteroflow.core.attempts import AttemptStatus
from prefect_heteroflow.core.breaker import Verdict
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.breaker_store import BreakerBusy, note_outcome
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.run_pages import read_all_runs

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.retrying_worker import RetryingWorker

logger = get_logger("heteroflow.cancelling")
_MESSAGE = "Cancelled by a user; nothing is retried."


async def handle_cancelling(worker: RetryingWorker, flow_run_id: UUID) -> None:
    """React to a run's `Cancelling`. Safe to repeat, and to be done by several workers."""
    if await worker.lives.cancel(flow_run_id):
        return
    client = worker.client
    try:
        run = await client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return
    if run.state is None or run.state.type is not StateType.CANCELLING:
        return
    if run.work_pool_name not in worker.pools_looked_after and not transitions.is_attempt_run(run):
        # Another pool's worker looks after it, unless we carry its attempt.
        attempts = await running_attempt_runs(client, run.id)
        if not any(attempt.id in worker.lives for attempt in attempts):
            return
    await _end_waiting_run(worker, run)


async def _end_waiting_run(worker: RetryingWorker, run: FlowRun) -> None:
    client = worker.client
    task_id = transitions.task_id_of(run)
    history = await read_attempts(client, task_id)
    last = history[-1] if history else None
    if last is not None and last.status is AttemptStatus.RUNNING:
        elsewhere = last.flow_run_id != str(run.id)
        is_others = not elsewhere and last.node != worker.node.name
        if is_others and await worker.is_looked_after(last.node, run.work_pool_name):
            return  # its own worker hears of it too and ends the process first
        if not elsewhere and last.node == worker.node.name:
            await worker.end_left_attempt(run.id)  # an earlier process of this worker had it
    for attempt_run in await running_attempt_runs(client, run.id):
        await client.set_flow_run_state(attempt_run.id, Cancelling(message=_MESSAGE))
        await handle_cancelling(worker, attempt_run.id)
    if await running_attempt_runs(client, run.id):
        return  # the worker that ends the attempt ends this run as well
    await close_cancelled(client, task_id, _MESSAGE, run.id)


async def close_cancelled(
    client: PrefectClient, task_id: UUID, message: str, *further_runs: UUID
) -> None:
    """Close the open row of a task and end its front run, and further runs, as `Cancelled`.

    An attempt that was the trial of a breaker gives its place to another.
    """
    history = await read_attempts(client, task_id)
    last = history[-1] if history else None
    if last is not None and last.status in (AttemptStatus.SCHEDULED, AttemptStatus.RUNNING):
        await _free_trial(client, task_id, last.attempt)
        row = dataclasses.replace(
            last,
            flow_run_id=last.flow_run_id or str(task_id),
            status=AttemptStatus.CANCELLED,
            failure="TaskCancelled",
            ended_task=True,
            decision=message,
            ended=utc_now().isoformat(),
        )
        await write_attempts(client, task_id, [row], summary=True)
    for run_id in {task_id, *further_runs}:
        await transitions.cancel_for_good(client, run_id, message)


async def _free_trial(client: PrefectClient, task_id: UUID, attempt: int) -> None:
    if attempt < 2:
        return  # first attempts are nobody's trial
    holder = f"{task_id}:{attempt}"
    try:
        await note_outcome(client, holder=holder, verdict=Verdict.NONE, now=utc_now())
    except BreakerBusy as error:
        logger.warning("%s", error)  # the trial's timeout frees it


async def running_attempt_runs(client: PrefectClient, front_id: UUID) -> list[FlowRun]:
    """Attempt runs of a front run that have not ended."""
    # A flow may have any number of subflow runs of its own beside them.
    runs = await read_all_runs(
        client,
        flow_run_filter=FlowRunFilter(
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[front_id])
        ),
    )
    return [
        run
        for run in runs
        if transitions.is_attempt_run(run) and run.state is not None and not run.state.is_final()
    ]
