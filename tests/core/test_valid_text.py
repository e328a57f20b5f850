"""Text of files, hooks and people: what is written out, and what stays as it is."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.attempts import (
    Attempt,
    AttemptStatus,
    from_row,
    to_markdown,
    to_row,
)
from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.progress import parse_progress
from prefect_heteroflow.core.valid_text import on_one_line, storable
from prefect_heteroflow.infra.cleanup_hook import hook_ended

WRITTEN_OUT = [
    ("NUL", "a\x00b", r"a\x00b"),
    ("line end", "a\nb\r\n", r"a\nb\r\n"),
    ("escape code", "\x1b[31mred", r"\x1b[31mred"),
    ("C1 control character", "\x9b31m", r"\x9b31m"),
    ("byte that is no UTF-8", os.fsdecode(b"\xff\xfe.lock"), r"\xff\xfe.lock"),
    ("other surrogate", "\ud83d", r"\ud83d"),
    ("line end of Unicode", "a\u2028b", r"a\u2028b"),
    ("direction of writing", "\u202egnp.exe", r"\u202egnp.exe"),
]
ANY_TEXT = st.text(st.characters(), max_size=50) | st.text(
    st.sampled_from("a \x00\x1b\n\ud800\udcff"), max_size=50
)


@pytest.mark.parametrize(
    ("text", "shown"), [it[1:] for it in WRITTEN_OUT], ids=[it[0] for it in WRITTEN_OUT]
)
def test_character_that_would_not_show_is_written_out(text: str, shown: str) -> None:
    assert on_one_line(text) == shown


@pytest.mark.parametrize("text", ["plain.lock", "näme with \u00e9 and 🦊", "back\\slash", ""])
def test_text_that_shows_as_it_is_stays(text: str) -> None:
    assert (on_one_line(text), storable(text)) == (text, text)


def test_storable_text_keeps_its_lines() -> None:
    assert storable("a\n\tb\x00\udcff") == "a\n\tb\\x00\\xff"


@given(ANY_TEXT)
def test_any_text_can_be_encoded_and_stored_after_it(text: str) -> None:
    for made in (storable(text), on_one_line(text)):
        assert b"\x00" not in made.encode("utf-8")


# ---- where it is used ----------------------------------------------------------------------------

BAD = os.fsdecode(b"\xff\n\x1b[2J\x00.lock")


def test_report_of_a_cleanup_is_one_line_of_valid_text() -> None:
    report = CleanupReport(removed=(BAD,), hook=f"hook {BAD}", problems=(f"no {BAD}",))
    shown = r"\xff\n\x1b[2J\x00.lock"
    assert report.text() == (f"Cleaned up: removed {shown} (0 bytes); hook {shown}; no {shown}.")


def test_report_of_a_cleanup_names_only_some_of_many_problems() -> None:
    text = CleanupReport(problems=tuple(f"p{number}" for number in range(1000))).text()
    assert text == "Cleaned up: p0; p1; p2; p3; p4; and 995 problems more."


def test_output_of_a_hook_is_one_line_of_valid_text() -> None:
    _, said = hook_ended(3, b"first\nno\x00 \x1b[31mspace\x1b[0m \x07left\n\x00\n")
    assert said == r"the cleanup hook ended with status 3: no space \x07left"


POINTS = [
    ("NUL", "\x00\x00abc", "abc"),
    ("NULs of a file that was cut while it was written", "\x00" * 4000 + "42 %\n", "42 %"),
    ("escape codes", "\x1b[2K\x1b[32m42 %\x1b[0m", "42 %"),
    ("bell", "at\x07 3", r"at\x07 3"),
]


@pytest.mark.parametrize(("text", "point"), [it[1:] for it in POINTS], ids=[it[0] for it in POINTS])
def test_point_of_progress_is_valid_text(text: str, point: str) -> None:
    found = parse_progress(text)
    assert found is not None
    assert found.point == point


def test_progress_file_of_nothing_but_nul_is_no_progress() -> None:
    assert parse_progress("\x00" * 100) is None


def row_with(text: str) -> Attempt:
    return Attempt(
        attempt=1, flow_run_id="run", status=AttemptStatus.FAILED, reason=text, failure="OOMKilled"
    )


def test_row_is_storable_whatever_its_reason_holds() -> None:
    assert to_row(row_with("a\x00\udcff\nb"))["reason"] == "a\\x00\\xff\nb"


def test_markdown_is_storable_whatever_a_row_holds() -> None:
    text = to_markdown([row_with("a\x00\udcff")])
    assert b"\x00" not in text.encode("utf-8")


def test_row_of_an_older_version_that_is_not_storable_can_be_shown() -> None:
    row = {**to_row(row_with("")), "reason": "a\udcff"}
    assert from_row(row).reason == r"a\xff"
