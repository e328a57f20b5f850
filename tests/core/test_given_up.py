"""When an attempt that is lost by its row has been replaced. Pure."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.contact import has_gone_on_without

LOST = Attempt(attempt=1, flow_run_id="front", status=AttemptStatus.FAILED, failure="NodeLost")
OTHER_END = Attempt(
    attempt=1, flow_run_id="front", status=AttemptStatus.FAILED, failure="CpuOutOfMemory"
)
STILL_RUNS = Attempt(attempt=1, flow_run_id="front", status=AttemptStatus.RUNNING)


def second(status: AttemptStatus) -> Attempt:
    return Attempt(attempt=2, flow_run_id="front", status=status)


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        pytest.param([LOST, second(AttemptStatus.RUNNING)], True, id="the next one runs"),
        pytest.param([LOST, second(AttemptStatus.COMPLETED)], True, id="the next one ended"),
        pytest.param([LOST, second(AttemptStatus.SCHEDULED)], False, id="only planned"),
        pytest.param([LOST], False, id="nothing planned"),
        pytest.param([OTHER_END, second(AttemptStatus.RUNNING)], False, id="not lost"),
        pytest.param([STILL_RUNS, second(AttemptStatus.RUNNING)], False, id="not given up"),
        pytest.param([], False, id="no rows"),
    ],
)
def test_attempt_1_has_been_gone_on_without(rows: list[Attempt], answer: bool) -> None:
    assert has_gone_on_without(1, rows) is answer
