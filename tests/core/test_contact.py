"""The rules of lost contact over time, by a clock that only the table moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.contact import Answer, Contact, Ended, Judgement, Lost, Watch, look

TIMEOUT = 600.0
PAUSE = 45.0
STEP = 15.0
S, F, A, N, D = (
    Answer.SUCCEEDED,
    Answer.FAILED,
    Answer.ALIVE,
    Answer.SILENT,
    Answer.LINE_DOWN,
)


@dataclass
class Watcher:
    """Looks at times of its own and remembers what it was told to."""

    now: float = 1000.0
    contact: Contact = field(default_factory=Contact)
    judgement: Judgement = field(default_factory=Watch)

    def look(self, answer: Answer, heartbeat: float | None = None) -> Judgement:
        self.contact, self.judgement = look(
            self.contact,
            answer,
            now=self.now,
            lost_contact_timeout=TIMEOUT,
            longest_pause=PAUSE,
            heartbeat=heartbeat,
        )
        return self.judgement

    def watch(self, answer: Answer, seconds: float, heartbeat_every: float | None = None) -> None:
        """Look every 15 s until `seconds` have passed, or it has ended."""
        end = self.now + seconds
        while self.now <= end:
            beat = None
            if heartbeat_every is not None:
                beat = self.now - self.now % heartbeat_every
            if not isinstance(self.look(answer, beat), Watch):
                return
            self.now += STEP


# What was answered for how many seconds, and what is known then.
TABLE: list[tuple[str, list[tuple[Answer, float]], type]] = [
    ("silence shorter than the timeout", [(A, 60), (N, 585)], Watch),
    ("silence of the whole timeout", [(A, 60), (N, 600)], Lost),
    ("silence from the first look on", [(N, 600)], Lost),
    ("alive for a day", [(A, 86400)], Watch),
    ("a word within the silence", [(N, 585), (A, 0), (N, 585)], Watch),
    ("silence after a word", [(N, 585), (A, 0), (N, 600)], Lost),
    ("our line down for an hour", [(A, 60), (D, 3600)], Watch),
    ("our line down, then alive", [(A, 60), (D, 3600), (A, 60)], Watch),
    ("silence, our line down, less silence", [(N, 585), (D, 15), (N, 585)], Watch),
    ("our line down, then silence of the timeout", [(D, 3600), (N, 600)], Lost),
    ("success after long silence", [(N, 585), (S, 0)], Ended),
    ("failure after an outage", [(D, 3600), (F, 0)], Ended),
]


@pytest.mark.parametrize(
    ("answers", "expected"), [it[1:] for it in TABLE], ids=[it[0] for it in TABLE]
)
def test_only_unbroken_silence_over_a_working_line_loses_an_attempt(
    answers: list[tuple[Answer, float]], expected: type
) -> None:
    watcher = Watcher()
    for answer, seconds in answers:
        watcher.watch(answer, seconds)
    assert isinstance(watcher.judgement, expected)


@pytest.mark.parametrize(
    ("answer", "succeeded"), [(S, True), (F, False)], ids=["success", "failure"]
)
def test_end_is_told_as_it_was(answer: Answer, succeeded: bool) -> None:
    assert Watcher().look(answer) == Ended(succeeded=succeeded)


@pytest.mark.parametrize(
    ("every", "expected"), [(30.0, Watch), (None, Lost)], ids=["heartbeats", "none"]
)
def test_heartbeats_of_the_run_are_life_although_its_worker_is_silent(
    every: float | None, expected: type
) -> None:
    """A worker that was stopped by SIGSTOP while its container goes on."""
    watcher = Watcher()
    watcher.watch(N, 3600, heartbeat_every=every)
    assert isinstance(watcher.judgement, expected)


def test_heartbeat_that_is_read_again_is_no_sign_of_life() -> None:
    """The server still has the last one of a dead run."""
    watcher = Watcher()
    watcher.look(A, heartbeat=5.0)
    for _ in range(int(TIMEOUT / STEP) + 1):
        watcher.look(N, heartbeat=5.0)
        watcher.now += STEP
    assert isinstance(watcher.judgement, Lost)


@pytest.mark.parametrize(
    ("pause", "expected"), [(PAUSE, Lost), (PAUSE + 1, Watch)], ids=["within", "beyond"]
)
def test_time_in_which_nobody_looked_is_not_silence(pause: float, expected: type) -> None:
    """A watcher that slept for an hour must not end what ran on meanwhile."""
    watcher = Watcher()
    watcher.watch(N, 585)
    watcher.now += pause - STEP
    watcher.look(N)
    assert isinstance(watcher.judgement, expected)


def test_what_was_given_up_stays_so() -> None:
    """Its late states are not the run's end."""
    watcher = Watcher()
    watcher.watch(N, 600)
    for late in (A, S, F, N, D):
        assert isinstance(watcher.look(late, heartbeat=9999.0), Lost)


def test_run_is_told_once_of_each_change() -> None:
    watcher = Watcher()
    notes = []
    for answer, seconds in [(A, 30), (D, 300), (A, 30), (N, 60), (A, 30)]:
        end = watcher.now + seconds
        while watcher.now < end:
            judgement = watcher.look(answer)
            assert isinstance(judgement, Watch)
            notes += [judgement.note] if judgement.note else []
            watcher.now += STEP
    assert notes == [
        "Nobody can be asked about the attempt now; this is waited out, nothing is ended.",
        "The line is back after 300 s; the attempt lives.",
        "No sign of life; it counts as lost after 600 s of it.",
        "The attempt answers again after 60 s of silence.",
    ]


def test_loss_names_how_long_it_was_silent() -> None:
    watcher = Watcher()
    watcher.watch(N, 600)
    assert watcher.judgement == Lost(reason="It gave no sign of life for 600 s.")


silences = st.tuples(st.sampled_from([*[N] * 40, A, D]), st.sampled_from([*[PAUSE] * 40, 46.0]))


@given(st.lists(silences, min_size=15, max_size=60))
def test_lost_attempt_was_heard_silent_for_the_whole_timeout(
    looks: list[tuple[Answer, float]],
) -> None:
    """Whatever came before: the looks of the last 600 s were close together and all silent."""
    watcher = Watcher()
    seen: list[tuple[float, Answer]] = []
    for answer, seconds in looks:
        watcher.now += seconds
        seen.append((watcher.now, answer))
        if isinstance(watcher.look(answer), Lost):
            break
    if isinstance(watcher.judgement, Lost):
        first = max((at for at, _ in seen if at <= watcher.now - TIMEOUT), default=None)
        assert first is not None
        last = [(at, answer) for at, answer in seen if at >= first]
        assert all(answer is N for _, answer in last)
        assert all(b[0] - a[0] <= PAUSE for a, b in pairwise(last))
