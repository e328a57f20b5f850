"""The root cause among many matches: the earliest that was not survived, not the loudest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.literals import RECOVERED
from prefect_heteroflow.core.matching import Match, diagnosis_from, find_matches
from prefect_heteroflow.core.rules import Role

_PROGRESS = re.compile(
    r"\d{1,3}%\|[^|]{0,120}\| {0,3}\d|\b\d[\d.]{0,9} ?(?:it|s|batch|step|sample|img|tok|token"
    r"|example)s?/(?:s|it|sec)\b|\b(?:[Ee]poch|[Ss]tep|[Ii]ter(?:ation)?|[Bb]atch"
    r"|global_step)\b\W{0,3}\d{1,9}|\bloss\b\W{0,3}\d|\bserver is listening|\bdone training"
    r"|[Tt]raining (?:done|finished|complete)|\b(?:[Ss]aved|[Ss]aving) (?:model|checkpoint"
    r"|results)|[Rr]esults saved|[Cc]heckpoint saved|\[heteroflow: \d{4,12} lines left out\]"
)
_WARNING = re.compile(
    r"(?<!NCCL )\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\bUserWarning: |\b(?:Runtime|Resource|Future)Warning: "
    r"|^W\d{4} "
)
_IGNORED = "Exception ignored in"
_UNINDENTED_EXCEPTION = re.compile(r"[\w.]{1,120}(?:Error|Exception|Interrupt|Exit)\b(?:: |$)")
_TRACEBACK_LINES = 30
"""An ignored exception stands at most this many lines after the notice."""
_GROUP_SCAN = 20_000
"""At most this many lines between two matches are searched for signs of progress."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The match that explains the failure, and what else was possible."""

    match: Match
    runner_up: FailureClass | None
    survived: bool
    """The job went on after the line; only a guess for lack of anything better."""

    def diagnosis(self) -> Diagnosis:
        """What the chosen rule says about its line."""
        return diagnosis_from(self.match.rule, self.match.line, self.runner_up)


def choose(lines: Sequence[str], evidence: Evidence) -> Chosen | None:
    """The match that tells the cause, or `None` where no rule matches.

    The order of roles: platform facts; named causes; then, by their place in the output,
    uncaught exceptions and the victims of lost peers; then the summaries of parents.
    """
    candidates = find_matches(lines, start=evidence.phase == "start")
    if not candidates:
        return None
    survived = {id(match) for match in candidates if _survived(match, candidates, lines)}
    ranked = sorted(candidates, key=lambda match: _rank(match, id(match) in survived, candidates))
    best = ranked[0]
    other = next(
        (m.rule.failure for m in ranked[1:] if m.rule.failure is not best.rule.failure), None
    )
    gone_on = id(best) in survived or _went_on(best.index, len(lines), lines)
    return Chosen(best, other, gone_on)


def _rank(match: Match, survived: bool, candidates: Sequence[Match]) -> tuple[int, int]:
    role = match.rule.role
    if role is Role.PLATFORM:
        return (0, match.index)
    if survived:
        return (6, match.index)
    if role is Role.ROOT:
        if _WARNING.search(match.raw[:160]) and _exception_after(match, candidates):
            return (4, match.index)
        return (1, match.index)
    if role in (Role.GENERIC, Role.FOLLOW_UP):
        return (2, match.index)
    return (5, match.index)


def _exception_after(match: Match, candidates: Sequence[Match]) -> bool:
    return any(
        other.index > match.index
        and (
            other.rule.role is Role.GENERIC
            or (
                other.rule.role is Role.ROOT
                and other.rule.failure is not match.rule.failure
                and _WARNING.search(other.raw[:160]) is None
            )
        )
        for other in candidates
    )


def _survived(match: Match, candidates: Sequence[Match], lines: Sequence[str]) -> bool:
    """The job went on after `match`, and something else failed later."""
    if match.rule.role not in (Role.ROOT, Role.GENERIC, Role.FOLLOW_UP):
        return False
    if _was_ignored(match, lines):
        return True
    later = [
        other.index
        for other in candidates
        if other.index > match.index
        and other.rule.role in (Role.ROOT, Role.GENERIC, Role.PLATFORM)
        and other.rule.failure is not match.rule.failure
    ]
    return bool(later) and _went_on(match.index, later[-1], lines)


def _was_ignored(match: Match, lines: Sequence[str]) -> bool:
    """Python said that it ignores the exception, as it does in destructors."""
    before = lines[max(0, match.index - _TRACEBACK_LINES) : match.index]
    for line in reversed(before):
        text = line[:400]
        if _IGNORED in text:
            return True
        if _UNINDENTED_EXCEPTION.match(text):
            return False  # That one was the ignored exception; ours came after it.
    return False


def _went_on(first: int, last: int, lines: Sequence[str]) -> bool:
    """Some line after `first` and before `last` shows that the job made progress."""
    if any(rule.regex.search(lines[first][:400]) for rule in RECOVERED):
        return True
    for line in lines[first + 1 : min(last, first + _GROUP_SCAN)]:
        text = line[:400]
        if _PROGRESS.search(text) or any(rule.regex.search(text) for rule in RECOVERED):
            return True
    return False
