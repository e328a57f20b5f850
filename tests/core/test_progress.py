"""Progress read from text, and attempts that end at the same point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.progress import (
    Progress,
    parse_progress,
    progress_of_percent,
    shown_percent,
    stuck_reason,
)
from prefect_heteroflow.infra.progress_file import READ_BYTES, read_progress_file

TEXTS = [
    ("percent", "42 %", 42.0),
    ("percent without a space", "epoch 3: 42.5%", 42.5),
    ("share", "step 1200/5000", 24.0),
    ("share in words", "1200 of 5000", 24.0),
    ("fraction", "0.25", 25.0),
    ("whole number", "1200", None),
    ("more than all", "130 %", None),
    ("of nothing", "0/0", None),
    ("words", "loading the data", None),
]


@pytest.mark.parametrize(("text", "percent"), [it[1:] for it in TEXTS], ids=[it[0] for it in TEXTS])
def test_text_is_a_point_and_gives_a_percentage_if_it_has_one(
    text: str, percent: float | None
) -> None:
    assert parse_progress(text) == Progress(point=text, percent=percent)


def test_last_line_that_is_not_empty_counts() -> None:
    found = parse_progress("10 %\n20 %\n\n  \n")
    assert found is not None
    assert found.point == "20 %"


@pytest.mark.parametrize("text", ["", "\n \n"], ids=["empty", "blank"])
def test_text_without_a_line_is_no_progress(text: str) -> None:
    assert parse_progress(text) is None


STUCK = [
    ("three at one point", ["a", "a", "a"], 3, True),
    ("the last three of four", ["b", "a", "a", "a"], 3, True),
    ("two at one point", ["a", "a"], 3, False),
    ("a step further", ["a", "a", "b"], 3, False),
    ("a step in between", ["a", "b", "a"], 3, False),
    ("unknown", [None, None, None], 3, False),
    ("unknown in between", ["a", None, "a"], 3, False),
    ("off", ["a", "a", "a"], 0, False),
]


@pytest.mark.parametrize(
    ("points", "limit", "stuck"), [it[1:] for it in STUCK], ids=[it[0] for it in STUCK]
)
def test_attempts_are_stuck_that_end_at_one_point_as_often_as_the_limit(
    points: list[str | None], limit: int, stuck: bool
) -> None:
    assert (stuck_reason(points, limit) is not None) is stuck


def test_reason_names_the_point() -> None:
    assert stuck_reason(["step 7"] * 3, 3) == (
        "3 attempts in a row ended at the same point (step 7): no progress is made."
    )


@given(st.floats())
def test_no_more_than_98_percent_is_shown_before_the_end(percent: float) -> None:
    assert 0 <= shown_percent(percent, succeeded=False) <= 98
    assert shown_percent(percent, succeeded=True) == 100


def test_percentage_of_an_artifact_is_a_point() -> None:
    assert progress_of_percent(42.0) == parse_progress("42 %")


def test_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    file.write_text("noise\n" * READ_BYTES + "7/10\n")
    assert read_progress_file(file) == Progress(point="7/10", percent=70.0)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "empty"])
def test_what_is_no_file_with_a_line_says_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "progress"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    assert read_progress_file(path) is None
