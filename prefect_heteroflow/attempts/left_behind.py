"""How a run stands whose worker is gone: which of its steps was the last one. Pure.

Rows are written before anything is acted on and the state changes last, so row and state together
say how far the worker came.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.outcome import went_on
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration.transitions import (
    SUBMITTING,
    is_waiting_pause,
    waits_for_own_retry,
)

_UNDER_WAY = (StateType.RUNNING, StateType.PENDING)
_OPEN = (AttemptStatus.SCHEDULED, AttemptStatus.RUNNING)


class Left(str, Enum):
    """What the worker left undone."""

    ATTEMPT = "attempt"
    """It was running an attempt whose end it did not see, or did not write down."""
    DECISION = "decision"
    """It wrote down what follows from an attempt, and did not do it."""
    SUBMISSION = "submission"
    """It had taken the run from its pool, and started nothing that was written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A run that was left half-way."""

    what: Left
    node: str | None
    """Whose worker it was; `None` if no row says so, and only the worker's labels can."""
    history: tuple[Attempt, ...]
    """With `Left.ATTEMPT` the last row is that attempt's."""
    may_have_started: bool = False
    """With `Left.SUBMISSION`: it was about to start the attempt, or had just done so."""


def is_under_way(run: FlowRun) -> bool:
    """A worker has to be looking after it."""
    return (run.state is not None and run.state.type in _UNDER_WAY) or waits_for_own_retry(run)


def sleeps(run: FlowRun, now: datetime) -> bool:
    """Its process waits for a retry of the flow's own that is not due yet, and sends no heartbeats.

    Args:
        run: The run.
        now: The time, with a time zone.
    """
    due = None if run.state is None else run.state.state_details.scheduled_time
    return due is not None and waits_for_own_retry(run) and due > now


def _is_paused_attempt(state: State[Any], last: Attempt | None) -> bool:
    running = last is not None and last.status is AttemptStatus.RUNNING
    return running and is_waiting_pause(state)


def how_left(run: FlowRun, history: Sequence[Attempt]) -> LeftBehind | None:
    """How far the worker of a run came, if the run is one that a worker has to be looking after."""
    state = run.state
    last = history[-1] if history else None
    if state is None or not (is_under_way(run) or _is_paused_attempt(state, last)):
        return None
    own = str(run.id)
    if last is not None and last.status in _OPEN and last.flow_run_id not in ("", own):
        return None  # another run carries it
    if last is not None and last.status is AttemptStatus.RUNNING:
        return LeftBehind(what=Left.ATTEMPT, node=last.node, history=tuple(history))
    ended = next((row for row in reversed(history) if row.ended), None)
    was_taken_up = went_on(state, since=None if ended is None else ended.ended, is_retry=False)
    if ended is not None and ended.flow_run_id == own and not was_taken_up:
        decided = last is not ended or ended.ended_task
        left = LeftBehind(what=Left.DECISION, node=ended.node, history=tuple(history))
        return left if decided else None
    if state.type is StateType.PENDING:
        return LeftBehind(
            what=Left.SUBMISSION,
            node=None,
            history=tuple(history),
            may_have_started=state.name == SUBMITTING,
        )
    return LeftBehind(what=Left.ATTEMPT, node=None, history=_with_unwritten(run, history))


def as_attempt(left: LeftBehind, run: FlowRun) -> LeftBehind:
    """The same, where nobody can say whether the attempt was started: it counts as one."""
    history = _with_unwritten(run, left.history)
    return dataclasses.replace(left, what=Left.ATTEMPT, history=history)


def _with_unwritten(run: FlowRun, history: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The history with the attempt that has begun: its row was planned, or is missing."""
    last = history[-1] if history else None
    begun = run.state.timestamp.isoformat() if run.state is not None else None
    if last is not None and last.status is AttemptStatus.SCHEDULED:
        planned = dataclasses.replace(last, status=AttemptStatus.RUNNING, started=begun)
        return (*history[:-1], dataclasses.replace(planned, flow_run_id=str(run.id)))
    unwritten = Attempt(
        attempt=1 if last is None else last.attempt + 1,
        flow_run_id=str(run.id),
        status=AttemptStatus.RUNNING,
        pool=run.work_pool_name,
        started=begun,
        log=f"/runs/flow-run/{run.id}?tab=Logs",
    )
    return (*history, unwritten)


def of_node(left: LeftBehind, node: str | None) -> tuple[Attempt, ...]:
    """Its history, with the node in the row of the attempt that was left, if it is known."""
    *earlier, last = left.history
    return (*earlier, dataclasses.replace(last, node=last.node or node))
