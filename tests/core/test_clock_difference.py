"""One machine's clock against the server's, by the dates of the server's answers."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.clock_difference import (
    SLOWEST_SECONDS,
    TOLERATED_SECONDS,
    ClockDifference,
    note_date,
    text_of_change,
)

SERVER = 1_796_040_000.0
"""The server's time at the first answer, a whole second."""
UNKNOWN = ClockDifference()
AGREES = ClockDifference(is_measured=True)


def date_of(at: float) -> str:
    """As uvicorn writes it: whole seconds, cut off."""
    return formatdate(int(at), usegmt=True)


def answer(
    known: ClockDifference, *, ahead: float, at: float = SERVER, took: float = 0.0, late: float = 0
) -> ClockDifference:
    """One request of a machine whose clock is `ahead`; the date is `late` seconds too old."""
    sent = at + ahead
    return note_date(known, date_of(at + took / 2 - late), sent=sent, received=sent + took)


@pytest.mark.parametrize(
    ("ahead", "seconds"),
    [
        (0.0, 0.0),
        (4.5, 0.0),
        (-4.0, 0.0),
        (6.0, -5.5),
        (-6.0, 6.5),
        (600.0, -599.5),
        (-600.0, 600.5),
        (1e9, -1e9 + 0.5),
    ],
)
def test_first_answer_gives_the_difference_from_five_seconds_on(ahead: float, seconds: float):
    assert answer(UNKNOWN, ahead=ahead).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "yesterday",
        "Mon, 30 Nov",
        "Mon, 30 Nov 2026 12:00:00",
        "Mon, 99 Nov 2026 12:00:00 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 30 Nov 99999999999 12:00:00 GMT",
        "1796040000",
    ],
)
def test_header_that_is_missing_or_cannot_be_read_changes_nothing(date: str | None):
    for known in (UNKNOWN, AGREES, ClockDifference(seconds=60.0, is_measured=True)):
        assert note_date(known, date, sent=SERVER, received=SERVER) == known


@pytest.mark.parametrize("took", [SLOWEST_SECONDS + 0.1, 3600.0, -0.1, -600.0])
def test_answer_that_took_long_or_during_which_the_clock_was_set_back_changes_nothing(took: float):
    date = date_of(SERVER + 600)
    assert note_date(UNKNOWN, date, sent=SERVER, received=SERVER + took) == UNKNOWN


def test_known_difference_stays_as_it_is_while_answers_differ_little():
    """Else times would jump to and fro by the coarseness of the header."""
    known = answer(UNKNOWN, ahead=600.0)
    for at, ahead in enumerate((600.4, 599.0, 603.0)):
        known = answer(known, ahead=ahead, at=SERVER + at)
        assert known == ClockDifference(seconds=-599.5, is_measured=True)


def test_changed_difference_counts_when_a_later_date_confirms_it():
    once = answer(AGREES, ahead=600.0)
    assert once.seconds == 0.0
    assert answer(once, ahead=600.0, at=SERVER + 5).seconds == pytest.approx(-599.5)


def test_clock_that_was_set_right_needs_no_correction_any_more():
    known = answer(UNKNOWN, ahead=600.0)
    known = answer(known, ahead=0.0, at=SERVER + 5)
    assert answer(known, ahead=0.0, at=SERVER + 10) == AGREES


def test_date_of_a_server_that_stood_still_changes_nothing():
    """It gives the second at which it stood still to all who ask before its clock ticks again."""
    known = AGREES
    for moment in (0.0, 0.3, 0.6):
        known = answer(known, ahead=0.0, at=SERVER + moment, late=60 + moment)
        assert known.seconds == 0.0
    assert answer(known, ahead=0.0, at=SERVER + 1) == AGREES


def test_two_stops_of_the_server_confirm_nothing():
    known = answer(AGREES, ahead=0.0, late=60)
    assert answer(known, ahead=0.0, at=SERVER + 100, late=30).seconds == 0.0


@given(ahead=st.floats(-1e8, 1e8), at=st.floats(0, 1e6), took=st.floats(0, SLOWEST_SECONDS))
def test_corrected_clock_is_the_servers_to_within_what_is_tolerated(
    ahead: float, at: float, took: float
):
    moment = SERVER + at
    known = answer(UNKNOWN, ahead=ahead, at=moment, took=took)
    error = abs(moment + ahead + known.seconds - moment)
    assert error <= TOLERATED_SECONDS + 0.5 + SLOWEST_SECONDS / 2
    assert known.seconds == 0 or abs(known.seconds) >= TOLERATED_SECONDS


@given(
    st.lists(
        st.tuples(st.floats(0.1, 60), st.floats(0, SLOWEST_SECONDS), st.floats(-2, 2)), max_size=30
    )
)
def test_clock_kept_by_ntp_is_never_corrected(answers: list[tuple[float, float, float]]):
    known, at = UNKNOWN, SERVER
    for pause, took, ahead in answers:
        at += pause
        known = answer(known, ahead=ahead, at=at, took=took)
        assert known.seconds == 0.0


@given(st.text(), st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_no_header_and_no_clock_makes_it_fail(date: str, sent: float, received: float):
    note_date(UNKNOWN, date, sent=sent, received=received)


@pytest.mark.parametrize(
    ("said", "seconds", "begin"),
    [
        (0.0, 0.0, None),
        (0.0, -600.4, "The clock of this machine is 600 s ahead of that of the Prefect server;"),
        (0.0, 6.0, "The clock of this machine is 6 s behind that of the Prefect server;"),
        (-600.0, -605.0, None),
        (-600.0, -640.0, "The clock of this machine is 640 s ahead of"),
        (-6.0, 6.0, None),
        (-600.0, 0.0, "The clock of this machine agrees"),
    ],
)
def test_difference_is_told_when_it_comes_changes_by_much_or_goes(
    said: float, seconds: float, begin: str | None
):
    text = text_of_change(said, seconds)
    assert text is None if begin is None else (text or "").startswith(begin)
