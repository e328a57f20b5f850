"""`retry_on` and `stop_on`: what may be written, and what it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, ExceptionInfo, FailureClass
from prefect_heteroflow.core.user_rules import UserRule, combine_user_rules, parse_user_rules
from prefect_heteroflow.user_rules_file import load_user_rules

NOT_FOUND = Evidence(exit_code=1, log="loading\nFileNotFoundError: Checkpoint not found: step_9\n")
ASSERTION = Evidence(
    exit_code=1,
    exception=ExceptionInfo(type_names=("builtins.AssertionError",), message="x > 0"),
)


def _diagnose(evidence: Evidence, rules: tuple[UserRule, ...]) -> Diagnosis:
    found = diagnose(evidence, user_rules=rules)
    assert found is not None
    return found


def test_literal_of_retry_on_retries() -> None:
    """The example from the field: a missing checkpoint may be retried."""
    found = _diagnose(NOT_FOUND, combine_user_rules(retry_on=["Checkpoint not found"]))
    assert (found.verdict, found.failure) == ("retry", FailureClass.APPLICATION_ERROR)
    assert found.rule == "user-rule:retry_on"
    assert found.line == "FileNotFoundError: Checkpoint not found: step_9"


def test_stop_on_stops_although_the_class_is_retryable() -> None:
    """The example from the field: an `AssertionError` never."""
    found = _diagnose(ASSERTION, combine_user_rules(stop_on="AssertionError"))
    assert found.verdict == "stop"


def test_stop_on_comes_before_retry_on() -> None:
    """Where both match, the attempt stops."""
    rules = combine_user_rules(retry_on=["Checkpoint"], stop_on=["Checkpoint not found"])
    assert _diagnose(NOT_FOUND, rules).verdict == "stop"


def test_class_of_a_rule_replaces_the_diagnosis() -> None:
    """A rule can name the failure class; then the class's group decides."""
    rules = combine_user_rules(
        retry_on=[{"pattern": "/Checkpoint .{0,20}found/", "class": "NetworkTimeout"}]
    )
    found = _diagnose(NOT_FOUND, rules)
    assert (found.failure, found.verdict) == (FailureClass.NETWORK_TIMEOUT, None)
    assert found.runner_up is FailureClass.APPLICATION_ERROR


def test_passive_rule_only_reports() -> None:
    """A passive rule changes nothing but says what it would have said."""
    rules = combine_user_rules(retry_on=[{"pattern": "Checkpoint", "passive": True}])
    plain = diagnose(NOT_FOUND)
    assert plain is not None
    found = _diagnose(NOT_FOUND, rules)
    assert found.passive_matches == ("retry_on `Checkpoint` would have said: retry",)
    assert replace(found, passive_matches=()) == plain


def test_users_rule_beats_a_witness() -> None:
    """User rules come before the built-in ones, the engine's flag included."""
    evidence = Evidence(exit_code=137, oom_killed=True, log="loss is nan, giving up")
    assert _diagnose(evidence, combine_user_rules(stop_on="loss is nan")).verdict == "stop"


def test_cancel_beats_a_users_rule() -> None:
    """Nothing is retried after a cancel, whatever the rules say."""
    evidence = replace(NOT_FOUND, cancel_requested=True)
    found = _diagnose(evidence, combine_user_rules(retry_on="Checkpoint"))
    assert (found.failure, found.verdict) == (FailureClass.TASK_CANCELLED, None)


def test_rule_without_a_match_changes_nothing() -> None:
    """A rule that is nowhere in the evidence leaves the diagnosis as it is."""
    assert _diagnose(NOT_FOUND, combine_user_rules(stop_on="nowhere")) == diagnose(NOT_FOUND)


def test_literal_is_no_pattern() -> None:
    """Points and brackets of a literal mean themselves."""
    rules = combine_user_rules(stop_on="Checkpoint.not [found]")
    assert _diagnose(NOT_FOUND, rules).verdict is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("", "it is empty", id="empty"),
        pytest.param(["  "], "it is empty", id="blank"),
        pytest.param(5, "it is a int", id="number"),
        pytest.param([None], "it is a NoneType", id="nothing"),
        pytest.param({"pattern": "a", "then": "b"}, "unknown key `then`", id="unknown-key"),
        pytest.param({"class": "NodeLost"}, "`pattern` must be a text", id="no-pattern"),
        pytest.param(
            {"pattern": "a", "class": "Nope"}, "`Nope` is not a failure class", id="class"
        ),
        pytest.param({"pattern": "a", "retry": "yes"}, "must be true or false", id="flag"),
        pytest.param({"pattern": "a", "retry": True, "stop": True}, "more than one", id="both"),
        pytest.param("/(/", "not a valid regular expression", id="broken-regex"),
        pytest.param("/(a+)+$/", "repeat inside a repeat", id="exponential-regex"),
        pytest.param("/x?/", "matches an empty line", id="matches-everything"),
    ],
)
def test_bad_rule_is_refused_with_what_to_do(value: object, problem: str) -> None:
    """The message names the value, what is allowed, and what to do."""
    with pytest.raises(ValueError, match="cannot be used") as caught:
        parse_user_rules(value, default="retry", source="retry_on")
    assert problem in str(caught.value)
    assert "Allowed is a literal" in str(caught.value)
    assert str(caught.value).startswith("retry_on: ")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_value_is_rules_or_a_value_error(value: object) -> None:
    """Parsing user input gives rules or a `ValueError`, nothing else."""
    try:
        rules = parse_user_rules(value, default="stop", source="x")
    except ValueError:
        return
    assert all(isinstance(rule, UserRule) for rule in rules)


def test_yaml_file_gives_rules(tmp_path: Path) -> None:
    """A file has the two lists, `stop_on` first."""
    path = tmp_path / "rules.yaml"
    path.write_text(
        "retry_on:\n  - Checkpoint not found\n  - {pattern: pool is full, passive: true}\n"
        "stop_on: [AssertionError]\n"
    )
    rules = load_user_rules(path)
    assert [rule.effect for rule in rules] == ["stop", "retry", "retry"]
    assert [rule.passive for rule in rules] == [False, False, True]
    assert rules[0].source == "rules.yaml:stop_on"


@pytest.mark.parametrize("text", ["- a\n", "retry: [a]\n", "retry_on: [5]\n", "a: [\n", "\x00"])
def test_bad_file_is_a_value_error(tmp_path: Path, text: str) -> None:
    """A file of another shape is refused by name."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"rules\.yaml"):
        load_user_rules(path)


def test_missing_file_is_a_value_error(tmp_path: Path) -> None:
    """A path that cannot be read says so."""
    with pytest.raises(ValueError, match="cannot be read"):
        load_user_rules(tmp_path / "none.yaml")


def test_empty_file_has_no_rules(tmp_path: Path) -> None:
    """An empty file is fine."""
    path = tmp_path / "rules.yaml"
    path.write_text("")
    assert load_user_rules(path) == ()
