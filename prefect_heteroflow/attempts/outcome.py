"""What the end of an attempt means, before anybody asks why it failed. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.backend import AttemptEnd
from prefect_heteroflow.orchestration.transitions import is_waiting_pause


class Outcome(str, Enum):
    """What the worker has to do about an attempt that ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    LEFT_TO_PREFECT = "left to Prefect"
    """The flow suspended itself, or Prefect has scheduled it again."""
    ENDED_IN_PAUSE = "ended in a pause"
    """The process that waited in a pause for Resume is gone."""
    ENDED_BY_ITSELF = "ended by itself"
    """The flow reported its own failure, hooks and all: nothing is left to decide."""
    FAILED = "failed"
    """Nobody has said the last word: diagnose and decide."""


def outcome_of(
    *,
    end: AttemptEnd,
    state: State | None,
    is_plain_job: bool,
    cancel_requested: bool,
    was_terminated: bool = False,
) -> Outcome:
    """Judge an end by the state that Prefect holds and by how the process ended.

    A flow's own word counts for more than an exit code: a flow that is `Completed` has completed,
    also if its interpreter crashed while it shut down.

    Args:
        end: How the main process ended.
        state: The state that Prefect holds.
        is_plain_job: No flow runs in it.
        cancel_requested: This worker was told of a cancel.
        was_terminated: The engine entry says that it ended because of SIGTERM.
    """
    kind = None if state is None else state.type
    if cancel_requested or kind in (StateType.CANCELLING, StateType.CANCELLED):
        return Outcome.CANCELLED
    if is_plain_job and kind is StateType.COMPLETED:
        return Outcome.COMPLETED  # its worker has said so, and was killed before it had done all
    if is_plain_job:
        clean = end.exit_code == 0 and not end.signal and not end.killed_for_memory and not end.lost
        return Outcome.COMPLETED if clean else Outcome.FAILED
    if kind is StateType.COMPLETED:
        return Outcome.COMPLETED
    if kind is StateType.FAILED:
        return Outcome.ENDED_BY_ITSELF
    if kind is StateType.CRASHED and not _was_killed(end):
        # `sys.exit`, a keyboard interrupt, `return Crashed(...)`: the engine's word stands.
        return Outcome.ENDED_BY_ITSELF
    if kind is StateType.SCHEDULED and was_terminated:
        return Outcome.FAILED  # it waited for a retry of its own, which nobody else would start
    if state is not None and is_waiting_pause(state) and not end.killed_for_memory:
        return Outcome.ENDED_IN_PAUSE if end.exit_code == 0 or _was_killed(end) else Outcome.FAILED
    if kind in (StateType.PAUSED, StateType.SCHEDULED) and end.exit_code == 0:
        return Outcome.LEFT_TO_PREFECT
    return Outcome.FAILED


def left_to_prefect_text(flow_run: FlowRun) -> str:
    """What follows a clean end after which the run is paused or scheduled, for a person.

    Args:
        flow_run: With its state of now.
    """
    state = flow_run.state
    if state is None or state.type is not StateType.PAUSED:
        return "Prefect has scheduled it again, and goes on with it."
    until = state.state_details.pause_timeout
    ends = "" if until is None else f" At {until.isoformat(timespec='seconds')} it fails."
    return (
        "The flow suspended itself: it goes on after Resume on its page, or"
        f" `prefect.flow_runs.resume_flow_run('{flow_run.id}')` in Python.{ends}"
    )


def _was_killed(end: AttemptEnd) -> bool:
    by_signal = end.signal is not None or end.exit_code in (137, 143)
    return bool(by_signal or end.killed_for_memory or end.lost)


def went_on(state: State | None, *, since: str | None, is_retry: bool) -> bool:
    """Whether what was decided has been done already, when it is about to be done again.

    After an outage nobody knows which request arrived. A retry must not be set over a next attempt
    that is under way, nor over a run that has ended meanwhile.

    Args:
        state: The run's state now.
        since: When the attempt ended, ISO 8601.
        is_retry: The decision was to try again.
    """
    if state is None or since is None or state.timestamp <= datetime.fromisoformat(since):
        return False
    return is_past(state, is_retry)


def is_past(state: State, is_retry: bool) -> bool:
    """Whether a state that came after the end of an attempt shows that somebody went on.

    Args:
        state: The run's state now.
        is_retry: The decision was to try again; then an end is one that came meanwhile.
    """
    if state.type in (StateType.PENDING, StateType.RUNNING):
        return True
    return is_retry and state.is_final()
