"""Row and state together say how far a worker came that is gone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.left_behind import (
    Left,
    as_attempt,
    how_left,
    of_node,
    sleeps,
)
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus

RUN, OTHER_RUN = uuid4(), uuid4()
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def run(state: StateType, *, after: float, name: str | None = None) -> FlowRun:
    """In a state that was set so many seconds after the first attempt had ended."""
    timestamp = NOW + timedelta(seconds=after)
    return FlowRun(
        id=RUN,
        flow_id=uuid4(),
        state=State(type=state, timestamp=timestamp, name=name),
        work_pool_name="pool",
    )


def own_retry_waits() -> FlowRun:
    """In the state in which the server lets a process wait for a retry of the flow's own."""
    waits = run(StateType.SCHEDULED, after=-5, name="AwaitingRetry")
    waits.empirical_policy.retry_type = "in_process"
    return waits


def row(attempt: int, status: AttemptStatus, **more: object) -> Attempt:
    values = {"flow_run_id": str(RUN), "node": "node-1", "pool": "pool", **more}
    return Attempt(attempt=attempt, status=status, **values)  # type: ignore[arg-type]


RUNNING = row(1, AttemptStatus.RUNNING)
FAILED = row(1, AttemptStatus.FAILED, ended=NOW.isoformat())
STOPPED = row(1, AttemptStatus.FAILED, ended=NOW.isoformat(), ended_task=True)
PLANNED = row(2, AttemptStatus.SCHEDULED, node=None, memory_mb=256)
PLANNED_ELSEWHERE = row(2, AttemptStatus.SCHEDULED, node=None, flow_run_id="", pool="large")
CARRIED_ELSEWHERE = row(2, AttemptStatus.RUNNING, flow_run_id=str(OTHER_RUN))

CASES = {
    "row and state agree": (StateType.RUNNING, -5, [RUNNING], Left.ATTEMPT, "node-1"),
    "started, no row": (StateType.RUNNING, 0, [], Left.ATTEMPT, None),
    "taken, no row": (StateType.PENDING, 0, [], Left.SUBMISSION, None),
    "planned, not scheduled": (StateType.RUNNING, -5, [FAILED, PLANNED], Left.DECISION, "node-1"),
    "planned elsewhere, not parked": (
        *(StateType.RUNNING, -5),
        *([FAILED, PLANNED_ELSEWHERE], Left.DECISION, "node-1"),
    ),
    "stopped, not ended": (StateType.RUNNING, -5, [STOPPED], Left.DECISION, "node-1"),
    "taken again": (StateType.PENDING, 5, [FAILED, PLANNED], Left.SUBMISSION, None),
    "started again, no row": (StateType.RUNNING, 5, [FAILED, PLANNED], Left.ATTEMPT, None),
    "run again by a person": (StateType.RUNNING, 60, [STOPPED], Left.ATTEMPT, None),
}


@pytest.mark.parametrize("name", CASES)
def test_last_step_of_the_worker_is_told_by_row_and_state(name: str) -> None:
    state, after, history, what, node = CASES[name]
    left = how_left(run(state, after=after), history)
    assert left is not None
    assert (left.what, left.node) == (what, node)


@pytest.mark.parametrize(
    ("history", "what"),
    [([RUNNING], Left.ATTEMPT), ([], Left.ATTEMPT), ([FAILED, PLANNED], Left.DECISION)],
    ids=["row and state agree", "no row", "killed there, and followed by nothing yet"],
)
def test_run_that_waits_for_its_own_retry_was_left_by_a_worker_that_is_gone(
    history: list[Attempt], what: Left
) -> None:
    left = how_left(own_retry_waits(), history)
    assert left is not None
    assert left.what is what


@pytest.mark.parametrize(("seconds", "asleep"), [(60, True), (-60, False)])
def test_run_sleeps_until_its_own_retry_is_due(seconds: float, asleep: bool) -> None:
    waits = own_retry_waits()
    assert waits.state is not None
    waits.state.state_details.scheduled_time = NOW + timedelta(seconds=seconds)  # type: ignore[assignment]
    assert sleeps(waits, NOW) is asleep


@pytest.mark.parametrize(("name", "may_have"), [("Pending", False), ("Submitting", True)])
def test_only_a_run_that_was_being_submitted_may_have_started(name: str, may_have: bool) -> None:
    left = how_left(run(StateType.PENDING, after=5, name=name), [FAILED, PLANNED])
    assert left is not None
    assert (left.what, left.may_have_started) == (Left.SUBMISSION, may_have)


def test_attempt_that_may_have_started_takes_the_place_of_the_planned_one() -> None:
    submitting = run(StateType.PENDING, after=5, name="Submitting")
    left = how_left(submitting, [FAILED, PLANNED])
    assert left is not None
    counted = as_attempt(left, submitting)
    assert counted.what is Left.ATTEMPT
    assert [row.status for row in counted.history] == [AttemptStatus.FAILED, AttemptStatus.RUNNING]
    assert (counted.history[-1].attempt, counted.history[-1].memory_mb) == (2, 256)


@pytest.mark.parametrize(
    ("state", "history"),
    [
        (StateType.COMPLETED, [RUNNING]),
        (StateType.SCHEDULED, [FAILED, PLANNED]),
        (StateType.PAUSED, [FAILED, PLANNED_ELSEWHERE]),
        (StateType.RUNNING, [FAILED, CARRIED_ELSEWHERE]),
        (StateType.RUNNING, [FAILED]),
    ],
    ids=["ended", "scheduled", "parked", "carried by another run", "about to be decided"],
)
def test_run_that_no_worker_has_to_look_after_is_not_left(
    state: StateType, history: list[Attempt]
) -> None:
    assert how_left(run(state, after=-5), history) is None


def test_attempt_without_a_row_gets_the_number_the_node_and_what_was_planned() -> None:
    left = how_left(run(StateType.RUNNING, after=5), [FAILED, PLANNED])
    assert left is not None
    first, second = of_node(left, "node-2")
    assert first == FAILED
    assert (second.attempt, second.node, second.memory_mb) == (2, "node-2", 256)
    assert (second.status, second.flow_run_id) == (AttemptStatus.RUNNING, str(RUN))
