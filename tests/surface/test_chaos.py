"""A short chaos run: two nodes of processes, every fault once, and every run checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.__main__ import report
from chaos.course import Course


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path) -> None:
    course = Course(
        seed=5,
        runs=11,
        minutes=8.0,
        fault_minutes=1.2,
        gap=12.0,
        with_docker=False,
        say=print,
    )
    result = course.run(tmp_path / "logs")
    assert report(result, 5) == 0
    assert len(result.seen) == 11
    assert result.faults
