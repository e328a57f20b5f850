"""What the end of an attempt means, by Prefect's state and by how the process ended."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateDetails, StateType

from prefect_heteroflow.attempts.backend import AttemptEnd
from prefect_heteroflow.attempts.outcome import (
    Outcome,
    left_to_prefect_text,
    outcome_of,
    went_on,
)

CLEAN = AttemptEnd(exit_code=0, oom_killed=False)
KILLED = AttemptEnd(exit_code=137, oom_killed=True)

CASES = [
    ("completed flow", False, StateType.COMPLETED, CLEAN, Outcome.COMPLETED),
    ("completed flow whose exit crashed", False, StateType.COMPLETED, KILLED, Outcome.COMPLETED),
    ("failed flow", False, StateType.FAILED, AttemptEnd(exit_code=1), Outcome.ENDED_BY_ITSELF),
    ("killed flow", False, StateType.RUNNING, KILLED, Outcome.FAILED),
    ("flow that left its end to us", False, StateType.RUNNING, CLEAN, Outcome.FAILED),
    ("flow that never began", False, StateType.PENDING, AttemptEnd(exit_code=1), Outcome.FAILED),
    (
        "flow that crashed by its own doing",
        False,
        StateType.CRASHED,
        AttemptEnd(exit_code=1),
        Outcome.ENDED_BY_ITSELF,
    ),
    ("flow that crashed by a kill", False, StateType.CRASHED, KILLED, Outcome.FAILED),
    ("flow that a stop ended", False, StateType.CRASHED, AttemptEnd(exit_code=143), Outcome.FAILED),
    ("suspended flow", False, StateType.PAUSED, CLEAN, Outcome.LEFT_TO_PREFECT),
    ("suspended flow that was killed", False, StateType.PAUSED, KILLED, Outcome.FAILED),
    ("rescheduled flow", False, StateType.SCHEDULED, CLEAN, Outcome.LEFT_TO_PREFECT),
    ("cancelling flow", False, StateType.CANCELLING, AttemptEnd(exit_code=143), Outcome.CANCELLED),
    ("cancelled flow", False, StateType.CANCELLED, KILLED, Outcome.CANCELLED),
    ("clean job", True, StateType.RUNNING, CLEAN, Outcome.COMPLETED),
    ("job with an exit code", True, StateType.RUNNING, AttemptEnd(exit_code=3), Outcome.FAILED),
    (
        "job that exits 0 though a child was killed for memory",
        True,
        StateType.RUNNING,
        AttemptEnd(exit_code=0, oom_killed=True),
        Outcome.FAILED,
    ),
    (
        "job that exits 0 though its cgroup counted a kill",
        True,
        StateType.RUNNING,
        AttemptEnd(exit_code=0, oom_kill_count=1),
        Outcome.FAILED,
    ),
    (
        "job that exits 0 and nobody looked at memory",
        True,
        StateType.RUNNING,
        AttemptEnd(exit_code=0),
        Outcome.COMPLETED,
    ),
    ("job ended by a signal", True, StateType.RUNNING, AttemptEnd(signal=9), Outcome.FAILED),
    ("lost job", True, StateType.RUNNING, AttemptEnd(lost=True), Outcome.FAILED),
    ("cancelled job that exits 0", True, StateType.CANCELLING, CLEAN, Outcome.CANCELLED),
]


@pytest.mark.parametrize(
    ("is_plain_job", "kind", "end", "outcome"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_end_is_judged(
    is_plain_job: bool, kind: StateType, end: AttemptEnd, outcome: Outcome
) -> None:
    state: State = State(type=kind, state_details=StateDetails(pause_reschedule=True))
    found = outcome_of(end=end, state=state, is_plain_job=is_plain_job, cancel_requested=False)
    assert found is outcome


@pytest.mark.parametrize(
    ("name", "end", "outcome"),
    [
        ("Paused", CLEAN, Outcome.ENDED_IN_PAUSE),
        ("Paused", AttemptEnd(signal=9), Outcome.ENDED_IN_PAUSE),
        ("Paused", AttemptEnd(lost=True), Outcome.ENDED_IN_PAUSE),
        ("Paused", KILLED, Outcome.FAILED),
        ("Paused", AttemptEnd(exit_code=1), Outcome.FAILED),
        ("Escalated", CLEAN, Outcome.LEFT_TO_PREFECT),
    ],
)
def test_end_of_a_flow_that_waited_in_its_process_is_no_suspension(
    name: str, end: AttemptEnd, outcome: Outcome
) -> None:
    state: State = State(type=StateType.PAUSED, name=name)
    found = outcome_of(end=end, state=state, is_plain_job=False, cancel_requested=False)
    assert found is outcome


def test_flow_that_was_told_to_end_while_it_waited_for_its_own_retry_has_failed() -> None:
    """Prefect keeps such a run from all workers: left to it, it would hang for ever."""
    found = outcome_of(
        end=CLEAN,
        state=State(type=StateType.SCHEDULED),
        is_plain_job=False,
        cancel_requested=False,
        was_terminated=True,
    )
    assert found is Outcome.FAILED


def test_cancel_that_we_saw_counts_before_everything_else() -> None:
    found = outcome_of(
        end=CLEAN,
        state=State(type=StateType.RUNNING),
        is_plain_job=True,
        cancel_requested=True,
    )
    assert found is Outcome.CANCELLED


ENDED = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("kind", "seconds_later", "is_retry", "expected"),
    [
        pytest.param(StateType.RUNNING, 5, True, True, id="next attempt runs"),
        pytest.param(StateType.PENDING, 5, True, True, id="next attempt starts"),
        pytest.param(StateType.COMPLETED, 5, True, True, id="next attempt has completed"),
        pytest.param(StateType.CANCELLED, 5, True, True, id="cancelled meanwhile"),
        pytest.param(StateType.RUNNING, -5, True, False, id="state of the ended attempt itself"),
        pytest.param(StateType.SCHEDULED, 5, True, False, id="half scheduled"),
        pytest.param(StateType.FAILED, 5, False, False, id="stop: the front run may be missing"),
    ],
)
def test_decision_is_not_done_twice_over_what_came_of_it(
    kind: StateType, seconds_later: int, is_retry: bool, expected: bool
) -> None:
    state = State(type=kind, timestamp=ENDED + timedelta(seconds=seconds_later))
    assert went_on(state, since=ENDED.isoformat(), is_retry=is_retry) is expected


def run_in(kind: StateType, **details: datetime) -> FlowRun:
    state = State[object](type=kind, state_details=StateDetails.model_validate(details))
    return FlowRun(flow_id=uuid4(), state=state)


def test_suspended_flow_says_how_it_goes_on() -> None:
    """It does not by itself."""
    run = run_in(StateType.PAUSED)
    assert left_to_prefect_text(run) == (
        "The flow suspended itself: it goes on after Resume on its page, or"
        f" `prefect.flow_runs.resume_flow_run('{run.id}')` in Python."
    )


def test_suspended_flow_says_until_when_it_waits() -> None:
    until = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    text = left_to_prefect_text(run_in(StateType.PAUSED, pause_timeout=until))
    assert text.endswith(" At 2026-03-01T12:00:00+00:00 it fails.")


def test_flow_that_prefect_has_scheduled_again_goes_on_by_itself() -> None:
    """A retry of the flow's own."""
    text = left_to_prefect_text(run_in(StateType.SCHEDULED))
    assert text == "Prefect has scheduled it again, and goes on with it."
