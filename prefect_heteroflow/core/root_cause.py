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
    r"(?<!NCCL )\b(?:WARN(?:ING)?|INFO|DEBUG)\b|\bUserWarning: |\b(?:Runtime|Resource"
    r"|Future)Warning: "
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
    story = _Story(candidates, lines)
    survived = {id(match) for match in candidates if story.survived(match)}
    ranked = sorted(candidates, key=lambda match: story.rank(match, id(match) in survived))
    best = ranked[0]
    other = next(
        (m.rule.failure for m in ranked[1:] if m.rule.failure is not best.rule.failure), None
    )
    gone_on = id(best) in survived or _Progress(lines).between(best.index, len(lines))
    return Chosen(best, other, gone_on)


class _Progress:
    """Finds signs of progress; each line is looked at once where the questions come in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._from = 0
        self._to = 0
        """No line from `_from` up to `_to` shows progress."""

    def between(self, first: int, last: int) -> bool:
        """Some line after `first` and before `last` shows that the job made progress."""
        if any(rule.regex.search(self._lines[first][:400]) for rule in RECOVERED):
            return True
        if not self._from <= first + 1 <= self._to:
            self._from = self._to = first + 1
        stop = min(last, first + _GROUP_SCAN)
        while self._to < stop:
            text = self._lines[self._to][:400]
            if _PROGRESS.search(text) or any(rule.regex.search(text) for rule in RECOVERED):
                return True
            self._to += 1
        return False


class _Story:
    """The matches of one output in their order, and what each of them means among the others."""

    def __init__(self, candidates: Sequence[Match], lines: Sequence[str]) -> None:
        self._lines = lines
        self._progress = _Progress(lines)
        self._last: dict[FailureClass | None, int] = {}
        self._last_unwarned: dict[FailureClass | None, int] = {}
        self._last_exception = -1
        self._ignored = any(_IGNORED in line for line in lines)
        for match in candidates:
            role, failure = match.rule.role, match.rule.failure
            if role in (Role.ROOT, Role.GENERIC, Role.PLATFORM):
                self._last[failure] = match.index
            if role is Role.GENERIC:
                self._last_exception = match.index
            elif role is Role.ROOT and _WARNING.search(match.raw[:160]) is None:
                self._last_unwarned[failure] = match.index

    def rank(self, match: Match, survived: bool) -> tuple[int, int]:
        """Where `match` stands among the explanations: the lowest is the best."""
        role = match.rule.role
        if role is Role.PLATFORM:
            return (0, match.index)
        if survived:
            return (6, match.index)
        if role is Role.ROOT:
            if self._error_after(match) and _WARNING.search(match.raw[:160]):
                return (4, match.index)
            return (1, match.index)
        if role in (Role.GENERIC, Role.FOLLOW_UP):
            return (2, match.index)
        return (5, match.index)

    def survived(self, match: Match) -> bool:
        """The job went on after `match`, and something else failed later."""
        if match.rule.role not in (Role.ROOT, Role.GENERIC, Role.FOLLOW_UP):
            return False
        if self._ignored and _was_ignored(match, self._lines):
            return True
        later = _last_of_others(self._last, match)
        return later > match.index and self._progress.between(match.index, later)

    def _error_after(self, match: Match) -> bool:
        return match.index < max(self._last_exception, _last_of_others(self._last_unwarned, match))


def _last_of_others(last: dict[FailureClass | None, int], match: Match) -> int:
    return max(
        (at for failure, at in last.items() if failure is not match.rule.failure), default=-1
    )


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
