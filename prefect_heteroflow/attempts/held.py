"""What becomes of runs that a circuit breaker holds: parked, released, approved or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.logging import get_logger

from prefect_heteroflow.attempts.cancelling import close_cancelled
from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.core.attempts import AttemptStatus
from prefect_heteroflow.core.breaker import (
    Admitted,
    Breaker,
    BreakerPolicy,
    Verdict,
    admit,
)
from prefect_heteroflow.orchestration import approval, held_fronts, transitions
from prefect_heteroflow.orchestration.breaker_store import (
    admit_retry,
    note_approval,
    note_outcome,
    read_breakers,
    read_holding,
)
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_many_attempts

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

__all__ = ["approve_resumed", "close_refused", "hold_back", "release_held"]

_logger = get_logger("heteroflow.held")
_REFUSED = "Cancelled by a user while it waited for approval; nothing is retried."
_REFUSED_LATE = "Cancelled by a user before it was started; nothing is retried."


async def hold_back(
    client: PrefectClient,
    flow_run: FlowRun,
    task_id: UUID,
    hold: approval.Hold,
    *,
    message: str,
    reason: str,
    job_variables: dict[str, Any],
    moves: bool,
    was_cancelled: Callable[[], bool],
) -> bool:
    """Let a run wait for a person, or for its breakers' trial, before its planned attempt.

    Args:
        client: Of the server.
        flow_run: The run of the failed attempt.
        task_id: Its front run.
        hold: The breakers, and the planned attempt.
        message: Of the state in which it waits.
        reason: Why, for the run of the failed attempt where that is another one: it ends, and
            nobody can resume it.
        job_variables: Those of the planned attempt.
        moves: The planned attempt is on another pool: then the front run waits, and creates it,
            and the run of the failed attempt ends.
        was_cancelled: Asked when the run waits.

    Returns:
        Whether it waits; if not, its planned attempt is to be given up.

    Raises:
        httpx.HTTPError: The API failed.
    """
    run, is_front = flow_run, task_id == flow_run.id
    if moves and not is_front:
        run = await client.read_flow_run(task_id)
        job_variables = dict(run.job_variables or {})
    parked = await approval.await_approval(
        client, run, hold=hold, message=message, job_variables=job_variables, now=utc_now()
    )
    if not parked or was_cancelled():
        return False
    if run.id != flow_run.id:
        text = f"{reason} The next attempt waits for approval in run {run.name}."
        ended = transitions.ended_state(transitions.ATTEMPT_FAILED, text)
        await transitions.finish(client, flow_run.id, ended, force=True)
    elif not is_front:
        await held_fronts.say_held(client, run, await read_holding(client, hold.keys))
    return True


async def release_held(
    client: PrefectClient,
    *,
    policy: BreakerPolicy,
    now: datetime,
    pool: str | None = None,
    guard: Guard | None = None,
) -> list[FlowRun]:
    """Let held runs go on whose breakers have closed, and one as the trial of each that is due.

    Every worker calls this now and then; several at once do it once.

    Args:
        client: Of the server.
        policy: When a breaker lets runs through.
        now: The time.
        pool: Only runs of this pool. A worker whose breakers are off must not decide for others.
        guard: What goes wrong with one run is said once by the caller's.

    Returns:
        The runs that go on.

    Raises:
        BreakerBusy: Too many workers at once; the next call goes on.
        httpx.HTTPError: The API failed.
    """
    held = await approval.read_held(client)
    if pool is not None:
        held = [run for run in held if run.work_pool_name == pool]
    if not held:
        return []
    known = {record.key: record.breaker for record in await read_breakers(client)}
    guard = guard or Guard()
    released = []
    for run in held:
        hold = approval.hold_of(run)
        # One look at what was read already: most of them still have to wait.
        if hold is not None and not _could_pass(hold, known, policy, now):
            continue
        if hold is not None:
            answer = await admit_retry(
                client, hold.keys, holder=hold.holder, policy=policy, now=now, waited=True
            )
            known = {record.key: record.breaker for record in await read_breakers(client)}
            if not isinstance(answer, Admitted):
                continue
        # A run without a readable label would wait for ever: it goes on.
        with guard.over(f"Run '{run.name}', which waits for approval,", _logger):
            if await approval.approve_run(client, run):
                # It stays one of theirs until a worker starts it: it may be cancelled before.
                await approval.write_hold(client, run, hold and replace(hold, released=True))
                released.append(run)
    return released


def _could_pass(
    hold: approval.Hold, known: dict[str, Breaker], policy: BreakerPolicy, now: datetime
) -> bool:
    answers = (
        admit(
            known.get(key, Breaker()),
            policy,
            holder=hold.holder,
            now=now.timestamp(),
            waited=True,
        )[1]
        for key in hold.keys
    )
    return all(isinstance(answer, Admitted) for answer in answers)


async def approve_resumed(
    client: PrefectClient, flow_run: FlowRun, *, policy: BreakerPolicy, now: datetime
) -> bool:
    """Note that a person pressed Resume; for a worker that is about to start the run.

    Its attempt becomes the breakers' trial, so that its end closes them or opens them again.

    Returns:
        Whether it was a person who let it go on.

    Raises:
        BreakerBusy: Too many workers at once; call it again.
        httpx.HTTPError: The API failed.
    """
    hold = approval.hold_of(flow_run)
    if hold is not None and hold.released:
        await approval.write_hold(client, flow_run, None)
    if hold is None or not await approval.was_resumed(client, flow_run):
        return False
    await note_approval(client, hold.keys, holder=hold.holder, policy=policy, now=now)
    await approval.write_hold(client, flow_run, None)
    return True


async def close_refused(
    client: PrefectClient,
    *,
    now: datetime,
    seen_until: datetime | None = None,
    guard: Guard | None = None,
) -> list[FlowRun]:
    """Close the history of runs that were cancelled while they waited, and free their trials.

    They waited for a person, or for a retry: the server itself cancels such a run when a person
    does, when its deployment is deleted, or when a newer run took its place in a concurrency limit.
    Every worker calls this now and then; each step is safe to repeat.

    Args:
        client: Of the server.
        now: The time.
        seen_until: `now` of the caller's last call that went well.
        guard: What goes wrong with one run is said once by the caller's.

    Returns:
        The runs whose history did not know it.

    Raises:
        BreakerBusy: Too many workers at once; the next call goes on.
        httpx.HTTPError: The API failed.
    """
    cancelled = await approval.read_cancelled(client, now=now, seen_until=seen_until)
    guard = guard or Guard()
    refused, others = [], {}
    for run in cancelled:
        hold, task_id = approval.hold_of(run), transitions.task_id_of(run)
        if hold is None:
            others[task_id] = run
            continue
        # Whoever let it go just before had made it the trial.
        await note_outcome(client, holder=hold.holder, verdict=Verdict.NONE, now=now)
        with guard.over(f"Run '{run.name}', which was cancelled,", _logger):
            said = _why(run) or (_REFUSED_LATE if hold.released else _REFUSED)
            await close_cancelled(client, task_id, said, run.id)
            await approval.write_hold(client, run, None)
            refused.append(run)
    for task_id, history in (await read_many_attempts(client, others)).items():
        if history[-1].status is AttemptStatus.SCHEDULED:
            run = others[task_id]
            with guard.over(f"Run '{run.name}', which was cancelled,", _logger):
                await close_cancelled(client, task_id, _why(run) or _REFUSED_LATE, run.id)
                refused.append(run)
    return refused


def _why(run: FlowRun) -> str | None:
    """What the server says where it cancelled the run itself; a person's cancel has no message."""
    return run.state.message if run.state is not None else None
