"""The user's own rules: `retry_on` and `stop_on`, which come before the built-in ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.linear import UNBOUNDED, check_pattern
from prefect_heteroflow.core.log_lines import split_lines, strip_prefixes
from prefect_heteroflow.core.matching import shown

Verdict = Literal["retry", "stop"]

USER_RULE_PREFIX = "user-rule:"
"""What the rule id of a diagnosis by a user's rule begins with."""

_KEYS = ("pattern", "class", "retry", "stop", "passive")
_ALLOWED = (
    "Allowed is a literal (`Checkpoint not found`), a regular expression between slashes "
    "(`/loss is (nan|inf)/`), or a mapping with `pattern` and, if wanted, one of `class: <failure "
    "class>`, `retry: true`, `stop: true`, and `passive: true`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRule:
    """One rule of the user: a text, and what follows where it stands in the evidence."""

    pattern: str
    """The literal, or the regular expression without its slashes."""
    is_regex: bool
    verdict: Verdict | None
    """`None` where the rule names a class instead."""
    failure: FailureClass | None = None
    passive: bool = False
    """It only reports what it would have done."""
    source: str = "retry_on"
    """Where it was written, for messages: `retry_on`, `stop_on` or a file name."""
    regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = self.pattern if self.is_regex else re.escape(self.pattern)
        object.__setattr__(self, "regex", re.compile(text))

    def as_mapping(self) -> dict[str, object]:
        """The rule in the form that `parse_user_rules` reads."""
        mapping: dict[str, object] = {
            "pattern": f"/{self.pattern}/" if self.is_regex else self.pattern,
            "passive": self.passive,
        }
        if self.failure is not None:
            mapping["class"] = self.failure.value
        elif self.verdict is not None:
            mapping[self.verdict] = True
        return mapping

    @property
    def effect(self) -> str:
        """`retry`, `stop` or the name of the class."""
        if self.failure is not None:
            return self.failure.value
        return self.verdict or "retry"


def parse_user_rules(value: object, *, default: Verdict, source: str) -> tuple[UserRule, ...]:
    """Rules from settings, job variables or a file.

    Args:
        value: One rule or a sequence of rules; each a text or a mapping. `None` is no rule.
        default: What a rule without `class`, `retry` or `stop` means.
        source: Where the value stands, for messages.

    Raises:
        ValueError: With the value, what is allowed, and what to do.
    """
    if value is None:
        return ()
    if isinstance(value, (str, Mapping)):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise ValueError(_message(source, value, f"it is a {type(value).__name__}"))
    return tuple(_parse_one(item, default=default, source=source) for item in value)


def combine_user_rules(
    retry_on: object = None, stop_on: object = None, extra: Sequence[UserRule] = ()
) -> tuple[UserRule, ...]:
    """All rules in their order: `stop_on`, then `retry_on`, then `extra` (those of a file).

    Raises:
        ValueError: A rule is not valid.
    """
    return (
        *parse_user_rules(stop_on, default="stop", source="stop_on"),
        *parse_user_rules(retry_on, default="retry", source="retry_on"),
        *extra,
    )


def _parse_one(item: object, *, default: Verdict, source: str) -> UserRule:
    if isinstance(item, str):
        pattern, is_regex = _pattern(item, source)
        return UserRule(pattern=pattern, is_regex=is_regex, verdict=default, source=source)
    if not isinstance(item, Mapping):
        raise ValueError(_message(source, item, f"it is a {type(item).__name__}"))
    unknown = [str(key) for key in item if key not in _KEYS]
    if unknown:
        raise ValueError(_message(source, item, f"it has the unknown key `{unknown[0]}`"))
    text = item.get("pattern")
    if not isinstance(text, str):
        raise ValueError(_message(source, item, "`pattern` must be a text"))
    flags = {key: item.get(key, False) for key in ("retry", "stop", "passive")}
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(_message(source, item, f"`{key}` must be true or false"))
    named = item.get("class")
    if (named is not None) + flags["retry"] + flags["stop"] > 1:
        raise ValueError(_message(source, item, "it says more than one of class, retry and stop"))
    failure = None if named is None else _class(named, item, source)
    verdict: Verdict | None = default
    if flags["retry"] or flags["stop"]:
        verdict = "retry" if flags["retry"] else "stop"
    pattern, is_regex = _pattern(text, source)
    return UserRule(
        pattern=pattern,
        is_regex=is_regex,
        verdict=None if failure is not None else verdict,
        failure=failure,
        passive=flags["passive"],
        source=source,
    )


def _class(named: object, item: object, source: str) -> FailureClass:
    try:
        return FailureClass(named)
    except ValueError:
        names = ", ".join(member.value for member in FailureClass)
        problem = f"`{named}` is not a failure class; the classes are {names}"
        raise ValueError(_message(source, item, problem)) from None


def _pattern(text: str, source: str) -> tuple[str, bool]:
    is_regex = len(text) > 2 and text.startswith("/") and text.endswith("/")
    pattern = text[1:-1] if is_regex else text
    if not pattern.strip():
        raise ValueError(_message(source, text, "it is empty and would match everything"))
    if is_regex:
        try:
            if check_pattern(pattern).search("") is not None:
                raise ValueError("it matches an empty line, and so would match everything")
        except ValueError as error:
            raise ValueError(_message(source, text, str(error))) from None
    return pattern, is_regex


def _message(source: str, value: object, problem: str) -> str:
    said = repr(value)
    said = said if len(said) <= 200 else said[:197] + "..."
    return f"{source}: {said} cannot be used: {problem}. {_ALLOWED} Change it or take it out."


def is_by_user_rule(diagnosis: Diagnosis | None) -> bool:
    """Whether a rule of the user decided it."""
    return diagnosis is not None and diagnosis.rule.startswith(USER_RULE_PREFIX)


def apply_user_rules(found: Diagnosis, evidence: Evidence, rules: Sequence[UserRule]) -> Diagnosis:
    """`found` as the first matching rule changes it; passive rules are only noted."""
    if not rules:
        return found
    lines = list(_lines(evidence))
    passive: list[str] = []
    decided: Diagnosis | None = None
    for rule in rules:
        line = next((line for line in lines if rule.regex.search(line) is not None), None)
        if line is None:
            continue
        if rule.passive:
            passive.append(f"{rule.source} `{rule.pattern}` would have said: {rule.effect}")
        elif decided is None:
            decided = _decided(found, rule, line)
    result = decided if decided is not None else found
    return replace(result, passive_matches=tuple(passive)) if passive else result


def _decided(found: Diagnosis, rule: UserRule, line: str) -> Diagnosis:
    return replace(
        found,
        failure=rule.failure or found.failure,
        rule=f"{USER_RULE_PREFIX}{rule.source}",
        reason=f"The rule `{rule.pattern}` of `{rule.source}` says: {rule.effect}.",
        line=shown(line),
        confidence=1.0,
        verdict=rule.verdict,
        runner_up=found.failure if rule.failure is not None else found.runner_up,
        figures=found.figures if rule.failure in (None, found.failure) else None,
    )


def _lines(evidence: Evidence) -> Iterator[str]:
    """Lines that a user's rule may match, the exception first, then the newest output."""
    if evidence.exception is not None:
        for info in (evidence.exception, *evidence.exception.causes):
            name = info.type_names[0] if info.type_names else "Exception"
            for line in f"{name}: {info.message}".split("\n"):
                yield line[:UNBOUNDED]
    for text in (
        evidence.state_message,
        evidence.engine_error,
        evidence.kubernetes_message,
        evidence.kubernetes_reason,
        evidence.log,
    ):
        for line in reversed(split_lines(text)) if text else ():
            yield strip_prefixes(line[: 4 * UNBOUNDED])[:UNBOUNDED]
