"""What a person edits while a planned attempt waits counts; what was there before does not."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_heteroflow.core.edited_variables import with_edits

BEFORE = {"memory_mb": 64, "command": "a", "placement": {"prefer": "n", "since": "1"}}
PLANNED = {"memory_mb": 128, "command": "a", "placement": {"prefer": "n", "since": "2"}}
UNPLACED = {"memory_mb": 128, "command": "a"}

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("nobody edits", PLANNED, BEFORE, PLANNED),
    ("the planned ones are shown", PLANNED, PLANNED, PLANNED),
    ("a placement that is over", UNPLACED, BEFORE, UNPLACED),
    ("changed", PLANNED, {**BEFORE, "memory_mb": 777}, {**PLANNED, "memory_mb": 777}),
    (
        "changed what is shown",
        PLANNED,
        {**PLANNED, "memory_mb": 777},
        {**PLANNED, "memory_mb": 777},
    ),
    ("set back what is shown", PLANNED, {**PLANNED, "memory_mb": 64}, {**PLANNED, "memory_mb": 64}),
    ("added", PLANNED, {**BEFORE, "shm_mb": 8}, {**PLANNED, "shm_mb": 8}),
    ("removed", UNPLACED, {"memory_mb": 64}, {"memory_mb": 128}),
]


@pytest.mark.parametrize(
    ("planned", "now", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_edits_win_over_what_was_planned_and_nothing_else_does(
    planned: dict[str, Any], now: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert with_edits(planned, before=BEFORE, now=now) == expected


def test_planned_variable_that_the_run_never_had_stays() -> None:
    assert with_edits({"gpu_count": 1}, before={}, now={}) == {"gpu_count": 1}
