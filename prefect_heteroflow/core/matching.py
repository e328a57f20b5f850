"""Which rules match which lines: the rule table applied to the output of an attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from prefect_heteroflow.core.failures import Diagnosis, FailureClass, MemoryFigures
from prefect_heteroflow.core.literals import BENIGN, candidates, shapes_of
from prefect_heteroflow.core.log_lines import MAX_LINE, strip_prefixes
from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.core.rules import Role, Rule
from prefect_heteroflow.core.rules.figures import (
    ABSURD_BYTES,
    PARSERS,
    format_size,
    read_numbers,
)
from prefect_heteroflow.core.rules.model import CONTEXT_LINES

MAX_SHOWN = 500
"""Characters of the line in a diagnosis."""
_BEFORE_MATCH = 100
"""Characters of a long line that are shown before what a rule found in it."""

_ENGINE_WORDS = re.compile(
    r"[Dd]aemon|[Dd]ocker|kubelet|OCI |containerd|nvidia-container|registry|manifest|runc|podman"
    r"|StartContainer|Reason: |Message: "
)


_TAG = re.compile(r"\[(?:CUDA|GPU|HIP|ROCm|TRT|OpenCL)\] ")
"""Tags that look like a logger's prefix and say which device the message is about."""

_PROGRAM_MISTAKE = re.compile(
    r"(?:Assertion|Key|Name|Attribute|Type|Index|Syntax|Indentation|ZeroDivision|UnboundLocal"
    r"|ModuleNotFound)Error: "
)
"""Whatever such an exception quotes, the program itself is wrong."""

_MISTAKE_CLASSES = (FailureClass.APPLICATION_ERROR, FailureClass.INVALID_CONFIG)


def message_of(raw: str) -> str:
    """The message of a line: without prefixes, but with a tag that names the device."""
    message = strip_prefixes(raw)
    tag = _TAG.search(raw, 0, len(raw) - len(message))
    return message if tag is None else raw[tag.start() :]


@dataclass(frozen=True, slots=True)
class Match:
    """One rule in one line."""

    rule: Rule
    index: int
    """Number of the line, from 0."""
    line: str
    """Without the prefixes of ranks and loggers."""
    raw: str


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def find_matches(lines: Sequence[str], *, start: bool) -> list[Match]:
    """The best rule of each line that has one.

    Args:
        lines: Output without escape codes.
        start: The attempt never ran; texts of the container engine come first.
    """
    clipped = [line[:MAX_LINE] for line in lines]
    matches: list[Match] = []
    for index, shape in enumerate(shapes_of(clipped)):
        rules = candidates(shape)
        if rules:
            found = match_line(rules, clipped, index, start=start)
            if found is not None:
                matches.append(found)
    return matches


def match_line(
    rules: Sequence[Rule], lines: Sequence[str], index: int, *, start: bool
) -> Match | None:
    """The first of `rules` that fires in line `index`, unless the line is known to mean nothing."""
    line = message_of(lines[index])
    if _PROGRAM_MISTAKE.match(line) is not None:
        rules = [rule for rule in rules if rule.failure in _MISTAKE_CLASSES]
    if start:
        rules = sorted(rules, key=_later_at_start)
    for rule in rules:
        if _fires(rule, lines, index, line, start):
            if any(benign.regex.search(line) for benign in BENIGN):
                return None
            return Match(rule, index, line, lines[index])
    return None


def _later_at_start(rule: Rule) -> bool:
    """What the engine says comes first, but for its mere "I refused"."""
    return not rule.at_start or rule.role is Role.SUMMARY


def _fires(rule: Rule, lines: Sequence[str], index: int, line: str, start: bool) -> bool:
    if rule.regex.search(line) is None:
        return False
    if rule.at_start and not start and _ENGINE_WORDS.search(line) is None:
        return False
    if rule.unless is not None and _compiled(rule.unless).search(line) is not None:
        return False
    if rule.context is not None:
        context = _compiled(rule.context)
        near = lines[max(0, index - CONTEXT_LINES) : index + 1]
        if not any(context.search(other[:MAX_LINE]) for other in near):
            return False
    if rule.anywhere is not None:
        anywhere = _compiled(rule.anywhere)
        if not any(anywhere.search(other[:MAX_LINE]) for other in lines):
            return False
    return True


def figures_of(rule: Rule, line: str) -> MemoryFigures | None:
    """The numbers that `rule` knows how to read from `line`."""
    if rule.parser is not None:
        return PARSERS[rule.parser](line)
    if rule.numbers:
        return read_numbers(rule.numbers, line)
    return None


_CLAUSE = re.compile(r"\[([^\]]{1,120})\]")


def sentence_of(template: str, figures: MemoryFigures | None) -> str:
    """The sentence of a rule with the figures filled in; clauses without their figures drop."""
    words: dict[str, str] = {}
    if figures is not None:
        for name, value in (
            ("requested", figures.requested_bytes),
            ("total", figures.total_bytes),
            ("free", figures.free_bytes),
            ("own", figures.own_bytes),
            ("foreign", figures.foreign_bytes),
        ):
            if value is not None:
                words[name] = format_size(value)
        if figures.gpu_index is not None:
            words["gpu"] = str(figures.gpu_index)

    def fill(clause: re.Match[str]) -> str:
        try:
            return clause.group(1).format_map(words)
        except KeyError:
            return ""

    return _CLAUSE.sub(fill, template)


def is_absurd(figures: MemoryFigures | None) -> bool:
    """Whether the size asked for cannot be meant: negative, or beyond any machine."""
    if figures is None or figures.requested_bytes is None:
        return False
    return figures.requested_bytes < 0 or figures.requested_bytes >= ABSURD_BYTES


_MEMORY = (FailureClass.CPU_OUT_OF_MEMORY, FailureClass.GPU_OUT_OF_MEMORY)


def shown(line: str) -> str:
    """`line` as it may be shown and stored: secrets masked, at most `MAX_SHOWN` characters."""
    return mask_secrets(line[: 4 * MAX_SHOWN].strip())[:MAX_SHOWN]


def _shown_at(rule: Rule, line: str) -> str:
    """`line` as it may be shown; of a long one the part in which `rule` fires."""
    if len(line) <= MAX_SHOWN:
        return shown(line)
    masked = mask_secrets(line[:MAX_LINE].strip())
    found = rule.regex.search(masked)
    start = 0 if found is None else max(0, found.start() - _BEFORE_MATCH)
    if len(masked) - start < MAX_SHOWN:
        start = max(0, len(masked) - MAX_SHOWN)
    if found is not None and found.end() <= MAX_SHOWN:
        start = 0
    return masked[start : start + MAX_SHOWN].strip()


def diagnosis_from(rule: Rule, line: str, runner_up: FailureClass | None = None) -> Diagnosis:
    """The diagnosis that `rule` gives for `line`."""
    figures = figures_of(rule, line)
    if rule.failure in _MEMORY and is_absurd(figures):
        return Diagnosis(
            failure=FailureClass.APPLICATION_ERROR,
            rule="absurd-allocation-size",
            reason="The program asked for more memory than any machine has: a wrong size.",
            line=_shown_at(rule, line),
            confidence=0.85,
            figures=figures,
            runner_up=rule.failure,
        )
    return Diagnosis(
        failure=rule.failure or FailureClass.UNKNOWN_ERROR,
        rule=rule.id,
        reason=sentence_of(rule.sentence, figures),
        line=_shown_at(rule, line),
        confidence=rule.confidence,
        figures=figures,
        runner_up=runner_up,
    )
