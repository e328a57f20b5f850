"""Whether an attempt that is watched from afar is alive, has ended, or is lost.

Only silence loses an attempt: unbroken, for the whole timeout, and heard over a line that works.
An attempt that answers is never ended for taking long. While our own line is down (the Prefect
API, the way to the Docker engine) or we did not look (a paused or suspended watcher), nothing can
be said about the attempt: that time does not count, and the silence before it is not continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.failures import FailureClass


class Answer(str, Enum):
    """What one look at an attempt gave."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It ended without success; its evidence can be read."""
    ALIVE = "alive"
    """Queued, pending, starting or running."""
    SILENT = "silent"
    """Whoever should know of it was asked and has no sign of life."""
    LINE_DOWN = "line-down"
    """Nobody could be asked: it says nothing about the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """What is remembered between two looks. Times are seconds on the watcher's own clock."""

    looked_at: float | None = None
    """The last look; `None` before the first."""
    silent_since: float | None = None
    """First look of an unbroken silence."""
    line_down_since: float | None = None
    """First look of an outage of our own line."""
    heartbeat: float | None = None
    """Stamp of the newest heartbeat. Only compared with the next one, so whose clock it is does
    not matter."""
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Look again later."""

    note: str | None = None
    """A sentence for the run's log when something changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """It answered that it has ended."""

    succeeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """It counts as `NodeLost`. What it says later is not accepted."""

    reason: str


Judgement = Watch | Ended | Lost


def look(
    contact: Contact,
    answer: Answer,
    *,
    now: float,
    lost_contact_timeout: float,
    longest_pause: float,
    heartbeat: float | None = None,
) -> tuple[Contact, Judgement]:
    """What one more look says of the attempt, and what to remember.

    Args:
        contact: What was remembered; `Contact()` at first.
        answer: What this look gave.
        now: The time of this look, seconds on a clock that does not jump.
        lost_contact_timeout: Seconds of unbroken silence that lose it.
        longest_pause: Longest time between two looks, in seconds, that still counts as looking
            all the time: a few poll intervals.
        heartbeat: Stamp of the newest heartbeat of the run, if it sends any. A new one is a sign
            of life whatever the answer was.
    """
    if contact.lost:
        return contact, Lost(reason="It was given up as lost before.")
    if answer in (Answer.SUCCEEDED, Answer.FAILED):
        after = replace(contact, looked_at=now)
        return after, Ended(succeeded=answer is Answer.SUCCEEDED)
    beats = heartbeat is not None and (contact.heartbeat is None or heartbeat > contact.heartbeat)
    contact = replace(contact, heartbeat=heartbeat if beats else contact.heartbeat)
    if answer is Answer.ALIVE or beats:
        return _alive(contact, now)
    if answer is Answer.LINE_DOWN:
        return _line_down(contact, now)
    return _silent(contact, now, lost_contact_timeout, longest_pause)


def _alive(contact: Contact, now: float) -> tuple[Contact, Watch]:
    note = None
    if contact.line_down_since is not None:
        note = f"The line is back after {now - contact.line_down_since:.0f} s; the attempt lives."
    elif contact.silent_since is not None:
        note = f"The attempt answers again after {now - contact.silent_since:.0f} s of silence."
    after = replace(contact, looked_at=now, silent_since=None, line_down_since=None)
    return after, Watch(note=note)


def _line_down(contact: Contact, now: float) -> tuple[Contact, Watch]:
    note = None
    if contact.line_down_since is None:
        note = "Nobody can be asked about the attempt now; this is waited out, nothing is ended."
    since = now if contact.line_down_since is None else contact.line_down_since
    after = replace(contact, looked_at=now, silent_since=None, line_down_since=since)
    return after, Watch(note=note)


def _silent(
    contact: Contact, now: float, timeout: float, longest_pause: float
) -> tuple[Contact, Judgement]:
    looked_on = contact.looked_at is not None and now - contact.looked_at <= longest_pause
    since = contact.silent_since if looked_on else None
    if since is None:
        after = replace(contact, looked_at=now, silent_since=now, line_down_since=None)
        return after, Watch(note=f"No sign of life; it counts as lost after {timeout:.0f} s of it.")
    if now - since < timeout:
        return replace(contact, looked_at=now), Watch()
    after = replace(contact, looked_at=now, lost=True)
    return after, Lost(reason=f"It gave no sign of life for {now - since:.0f} s.")


def has_gone_on_without(attempt: int, rows: Sequence[Attempt]) -> bool:
    """Whether an attempt is lost by its row, and a later one was started.

    While nobody has started another, its end still counts.
    """
    own = next((row for row in rows if row.attempt == attempt), None)
    if own is None or own.failure != FailureClass.NODE_LOST.value:
        return False
    return any(row.attempt > attempt and row.status is not AttemptStatus.SCHEDULED for row in rows)
