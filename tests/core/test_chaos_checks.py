"""The chaos run's own eyes: each broken promise is seen, and a run that is right is left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chaos.checks import Seen, violations
from chaos.faults import FaultKind, plan_faults
from chaos.kinds import DOCKER, KINDS, LARGE, SMALL, plan_runs

BY_NAME = {kind.name: kind for kind in KINDS}


def row(attempt: int, status: str = "failed") -> dict[str, object]:
    return {"attempt": attempt, "status": status, "node": "node-1", "never_started": False}


def start(attempt: int, *, alone: bool = True) -> dict[str, object]:
    return {"event": "start", "attempt": attempt, "alone": alone, "time": 1.0}


PLANNED = {"event": "planned", "attempt": 1, "time": 1.0}

RIGHT = Seen(
    run_id="run",
    kind=BY_NAME["transient-later"],
    states=[("SCHEDULED", "AwaitingRetry"), ("RUNNING", "Running"), ("COMPLETED", "Completed")],
    rows=[row(1), row(2, "completed")],
    marks=[start(1), PLANNED, start(2)],
    attempt_runs={"moved": [("RUNNING", "Running"), ("COMPLETED", "Completed")]},
)
UNTAKEN = replace(
    RIGHT, kind=BY_NAME["cancelled"], states=[("CANCELLED", "Cancelled")], rows=[], marks=[]
)

BROKEN = {
    "no end": (replace(RIGHT, states=RIGHT.states[:-1]), "has not ended"),
    "two ends": (replace(RIGHT, states=[*RIGHT.states, ("FAILED", "Failed")]), "ended 2 times"),
    "wrong end": (replace(RIGHT, states=[("CRASHED", "Crashed")]), "expected Completed"),
    "on after its end": (
        replace(RIGHT, states=[*RIGHT.states, ("RUNNING", "Running")]),
        "went on after its end, to Running",
    ),
    "open attempt run": (replace(RIGHT, attempt_runs={"moved": []}), "moved ended 0 times"),
    "gap": (replace(RIGHT, rows=[row(1), row(3, "completed")]), "numbered [1, 3]"),
    "two rows of one": (replace(RIGHT, rows=[row(1), row(1, "completed")]), "numbered [1, 1]"),
    "row left open": (
        replace(RIGHT, rows=[row(1, "running"), row(2, "completed")]),
        "Rows [1] are open",
    ),
    "last row open": (replace(RIGHT, rows=[row(1), row(2, "running")]), "last row is running"),
    "no rows": (replace(RIGHT, rows=[]), "last row is missing"),
    "failure skipped": (replace(RIGHT, rows=[row(1, "completed")]), "has 1 rows"),
    "at the same time": (
        replace(RIGHT, marks=[start(1), PLANNED, start(2, alone=False)]),
        "Attempt 2 ran while another",
    ),
    "started twice": (replace(RIGHT, marks=[start(1), start(1), start(2)]), "started 2 times"),
    "no row": (replace(RIGHT, marks=[start(1), start(2), start(3)]), "Attempts [3] ran"),
    "failed too often": (
        replace(RIGHT, marks=[start(1), PLANNED, start(2), PLANNED]),
        "failed as planned 2 times",
    ),
}


@pytest.mark.parametrize("right", [RIGHT, UNTAKEN], ids=["moved", "cancelled before its start"])
def test_run_that_is_right_breaks_nothing(right: Seen) -> None:
    assert violations(right) == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_promise_is_seen(name: str) -> None:
    seen, expected = BROKEN[name]
    assert any(expected in text for text in violations(seen))


def test_equal_seeds_plan_equal_runs_and_faults() -> None:
    """A violation can be looked for again."""
    pools = [SMALL, LARGE, DOCKER]

    def planned(seed: int) -> tuple[object, object]:
        rng = random.Random(seed)
        runs = plan_runs(rng, 60, within=200.0, pools=set(pools))
        return runs, plan_faults(rng, first=5.0, until=360.0, gap=12.0, pools=pools)

    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_sixty_runs_and_their_faults_are_of_every_kind() -> None:
    rng, pools = random.Random(3), [SMALL, LARGE, DOCKER]
    runs = plan_runs(rng, 60, within=200.0, pools=set(pools))
    faults = plan_faults(rng, first=5.0, until=360.0, gap=15.0, pools=pools)
    assert {run.kind.name for run in runs} == set(BY_NAME)
    assert {fault.kind for fault in faults} == set(FaultKind)


def test_without_docker_nothing_needs_it() -> None:
    rng, pools = random.Random(3), [SMALL, LARGE]
    assert {run.pool for run in plan_runs(rng, 60, within=9.0, pools=set(pools))} <= set(pools)
    kinds = {it.kind for it in plan_faults(rng, first=1, until=400, gap=10, pools=pools)}
    assert kinds.isdisjoint({FaultKind.ENGINE_KILLED, FaultKind.ENGINE_RESTARTED})
