"""Ranges of numbers that a user sets, each with words for what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_MEMORY_MB = 6
"""The Docker engine refuses a smaller memory limit."""
MAX_MEMORY_MB = 2**30
"""1 PiB: more than any machine has, and its bytes still fit the engine's 64-bit number."""
MAX_DELAY_SECONDS = 365 * 24 * 3600
"""One year: a later start is a mistyped number."""
MAX_ATTEMPTS = 100_000
"""More retries than this are a mistyped number; -1 is there for those who never give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What a number may be, both ends included."""

    least: int
    most: int | None = None
    whole: bool = False
    unit: str | None = None
    note: str | None = None
    optional: bool = False
    """`None` is allowed too."""

    def holds(self, value: object) -> bool:
        """Whether `value` is a number in the range; a bool is not a number here."""
        if value is None:
            return self.optional
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if isinstance(value, float) and (self.whole or not math.isfinite(value)):
            return False
        return self.least <= value and (self.most is None or value <= self.most)

    @property
    def allowed(self) -> str:
        """For example `a whole number of MiB from 6 to 1073741824`."""
        number = "a whole number" if self.whole else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        ends = f"{self.least} or more" if self.most is None else f"from {self.least} to {self.most}"
        note = f" ({self.note})" if self.note else ""
        return f"{number}{unit}, {ends}{note}"
