"""The rule table: every row stands for itself, and fires for what it says and nothing else."""

from __future__ import annotations

import re

import pytest

from prefect_heteroflow.core.failures import Evidence, FailureClass
from prefect_heteroflow.core.literals import TELLING, needed_literals
from prefect_heteroflow.core.log_lines import split_lines, strip_prefixes
from prefect_heteroflow.core.matching import diagnosis_from, find_matches
from prefect_heteroflow.core.rules import RULES, Role, Rule, rule_by_id

ROWS = [pytest.param(rule, id=rule.id) for rule in RULES]
QUIET = (Role.BENIGN, Role.RECOVERED)
TELLING_ROWS = [pytest.param(rule, id=rule.id) for rule in RULES if rule.role not in QUIET]
QUIET_ROWS = [pytest.param(rule, id=rule.id) for rule in RULES if rule.role in QUIET]


def _fired(rule: Rule, text: str) -> list[str]:
    return [match.rule.id for match in find_matches(split_lines(text), start=rule.at_start)]


@pytest.mark.parametrize("rule", TELLING_ROWS)
def test_sample_of_a_rule_fires_it(rule: Rule) -> None:
    """The sample of a rule shows what it is for: the rule is the one that matches it."""
    assert rule.id in _fired(rule, rule.sample)


@pytest.mark.parametrize("rule", ROWS)
def test_near_miss_of_a_rule_does_not_fire_it(rule: Rule) -> None:
    """A text that only looks alike does not fire the rule."""
    if rule.role in QUIET:
        lines = [strip_prefixes(line) for line in split_lines(rule.near_miss)]
        assert not any(rule.regex.search(line) for line in lines)
    else:
        assert rule.id not in _fired(rule, rule.near_miss)


@pytest.mark.parametrize("rule", QUIET_ROWS)
def test_sample_of_a_quiet_rule_matches(rule: Rule) -> None:
    """Advice, cleanup and recovery lines are known by their samples."""
    assert any(rule.regex.search(strip_prefixes(line)) for line in split_lines(rule.sample))


@pytest.mark.parametrize("rule", TELLING_ROWS)
def test_rule_has_a_class_and_a_plain_sentence(rule: Rule) -> None:
    """Every telling rule says in a sentence what happened; no placeholder is left in it."""
    found = diagnosis_from(rule, rule.sample.splitlines()[-1])
    assert rule.failure is not None
    assert found.reason.endswith(".")
    assert not re.search(r"[{}\[\]]", found.reason)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        pytest.param(rule, needed, id=rule.id)
        for rule, needed in zip(TELLING, needed_literals(), strict=True)
    ],
)
def test_every_match_contains_a_literal_of_the_scanner(rule: Rule, needed: frozenset[str]) -> None:
    """The literals read from the pattern stand in the match; none is so short that it is common."""
    assert needed
    assert min(len(literal) for literal in needed) >= 5
    line = next(
        line
        for line in map(strip_prefixes, split_lines(rule.sample))
        if rule.regex.search(line) is not None
    )
    found = rule.regex.search(line)
    assert found is not None
    assert any(literal in found.group() for literal in needed)


def test_ids_are_unique_slugs() -> None:
    """An id names one rule for good."""
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{3,60}", rule_id) for rule_id in ids)


def test_every_class_has_a_rule_or_a_status() -> None:
    """No failure class is out of reach of the text rules, but for what only we can know."""
    covered = {rule.failure for rule in RULES}
    assert set(FailureClass) - covered == {FailureClass.UNKNOWN_ERROR}


def test_rule_by_id_gives_the_row() -> None:
    """A rule can be looked up by the id that a diagnosis shows."""
    assert rule_by_id("torch-gpu-out-of-memory").failure is FailureClass.GPU_OUT_OF_MEMORY


def test_unknown_rule_id_raises() -> None:
    """An id that no row has is an error."""
    with pytest.raises(KeyError):
        rule_by_id("no-such-rule")


def test_evidence_defaults_mean_not_observed() -> None:
    """Nothing observed matches no rule."""
    assert find_matches(split_lines(Evidence().log or ""), start=False) == []
