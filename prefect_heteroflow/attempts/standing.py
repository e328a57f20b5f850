"""How a task stands when one of its runs is about to be started."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.next_attempt import never_started_row
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.approval import is_held
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.held_fronts import held_message
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient


async def read_standing(
    client: PrefectClient,
    task_id: UUID,
    flow_run: FlowRun,
    pool: str,
    *,
    is_overtaken: Callable[[], Awaitable[bool]],
    may_start_beside: Callable[[Attempt], Awaitable[bool]],
    is_looked_after: Callable[[str | None, str | None], Awaitable[bool]],
) -> tuple[Attempt, ...] | str | None:
    """The attempts of the task, or why this run must not be started.

    The last one may be this very attempt as it was planned (`split_planned`).
    The second is so when somebody pressed Resume on a front run whose attempt is under way on
    another pool. `None` if the run is not this worker's any more, or was
    ended here, because the run that it works for was deleted or has ended.

    Args:
        client: A client in use.
        task_id: The task.
        flow_run: The run that is to be started.
        pool: This worker's.
        is_overtaken: Whether others have gone on with the run; their rows are not to be touched.
        may_start_beside: Whether it may be started although the last row says that an attempt
            runs; if not, the run was given back.
        is_looked_after: Whether a live worker looks after a node of a pool.
    """
    history = tuple(await read_attempts(client, task_id))
    if await is_overtaken():
        return None
    if flow_run.id != task_id:
        why = await why_needless(client, task_id)
        if why is not None:
            await _end_needless(client, flow_run, task_id, history, why)
            return None
    last = history[-1] if history else None
    if last is None:
        return history
    is_elsewhere = _is_carried_elsewhere(last, flow_run, pool)
    if is_elsewhere and not await _was_left_open(client, last, is_looked_after):
        held = await _held_run_of(client, last)
        if held is not None:
            return held_message(held, task_id)
        return (
            f"Attempt {last.attempt} of this run is {last.status.value} on pool {last.pool}; the"
            " run ends with it. Resume does nothing here: cancel the run to end it."
        )
    if last.status is AttemptStatus.RUNNING and not await may_start_beside(last):
        return None
    if last.status is AttemptStatus.RUNNING:
        # Somebody scheduled the run again although nobody saw this attempt end.
        lost = dataclasses.replace(
            last,
            status=AttemptStatus.FAILED,
            failure=FailureClass.NODE_LOST.value,
            reason="Its end was never seen: the worker that watched it went away.",
            decision="The run was scheduled again.",
            ended=utc_now().isoformat(),
        )
        await write_attempts(client, task_id, [lost], summary=False)
        return (*history[:-1], lost)
    return history


def split_planned(history: tuple[Attempt, ...]) -> tuple[tuple[Attempt, ...], Attempt | None]:
    """The earlier attempts, and the row of the one that is to be started, if it was planned."""
    if history and history[-1].status is AttemptStatus.SCHEDULED:
        return history[:-1], history[-1]
    return history, None


async def why_needless(client: PrefectClient, task_id: UUID) -> str | None:
    """Why no attempt of a task is wanted any more; `None` if one is.

    Raises:
        httpx.HTTPError: The API failed.
    """
    try:
        front = await client.read_flow_run(task_id)
    except ObjectNotFound:
        return "The run that it works for was deleted."
    if front.state is None or not front.state.is_final():
        return None
    return f"The run that it works for has ended: {front.state.name}."


async def _end_needless(
    client: PrefectClient,
    flow_run: FlowRun,
    task_id: UUID,
    history: tuple[Attempt, ...],
    why: str,
) -> None:
    """An attempt run that must not start; its row is closed if it has one."""
    if history and history[-1].status is AttemptStatus.SCHEDULED:
        closed = never_started_row(
            history[-1], why, flow_run_id=flow_run.id, now=utc_now(), ended_task=True
        )
        await write_attempts(client, task_id, [closed], summary=True)
    await transitions.cancel_for_good(client, flow_run.id, why)


async def _held_run_of(client: PrefectClient, row: Attempt) -> FlowRun | None:
    run = await _run_of(client, row) if row.status is AttemptStatus.SCHEDULED else None
    return run if run is not None and is_held(run) else None


async def _run_of(client: PrefectClient, row: Attempt) -> FlowRun | None:
    """The run that carries the attempt; `None` if none does, or it was deleted."""
    if not row.flow_run_id:
        return None
    try:
        return await client.read_flow_run(UUID(row.flow_run_id))
    except ObjectNotFound:
        return None


async def _was_left_open(
    client: PrefectClient,
    row: Attempt,
    is_looked_after: Callable[[str | None, str | None], Awaitable[bool]],
) -> bool:
    """Whether a row says that an attempt runs whose run has ended, and nobody is to close it.

    A person has set the run to that end, or the flow has; a live worker would have closed the row,
    or will do so when the flow has done what it does after its end.
    """
    run = await _run_of(client, row) if row.status is AttemptStatus.RUNNING else None
    if run is None or run.state is None or not run.state.is_final():
        return False
    return not await is_looked_after(row.node, row.pool)


def _is_carried_elsewhere(row: Attempt, flow_run: FlowRun, pool: str) -> bool:
    is_open = row.status in (AttemptStatus.SCHEDULED, AttemptStatus.RUNNING)
    other_run = row.flow_run_id not in ("", str(flow_run.id))
    return is_open and (other_run or (row.pool is not None and row.pool != pool))
