"""Asks the circuit breakers before a retry, and tells them how it ended."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.attempts.held import approve_resumed
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.breaker import Held, Verdict, retry_keys
from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.policy import Retry
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.orchestration.approval import Hold, hold_of, waiting_message
from prefect_heteroflow.orchestration.breaker_store import (
    BreakerBusy,
    admit_retry,
    note_outcome,
    read_holding,
)
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.held_fronts import say_goes_on
from prefect_heteroflow.orchestration.transitions import is_attempt_run

if TYPE_CHECKING:
    from prefect_heteroflow.job_configuration import RetryConfiguration
    from prefect_heteroflow.retrying_worker import RetryingWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A retry that a breaker holds."""

    hold: Hold
    reason: str
    """Why the attempt before failed, and why the breaker is open."""
    message: str
    """Of the run that waits: the reason, what holds it, and how it is let go on."""


async def ask_breakers(
    worker: RetryingWorker,
    *,
    flow_run: FlowRun,
    task_id: UUID,
    row: Attempt,
    resources: Resources,
    diagnosis: Diagnosis,
    decision: Retry,
    job: str | None,
) -> Waiting | None:
    """Whether a retry has to wait; `None` if it may go on.

    Args:
        worker: Its client and settings are used.
        flow_run: The run of the failed attempt.
        task_id: Its front run.
        row: The failed attempt.
        resources: What it had.
        diagnosis: Why it failed.
        decision: What follows.
        job: Tells jobs apart that share a deployment (see `job_digest`).

    Raises:
        httpx.HTTPError: The API failed.
    """
    keys = retry_keys(
        deployment=None if flow_run.deployment_id is None else str(flow_run.deployment_id),
        failure=diagnosis.failure,
        failed_node=row.node,
        next_node=decision.place.node,
        same_resources=decision.resources == resources,
        job=job,
    )
    if not keys:
        return None
    holder = holder_of(task_id, row.attempt + 1)
    try:
        answer = await admit_retry(
            worker.client,
            keys,
            holder=holder,
            policy=worker.heteroflow_settings.breaker_policy,
            now=utc_now(),
        )
    except BreakerBusy as error:
        # So many changes at once mean that it is not open: then nothing changes.
        worker.get_flow_run_logger(flow_run).warning("%s The retry goes on.", error)
        return None
    if not isinstance(answer, Held):
        return None
    reason = f"{diagnosis.failure.value}: {diagnosis.reason} {answer.reason}"
    holding = await read_holding(worker.client, keys)
    return Waiting(
        hold=Hold(holder=holder, keys=keys),
        reason=reason,
        message=waiting_message(reason, holding),
    )


async def tell_breakers(
    worker: RetryingWorker, task_id: UUID, attempt: int, verdict: Verdict
) -> None:
    """Tell how an attempt ended. First attempts are nobody's trial and cost no request.

    Raises:
        httpx.HTTPError: The API failed.
    """
    if attempt < 2:
        return
    holder = holder_of(task_id, attempt)
    try:
        await note_outcome(worker.client, holder=holder, verdict=verdict, now=utc_now())
    except BreakerBusy as error:
        logging.getLogger(__name__).warning("%s", error)  # the trial's timeout frees it


async def note_resumed(worker: RetryingWorker, flow_run: FlowRun) -> None:
    """A run that was held and is started now: somebody may have pressed Resume.

    Raises:
        httpx.HTTPError: The API failed.
    """
    if hold_of(flow_run) is None:
        return
    if is_attempt_run(flow_run):
        await say_goes_on(worker.client, flow_run)
    try:
        await approve_resumed(
            worker.client,
            flow_run,
            policy=worker.heteroflow_settings.breaker_policy,
            now=utc_now(),
        )
    except BreakerBusy as error:
        worker.get_flow_run_logger(flow_run).warning("%s", error)


def holder_of(task_id: UUID, attempt: int) -> str:
    """The name of an attempt for the breakers."""
    return f"{task_id}:{attempt}"


def job_digest(configuration: RetryConfiguration) -> str | None:
    """Tells plain jobs apart, which may all share one deployment; `None` for a flow."""
    if not configuration.is_plain_job:
        return None
    image: Any = getattr(configuration, "image", None)
    return hashlib.sha256(f"{image}\n{configuration.command}".encode()).hexdigest()[:12]
