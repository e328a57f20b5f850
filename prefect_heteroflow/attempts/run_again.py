"""Runs that somebody schedules again while an attempt of theirs still runs.

A running run can be set to `Failed` by hand or by an automation, and then retried. Its process
knows nothing of that, and two attempts at once would write over each other's files. So whoever
takes the run finds the row of an attempt that runs on a live node and gives the run back, as
`AwaitingEnd`; the worker of that node ends the attempt, closes its row and lets the run go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# The worker that runs the attempt hears of it at once; this is for one that does not.
_ASK_AGAIN = timedelta(seconds=15)
_BY_HAND = "Somebody scheduled the run again while this attempt ran"
ENDED = f"{_BY_HAND}: it was ended, the run goes on with the next one."
_WAS_GONE = f"{_BY_HAND}, and its node has nothing of it any more: the run goes on."
ENDED_FOR_NEXT = (ENDED, _WAS_GONE)
"""Decisions of attempts that another one follows although nothing plans it."""
_LAST_WORDS = (StateType.FAILED, StateType.CRASHED)


async def may_start_beside(worker: RetryingWorker, flow_run: FlowRun, row: Attempt) -> bool:
    """Whether a run may be started whose last row says that an attempt runs.

    If a live node runs it, the run is given back until that has ended.

    Args:
        worker: Who has taken the run.
        flow_run: The run.
        row: Its last row, of an attempt that is not here.

    Raises:
        httpx.HTTPError: The API failed.
    """
    if row.node == worker.node.name or not await worker.is_looked_after(row.node, row.pool):
        return True
    message = (
        f"Attempt {row.attempt} still runs on node {row.node}: it is ended there before the next"
        " one starts."
    )
    worker.get_flow_run_logger(flow_run).warning("%s", message)
    await transitions.await_end(
        worker.client, flow_run, due=utc_now() + _ASK_AGAIN, message=message
    )
    return False


class RunAgain:
    """Ends the attempts of one worker whose runs were scheduled again, and closes their rows.

    Args:
        worker: Whose attempts they are.
    """

    def __init__(self, worker: RetryingWorker) -> None:
        self._worker = worker

    async def look(self) -> None:
        """Look at each run that waits for the end of an attempt; safe to repeat.

        Raises:
            httpx.HTTPError: The API failed.
        """
        client, lives = self._worker.client, self._worker.lives
        for part in in_parts([life.flow_run.id for life in lives if life.is_running]):
            scheduled = FlowRunFilterStateType(any_=[StateType.SCHEDULED])
            again = FlowRunFilter(
                id=FlowRunFilterId(any_=list(part)), state=FlowRunFilterState(type=scheduled)
            )
            for run in await read_all_runs(client, flow_run_filter=again):
                await self.look_at(run.id)
        names = FlowRunFilterStateName(any_=[transitions.AWAITING_END])
        waiting = FlowRunFilter(state=FlowRunFilterState(name=names))
        for run in await read_all_runs(client, flow_run_filter=waiting):
            if not lives.is_busy_with(run.id):
                await self._close_left(run)

    async def look_at(self, flow_run_id: UUID) -> None:
        """End the attempt of a run that was scheduled, if it is here and others may start it.

        Raises:
            httpx.HTTPError: The API failed.
        """
        life = self._worker.lives.of(flow_run_id)
        if life is None or not life.is_running or life.run_again is not None:
            return
        states = await self._worker.client.read_flow_run_states(life.flow_run.id)
        if life.is_running and was_scheduled_by_hand(states):
            life.run_again = ENDED
            self._worker.get_flow_run_logger(life.flow_run).warning("%s", ENDED)
            self._worker.end_soon(life)

    async def _close_left(self, run: FlowRun) -> None:
        """An attempt that an earlier process of this worker had, and of which nothing is left."""
        task_id = transitions.task_id_of(run)
        history = await read_attempts(self._worker.client, task_id)
        last = history[-1] if history else None
        if last is None or last.status is not AttemptStatus.RUNNING:
            return
        if last.node == self._worker.node.name:
            await self._worker.end_left_attempt(run.id)
            await close(self._worker, run.id, task_id, last, _WAS_GONE)


async def close(
    worker: RetryingWorker, flow_run_id: UUID, task_id: UUID, row: Attempt, decision: str
) -> None:
    """Close the row of an attempt that has ended because its run is started again; let that go on.

    Raises:
        httpx.HTTPError: The API failed.
    """
    closed = dataclasses.replace(
        row,
        status=AttemptStatus.CANCELLED,
        failure="TaskCancelled",
        decision=decision,
        ended=utc_now().isoformat(),
    )
    await write_attempts(worker.client, task_id, [closed], summary=True)
    run = await worker.client.read_flow_run(flow_run_id)
    if run.state is not None and run.state.name == transitions.AWAITING_END:
        await transitions.stop_awaiting_end(worker.client, run, message=decision)


def was_scheduled_by_hand(states: Sequence[State]) -> bool:
    """Whether a run whose attempt runs was scheduled again by somebody else than that.

    A flow that suspends itself and is resumed ends by itself, its own retries say no last word, and
    before an attempt is started its worker sets `Pending`.

    Args:
        states: All states of the run.
    """
    newest = sorted(states, key=lambda state: state.timestamp, reverse=True)
    if not newest or newest[0].type is not StateType.SCHEDULED:
        return False
    if newest[0].name == transitions.AWAITING_END:
        waits = (StateType.SCHEDULED, StateType.PENDING)
        before = next((state for state in newest if state.type not in waits), None)
        return before is None or before.type is not StateType.PAUSED
    before = next((state for state in newest if state.type is not StateType.SCHEDULED), None)
    return before is not None and before.type in _LAST_WORDS
