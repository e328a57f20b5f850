"""What shows that others have gone on with a run that its worker has not started yet."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from prefect.client.schemas.objects import State, StateType

from prefect_heteroflow.attempts.overtaken import was_overtaken
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus

TAKEN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def state(kind: StateType, after: float) -> State:
    """Set so many seconds after the run was taken."""
    return State(type=kind, timestamp=TAKEN + timedelta(seconds=after))


def row(attempt: int, status: AttemptStatus, node: str | None = "here") -> Attempt:
    return Attempt(attempt=attempt, flow_run_id="run", status=status, node=node)


OWN_STATES = [
    state(StateType.SCHEDULED, -9),
    state(StateType.PENDING, 1),
    state(StateType.PENDING, 70),  # a busy server
]


@pytest.mark.parametrize(
    ("more_states", "rows", "expected"),
    [
        ([], [], False),
        ([], [row(2, AttemptStatus.SCHEDULED, node=None)], False),
        ([], [row(1, AttemptStatus.FAILED, node="there")], False),
        ([], [row(2, AttemptStatus.RUNNING)], False),
        ([state(StateType.RUNNING, 4)], [], False),
        ([state(StateType.SCHEDULED, 60)], [], True),
        ([state(StateType.RUNNING, 60)], [], True),
        ([], [row(2, AttemptStatus.RUNNING, node="there")], True),
        ([], [row(2, AttemptStatus.FAILED, node=None)], True),
        ([], [row(3, AttemptStatus.SCHEDULED, node=None)], True),
    ],
    ids=[
        "nothing new",
        "the attempt is planned",
        "an earlier attempt",
        "this node's own row",
        "a clock that is a little ahead",
        "given back",
        "runs",
        "runs elsewhere",
        "lost somewhere",
        "the next one is planned",
    ],
)
def test_others_have_gone_on_if_states_or_rows_are_not_of_this_worker(
    more_states: list[State], rows: list[Attempt], expected: bool
) -> None:
    states = [*OWN_STATES, *more_states]
    assert was_overtaken(states, rows, attempt=2, node="here", taken=TAKEN) is expected
