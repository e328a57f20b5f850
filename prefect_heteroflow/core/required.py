"""Literals one of which stands in every match of a pattern, read from its structure."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_parse as _parser

_MAX_STRINGS = 64
"""At most this many strings are kept for one place of a pattern."""
_MAX_MEMBERS = 4
"""Character classes up to this size are spelled out: `[Oo]`, `[0234]`."""
_LONG_ENOUGH = 12
"""Literals longer than this gain nothing; fewer of them do."""

Strings = frozenset[str]


def required_literals(pattern: str) -> frozenset[str]:
    """The best set of literals of `pattern`: each match contains one of them.

    Empty where the pattern has no literal text that it always needs. The pattern must not use
    flags such as `(?i)`.

    Raises:
        re.error: The pattern is not valid.
    """
    parsed = _parser.parse(pattern)
    if parsed.state.flags & re.IGNORECASE:
        return frozenset()
    exact, required = _sequence(parsed)
    return _best(exact or frozenset(), required)


def _score(strings: Strings) -> tuple[int, int]:
    if not strings:
        return (0, 0)
    return (min(_LONG_ENOUGH, min(len(text) for text in strings)), -len(strings))


def _best(*sets: Strings) -> Strings:
    best = max(sets, key=_score)
    return best if _score(best)[0] > 0 else frozenset()


def _sequence(items: Any) -> tuple[Strings | None, Strings]:
    """(all strings that the sequence matches, if few; the best set that every match needs)."""
    running: Strings = frozenset([""])
    whole = True
    best: Strings = frozenset()
    for operation, argument in items:
        exact, required = _item(str(operation), argument)
        best = _best(best, required)
        if exact is not None and len(running) * len(exact) <= _MAX_STRINGS:
            running = frozenset(before + after for before in running for after in exact)
            continue
        best = _best(best, running)
        whole = False
        running = exact if exact is not None else frozenset([""])
    best = _best(best, running)
    return (running if whole else None), best


def _item(operation: str, argument: Any) -> tuple[Strings | None, Strings]:
    nothing: Strings = frozenset()
    if operation == "LITERAL":
        return frozenset([chr(argument)]), nothing
    if operation == "IN":
        return _members(argument), nothing
    if operation in ("AT", "ASSERT", "ASSERT_NOT"):
        return frozenset([""]), nothing
    if operation == "SUBPATTERN":
        return _sequence(argument[-1])
    if operation == "BRANCH":
        branches = [_sequence(branch) for branch in argument[1]]
        needed = [_best(exact or nothing, required) for exact, required in branches]
        union = nothing.union(*needed) if all(needed) else nothing
        exacts = [exact for exact, _ in branches if exact is not None]
        if len(exacts) == len(branches):
            together = nothing.union(*exacts)
            if len(together) <= _MAX_STRINGS:
                return together, union
        return None, union
    if operation in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        exact, required = _sequence(body)
        if high == 1 and exact is not None:
            return (exact | {""} if low == 0 else exact), nothing
        return None, (_best(exact or nothing, required) if low else nothing)
    return None, nothing


def _members(argument: Any) -> Strings | None:
    found: set[str] = set()
    for kind, value in argument:
        if str(kind) == "LITERAL":
            found.add(chr(value))
        elif str(kind) == "RANGE" and value[1] - value[0] < _MAX_MEMBERS:
            found.update(chr(code) for code in range(value[0], value[1] + 1))
        else:
            return None
    return frozenset(found) if 0 < len(found) <= _MAX_MEMBERS else None
