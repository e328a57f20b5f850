"""How far a machine's clock is from the server's, by the `Date` of the server's answers.

Times that machines compare with each other are the server's: else a machine whose clock is ten
minutes ahead takes all others for silent since ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import formatdate, mktime_tz, parsedate_tz

TOLERATED_SECONDS = 5.0
"""Differences below this are none. A measurement is wrong by half a second (`Date` has whole ones)
and half the request's time, 2.5 s in all; and clocks that are kept by NTP need no correction."""
SLOWEST_SECONDS = 4.0
"""An answer that took longer says too little about the moment of its `Date`."""
SAID_AGAIN_SECONDS = 30.0
"""A difference is worth a further word when it has changed by so much."""
_EARLIEST, _LATEST = 946_684_800.0, 32_503_680_000.0
"""The years 2000 to 2999. Any other date is a mistake, whatever this machine's own clock says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDifference:
    """What one process knows of its machine's clock; the empty one at first."""

    seconds: float = 0.0
    """To be added to the machine's clock; positive if that is behind. 0 below 5 s."""
    is_measured: bool = False
    doubted: tuple[float, float] | None = None
    """`Date`, seconds since the epoch, and difference of a measurement that none has confirmed."""


def note_date(
    known: ClockDifference, date: str | None, *, sent: float, received: float
) -> ClockDifference:
    """What is known after one more answer.

    The first measurement counts at once, since commands make only a few requests. Later, another
    difference than the known one counts when a second answer with a later `Date` confirms it: a
    server that stood still for a minute gives the old second to whoever asks just then.

    Args:
        known: What was known before.
        date: The answer's `Date` header; without one that can be read nothing changes.
        sent: When the request was sent, by this machine's clock, seconds since the epoch.
        received: When its answer had come, by the same clock.
    """
    at = _epoch(date)
    if at is None or not 0 <= received - sent <= SLOWEST_SECONDS:
        return known
    difference = at + 0.5 - (sent + received) / 2
    if abs(difference) < TOLERATED_SECONDS:
        difference = 0.0
    if not known.is_measured:
        return ClockDifference(seconds=difference, is_measured=True)
    if difference == known.seconds or (
        difference and abs(difference - known.seconds) < TOLERATED_SECONDS
    ):
        return replace(known, doubted=None)
    if known.doubted is not None:
        doubted_at, doubted = known.doubted
        if at == doubted_at:
            return known
        if at > doubted_at and abs(difference - doubted) < TOLERATED_SECONDS:
            return ClockDifference(seconds=difference, is_measured=True)
    return replace(known, doubted=(at, difference))


def text_of_change(said: float, seconds: float) -> str | None:
    """One or two sentences for the log, `None` if there is nothing new.

    Args:
        said: The difference of the last text, 0 at first.
        seconds: The difference now (`ClockDifference.seconds`).
    """
    if seconds == said or (said and seconds and abs(seconds - said) < SAID_AGAIN_SECONDS):
        return None
    if not seconds:
        return "The clock of this machine agrees with that of the Prefect server again."
    side = "behind" if seconds > 0 else "ahead of"
    effect = "late" if seconds > 0 else "early"
    return (
        f"The clock of this machine is {abs(seconds):.0f} s {side} that of the Prefect server;"
        " heartbeats and due times are corrected by that. Prefect's own poll is not, and finds"
        f" scheduled runs that much too {effect}: set up NTP on this machine or on the server's."
    )


def _epoch(date: str | None) -> float | None:
    """Seconds since the epoch of a date in the one form that HTTP lets a server write."""
    try:
        parsed = parsedate_tz(date or "")
        if parsed is None:
            return None
        at = float(mktime_tz(parsed))
        is_usable = _EARLIEST <= at < _LATEST and formatdate(at, usegmt=True) == date
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return at if is_usable else None
