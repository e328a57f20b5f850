"""How far attempts came, and whether they end at the same point again and again."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_heteroflow.core.log_lines import without_codes
from prefect_heteroflow.core.valid_text import on_one_line

MOST_BEFORE_THE_END = 98.0
"""Percent: only a run that has ended shows more."""
MAX_POINT_CHARACTERS = 80
MAX_FILE_CHARACTERS = 4096
"""The longest path that Linux knows."""

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_PERCENT = re.compile(rf"({_NUMBER}) ?%")
_SHARE = re.compile(rf"({_NUMBER}) ?(?:/|of) ?({_NUMBER})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one attempt came."""

    point: str
    """Where it was, as it said it itself; equal texts are the same point."""
    percent: float | None = None
    """0 to 100; `None` where the text gives no share."""


def parse_progress(text: str) -> Progress | None:
    """What the last line that is not empty says; `None` if there is none.

    Any text is a point; escape codes do not count, nor do NULs, as a file has them that was cut
    while it was written. `42 %`, `42.5%`, `1200/5000` and `1200 of 5000` anywhere in it, and a
    number from 0 to 1 with a decimal point, give the percentage too.
    """
    lines = [line.strip() for line in without_codes(text).splitlines() if line.strip()]
    if not lines:
        return None
    point = on_one_line(" ".join(lines[-1].split()))[:MAX_POINT_CHARACTERS]
    return Progress(point=point, percent=_percent(point))


def _percent(point: str) -> float | None:
    if found := _PERCENT.search(point):
        return _within(float(found[1]))
    if found := _SHARE.search(point):
        total = float(found[2])
        return _within(100 * float(found[1]) / total) if total else None
    if re.fullmatch(r"0\.[0-9]{1,15}|1\.0{1,15}", point):
        return _within(100 * float(point))
    return None


def _within(percent: float) -> float | None:
    return percent if 0 <= percent <= 100 else None


def progress_of_percent(percent: float) -> Progress:
    """That of a progress artifact, whose data is a percentage."""
    return Progress(point=f"{percent:g} %", percent=_within(percent))


def stuck_reason(points: Sequence[str | None], limit: int) -> str | None:
    """Why no further attempt is made: the last `limit` attempts all ended at one point.

    Args:
        points: Where each attempt of the task ended, the first attempt first; `None` where it is
            not known, which matches nothing.
        limit: `no_progress_limit`; 0 is off.

    Returns:
        One sentence, or `None` if the last attempts came to different points.
    """
    if limit < 1 or len(points) < limit:
        return None
    last = points[-limit:]
    if last[0] is None or any(point != last[0] for point in last):
        return None
    return f"{limit} attempts in a row ended at the same point ({last[0]}): no progress is made."


def shown_percent(percent: float, *, succeeded: bool) -> float:
    """What the run's progress artifact shows: 100 after success, at most 98 before."""
    if succeeded:
        return 100.0
    return 0.0 if math.isnan(percent) else min(max(percent, 0.0), MOST_BEFORE_THE_END)
