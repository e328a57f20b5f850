"""Attempts on other pools whose run a person has deleted.

One that was still running is lost, and followed by the policy. One that had ended the task is known
by its row alone, and so the task ends.
"""

from __future__ import annotations

import dataclasses
import random
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.next_attempt import next_job_variables, planned_row
from prefect_heteroflow.attempts.rerouting import planned
from prefect_heteroflow.attempts.restarts import tell_breakers
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, current_series, ending_row
from prefect_heteroflow.core.breaker import Verdict
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.core.policy import Retry, RetryStrategy, Stop
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.attempt_events import emit_attempt_event
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.leases import lease

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.retrying_worker import RetryingWorker

_LEASE_SECONDS = 60.0


async def is_deleted(client: PrefectClient, flow_run_id: UUID) -> bool:
    """Whether there is no such run any more.

    Raises:
        httpx.HTTPError: The API failed.
    """
    try:
        await client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return True
    return False


async def settle_deleted(worker: RetryingWorker, front: FlowRun) -> bool:
    """Go on after an attempt whose run is not there, once nothing of it runs any more.

    The worker that runs it ends it first (`unwanted_attempts`), and is the one that goes on if it
    is live.

    Args:
        worker: Its client and settings are used.
        front: The run that the attempt worked for, `Escalated`.

    Returns:
        Whether the run of its last attempt is not there any more.

    Raises:
        JobValueError: What the run asks for cannot be read.
        httpx.HTTPError: The API failed.
    """
    client = worker.client
    history = await read_attempts(client, front.id)
    if (ended := ending_row(history)) is not None:
        return await _end_by_row(worker, front, history, ended)
    row = history[-1] if history else None
    if row is None or row.status is not AttemptStatus.RUNNING:
        return False
    if row.flow_run_id in ("", str(front.id)):
        return False
    if not await is_deleted(client, UUID(row.flow_run_id)):
        return False
    if worker.lives.has_task(front.id):
        return True  # it is being ended
    if row.node != worker.node.name and await worker.is_looked_after(row.node, row.pool):
        return True
    name = f"deleted_{front.id.hex}_{row.attempt}"
    async with lease(client, name, seconds=_LEASE_SECONDS) as held:
        if held and await read_attempts(client, front.id) == history:
            await _go_on(worker, front, history)
    return True


async def _end_by_row(
    worker: RetryingWorker, front: FlowRun, history: list[Attempt], row: Attempt
) -> bool:
    """The row was written, and the worker died or the run was deleted before the task ended."""
    client, has_run = worker.client, row.flow_run_id not in ("", str(front.id))
    if has_run and not await is_deleted(client, UUID(row.flow_run_id)):
        return False
    async with lease(client, f"ended_{front.id.hex}", seconds=_LEASE_SECONDS) as held:
        now = await client.read_flow_run(front.id)
        if held and transitions.has_stood_still(front, now):
            if has_run:
                worker.get_flow_run_logger(front).warning(
                    "The run of attempt %d was deleted when the attempt had ended: the task ends as"
                    " the attempt did, but what its flow returned is not known any more.",
                    row.attempt,
                )
            await transitions.take_over(client, front.id, transitions.end_by(row))
    return True


async def _go_on(worker: RetryingWorker, front: FlowRun, history: list[Attempt]) -> None:
    *earlier, row = history
    configuration = await worker.configuration_for(front)
    values = configuration.job_values(worker.heteroflow_settings)
    diagnosis = Diagnosis(
        failure=FailureClass.NODE_LOST,
        rule="run-deleted",
        reason=f"The run of attempt {row.attempt} was deleted while it ran.",
    )
    decision = decide(
        diagnosis,
        policy=values.policy,
        resources=dataclasses.replace(values.resources, **planned(row)),
        pool=row.pool or worker.node.pool,
        node=row.node,
        history=current_series(earlier),
        cluster=await worker.read_cluster(fresh=True),
        jitter_fraction=random.random(),
        gpu_memory_mb=row.gpu_memory_mb,
        containers=worker.starts_containers(front),
    )
    failed = dataclasses.replace(
        row,
        status=AttemptStatus.FAILED,
        failure=diagnosis.failure.value,
        rule=diagnosis.rule,
        reason=diagnosis.reason,
        decision=decision.reason,
        ended=utc_now().isoformat(),
    )
    worker.get_flow_run_logger(front).warning("%s %s", diagnosis.reason, decision.reason)
    if isinstance(decision, Stop):
        failed = dataclasses.replace(failed, ended_task=True, ending=decision.ending.value)
        await write_attempts(worker.client, front.id, [failed], summary=True)
        ended = transitions.ended_state(decision.ending.value, decision.reason)
        await transitions.take_over(worker.client, front.id, ended)
    else:
        await _try_again(worker, front, failed, decision, values.policy.retry_strategy)
    # A person did that: it says nothing about job and node.
    await tell_breakers(worker, front.id, row.attempt, Verdict.NONE)
    emit_attempt_event(
        front,
        task_id=front.id,
        attempt=row.attempt,
        failure=diagnosis.failure.value,
        rule=diagnosis.rule,
        verdict="stop" if isinstance(decision, Stop) else "retry",
        node=row.node or worker.node.name,
        pool=row.pool or worker.node.pool,
    )


async def _try_again(
    worker: RetryingWorker,
    front: FlowRun,
    failed: Attempt,
    decision: Retry,
    strategy: RetryStrategy,
) -> None:
    next_row = planned_row(decision, failed.attempt + 1, flow_run_id=None)
    await write_attempts(worker.client, front.id, [failed, next_row], summary=True)
    now = utc_now()
    await transitions.create_attempt_run(
        worker.client,
        front,
        attempt=next_row.attempt,
        pool=decision.place.pool,
        job_variables=next_job_variables(front.job_variables or {}, decision, strategy, now=now),
        due=now + timedelta(seconds=decision.delay_seconds),
        message=decision.reason,
    )
