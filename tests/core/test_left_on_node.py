"""After which attempts a node is cleaned up before the next one of the task."""

from __future__ import annotations

import pytest

from prefect_heteroflow.attempts.retry_cleanup import left_something
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus

HERE, ELSEWHERE = "node-1", "node-2"


def row(status: str, node: str = HERE, *, never_started: bool = False) -> Attempt:
    return Attempt(
        attempt=1,
        flow_run_id="run",
        status=AttemptStatus(status),
        node=node,
        never_started=never_started,
    )


CASES: list[tuple[str, list[Attempt], bool]] = [
    ("first attempt", [], False),
    ("failed here", [row("failed")], True),
    ("failed elsewhere", [row("failed", ELSEWHERE)], False),
    ("failed here, then elsewhere", [row("failed"), row("failed", ELSEWHERE)], True),
    ("never started", [row("failed", never_started=True)], False),
    ("failed, then never started", [row("failed"), row("failed", never_started=True)], True),
    ("only planned", [row("scheduled")], False),
    ("lost, row still open", [row("running")], True),
    ("cancelled, then run again", [row("cancelled")], True),
    ("completed, then run again", [row("failed"), row("completed")], False),
    ("suspended itself", [row("failed"), row("suspended")], False),
]


@pytest.mark.parametrize(
    ("history", "expected"), [it[1:] for it in CASES], ids=[it[0] for it in CASES]
)
def test_node_is_cleaned_up_where_an_attempt_ended_badly(
    history: list[Attempt], expected: bool
) -> None:
    assert left_something(history, HERE) is expected
