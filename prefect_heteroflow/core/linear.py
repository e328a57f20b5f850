"""How much work a regular expression can cost per character of text, from its structure."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_parse as _parser

UNBOUNDED = 500
"""What a repeat without an end counts as: lines are cut to this length for users' patterns."""

MAX_WORK = 2_000_000
"""Steps per character from which a pattern is refused: two open repeats pass, three do not."""


class SuperlinearPatternError(ValueError):
    """The pattern repeats a repeat or refers back, so that its cost has no useful bound."""


def work_per_character(pattern: str) -> int:
    """Upper bound of matching steps at one starting position of `pattern`.

    A backtracking matcher reaches element `i` of a sequence at most once for each way to match
    what stands before it. A repeat of `min` to `max` items ends in at most `max - min + 1` ways,
    an alternation in the sum of its branches; so the bound is the sum, over the elements, of
    the product of the ways before them. Open repeats count as `UNBOUNDED`.

    Raises:
        SuperlinearPatternError: A repeat stands inside a repeat, or there is a back reference.
        re.error: The pattern is not valid.
    """
    work, _ = _sequence(_parser.parse(pattern), inside=False)
    return work


def check_pattern(pattern: str) -> re.Pattern[str]:
    """`pattern` compiled.

    Raises:
        ValueError: It is not valid, or could take too long on a hostile line.
    """
    try:
        work = work_per_character(pattern)
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`/{pattern}/` is not a valid regular expression: {error}") from None
    if work > MAX_WORK:
        raise ValueError(
            f"`/{pattern}/` could take too long on a long line: too many open repeats stand in a "
            "row; use at most two of `.*`, or bounded ones such as `.{0,80}`"
        )
    return compiled


def _sequence(items: Any, *, inside: bool) -> tuple[int, int]:
    """(work, ways) of a parsed sequence."""
    work, ways = 1, 1
    for operation, argument in items:
        item_work, item_ways = _item(str(operation), argument, inside=inside)
        work += ways * item_work
        ways *= item_ways
        if ways > 10**12:
            ways = 10**12
    return work, ways


def _item(operation: str, argument: Any, *, inside: bool) -> tuple[int, int]:
    if operation in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        if high == 1:
            body_work, body_ways = _sequence(body, inside=inside)
            return body_work + 1, body_ways + 1 - (1 if low == 1 else 0)
        if inside:
            raise SuperlinearPatternError(
                "a repeat inside a repeat can take exponential time; write the inner part "
                "without one"
            )
        high = min(int(high), UNBOUNDED) if high is not _parser.MAXREPEAT else UNBOUNDED
        high = max(high, low)
        body_work, body_ways = _sequence(body, inside=high > 1)
        if body_ways > 1 and high > 1:
            # The branches of an alternation inside a repeat: exclusive in our tables, so that
            # each position is matched in one way; counted once per branch all the same.
            body_work *= body_ways
        return max(1, high) * body_work, high - low + 1
    if operation == "SUBPATTERN":
        return _sequence(argument[-1], inside=inside)
    if operation == "ATOMIC_GROUP":
        return _sequence(argument, inside=inside)
    if operation == "BRANCH":
        branches = [_sequence(branch, inside=inside) for branch in argument[1]]
        return sum(work for work, _ in branches), sum(ways for _, ways in branches)
    if operation in ("ASSERT", "ASSERT_NOT"):
        work, _ = _sequence(argument[1], inside=inside)
        return work, 1
    if operation in ("GROUPREF", "GROUPREF_EXISTS", "GROUPREF_IGNORE"):
        raise SuperlinearPatternError("a back reference has no bound; repeat the text instead")
    return 1, 1
