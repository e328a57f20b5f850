"""Every pattern costs a bounded number of steps per character, shown by structure and by count."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core import log_lines, masking, root_cause
from prefect_heteroflow.core.linear import (
    SuperlinearPatternError,
    check_pattern,
    work_per_character,
)
from prefect_heteroflow.core.rules import RULES
from tests.core.step_counter import StepCounter, hostile_texts

PATTERNS = [
    pytest.param(pattern, id=f"{rule.id}-{kind}")
    for rule in RULES
    for kind, pattern in (
        ("pattern", rule.pattern),
        ("unless", rule.unless),
        ("context", rule.context),
        ("anywhere", rule.anywhere),
        *((f"numbers{at}", text) for at, text in enumerate(rule.numbers)),
    )
    if pattern is not None
] + [
    pytest.param(pattern.pattern, id=name)
    for name, pattern in (
        ("prefix", log_lines._PREFIX),
        ("escapes", log_lines._ESCAPES),
        ("progress", root_cause._PROGRESS),
        ("warning", root_cause._WARNING),
    )
]
STEPS_PER_CHARACTER = 3_000
"""Counted on texts made to be slow; the usual number is below 100."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_repeats_a_repeat_or_refers_back(pattern: str) -> None:
    """Each pattern has a finite bound of work per starting position, without open repeats."""
    assert work_per_character(pattern) > 0
    assert "*" not in _unescaped(pattern)
    assert "+" not in _unescaped(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_twice_the_text_costs_at_most_twice_the_steps(pattern: str) -> None:
    """Steps grow in proportion to the text, also on texts that start to match all the time."""
    for text in hostile_texts(pattern):
        part = text[:160]
        single, double = StepCounter(pattern), StepCounter(pattern)
        single.search(part)
        double.search(part + part)
        assert double.steps <= 2.6 * single.steps + 20_000
        assert double.steps <= STEPS_PER_CHARACTER * (2 * len(part) + 1)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        pytest.param(r"a.{0,3}b", "xxaccb", id="gap"),
        pytest.param(r"(?:one|two) \d{1,3}", "say two 77", id="branch"),
        pytest.param(r"\bcat\b(?! food)", "a cat", id="look-ahead"),
        pytest.param(r"(?<!x)y", "zy", id="look-behind"),
    ],
)
def test_step_counter_finds_what_re_finds(pattern: str, text: str) -> None:
    """The counting matcher is a matcher: it agrees with `re` on hits and misses."""
    assert StepCounter(pattern).search(text)
    assert not StepCounter(pattern).search("----")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:\w{1,9}\.){0,9}", r"(a)\1"])
def test_dangerous_patterns_are_refused(pattern: str) -> None:
    """A repeat inside a repeat and a back reference have no bound."""
    with pytest.raises(SuperlinearPatternError):
        work_per_character(pattern)


@pytest.mark.parametrize("pattern", [r"foo.*bar", r"foo.*bar.*baz", r"loss is (nan|inf)"])
def test_ordinary_patterns_of_users_pass(pattern: str) -> None:
    """Two open repeats in a row are still fine on a line of 500 characters."""
    assert check_pattern(pattern).pattern == pattern


@pytest.mark.parametrize("pattern", [r".*a.*b.*c", r"(x+)*", r"("])
def test_costly_or_broken_patterns_of_users_are_refused(pattern: str) -> None:
    """What could hang a worker, or is no pattern, is refused with a `ValueError`."""
    with pytest.raises(ValueError, match=r"regular expression|take"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", [row[0] for row in masking._RULES + masking._NAMED_RULES])
def test_mask_patterns_have_a_bound(pattern: object) -> None:
    """Masking runs on 2000 characters at most, with patterns that repeat no repeat."""
    assert work_per_character(pattern.pattern) > 0  # type: ignore[attr-defined]


def _unescaped(pattern: str) -> str:
    out, inside, escaped = [], False, False
    for char in pattern:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "[" and not inside:
            inside = True
        elif char == "]" and inside:
            inside = False
        elif not inside:
            out.append(char)
    return "".join(out)
