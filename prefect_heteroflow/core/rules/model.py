"""One row of the rule table: what a line of text says about why an attempt ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from prefect_heteroflow.core.failures import FailureClass


class Role(str, Enum):
    """What a matching line is in the story of a failure. The order is the priority."""

    PLATFORM = "platform"
    """The scheduler, the kernel or the GPU driver says so; beats what the job says afterwards."""
    ROOT = "root"
    """A cause with a name of its own."""
    GENERIC = "generic"
    """An uncaught exception, panic or abort that no other rule knows."""
    FOLLOW_UP = "follow-up"
    """Usually the victim of another process that failed first; the cause if nobody else did."""
    SUMMARY = "summary"
    """A parent's report of a child's death; decides only when the child itself is silent."""
    RECOVERED = "recovered"
    """What was reported before this line was survived."""
    BENIGN = "benign"
    """Advice, a hint or a warning: hides every other rule in the same line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern for one line, with the class it proves and texts that show what it is for.

    `pattern` is searched in one line (at most `log_lines.MAX_LINE` characters, escape codes and
    rank prefixes removed). It must be linear: every repeat bounded, none inside another
    (`tests/core/test_rules_linear.py`). What the scanner looks for in gigabytes of output are the
    literals that every match needs, which `required_literals` reads from the pattern; so each
    branch of a pattern should hold a word that is rare in ordinary output.
    """

    id: str
    failure: FailureClass | None
    """`None` for the roles `RECOVERED` and `BENIGN`."""
    pattern: str
    sample: str
    """A text (one or more lines) in which the rule fires."""
    near_miss: str
    """A text that looks alike and in which it must not fire."""
    framework: str
    sentence: str
    """For a person; `{requested}`, `{total}`, `{free}`, `{own}`, `{foreign}`, `{gpu}` are filled in
    where the numbers are known; a clause in `[...]` is dropped where one of its numbers is not."""
    role: Role = Role.ROOT
    confidence: float = 0.9
    numbers: tuple[str, ...] = ()
    """Patterns with the named groups `requested`, `total`, `free`, `own`, `foreign`, `gpu`."""
    parser: str | None = None
    """Name of a parser in `figures.PARSERS`, for texts that need arithmetic."""
    unless: str | None = None
    """A pattern that, found in the same line, takes the match back."""
    context: str | None = None
    """A pattern that must stand in the same line or one of the `CONTEXT_LINES` before it."""
    anywhere: str | None = None
    """A pattern that must stand somewhere in the whole text."""
    at_start: bool = False
    """True for texts of the container engine: they decide in the phase `start`."""
    regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "regex", re.compile(self.pattern))


CONTEXT_LINES = 8
"""How many lines before a match `Rule.context` may stand."""
