"""What shows that others have gone on with a run that its worker has not started yet."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from prefect.client.schemas.objects import State, StateType

from prefect_heteroflow.attempts.overtaken import was_overtaken

TAKEN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def state(kind: StateType, after: float) -> State:
    """Set so many seconds after the run was taken."""
    return State(type=kind, timestamp=TAKEN + timedelta(seconds=after))


OWN_STATES = [
    state(StateType.SCHEDULED, -9),
    state(StateType.PENDING, 1),
    state(StateType.PENDING, 70),  # a busy server
]


@pytest.mark.parametrize(
    ("more_states", "expected"),
    [
        ([], False),
        ([state(StateType.RUNNING, 4)], False),
        ([state(StateType.CANCELLING, 60)], False),
        ([state(StateType.SCHEDULED, 60)], True),
        ([state(StateType.RUNNING, 60)], True),
        ([state(StateType.PAUSED, 60)], True),
        ([state(StateType.CRASHED, 60)], True),
    ],
    ids=[
        "nothing new",
        "a clock that is a little ahead",
        "cancelled",
        "given back",
        "runs",
        "moved to another pool",
        "ended",
    ],
)
def test_others_have_gone_on_if_states_are_not_of_this_worker(
    more_states: list[State], expected: bool
) -> None:
    assert was_overtaken([*OWN_STATES, *more_states], taken=TAKEN) is expected
