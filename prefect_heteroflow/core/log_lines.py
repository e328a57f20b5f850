"""Output of a job as lines: escape codes gone, prefixes of ranks and loggers recognised."""

from __future__ import annotations

import re

MAX_LINE = 4000
"""Characters of a line that are looked at together; a longer line is cut into pieces."""
OVERLAP = 512
"""Characters by which the pieces of a long line overlap."""

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])?"
)
ESCAPES_BYTES = re.compile(
    rb"\x1b(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])?"
)

# Things that stand before the message: ranks, log levels, time stamps, pods, task-group frames.
# Each is anchored where the last one ended, so that the loop in `strip_prefixes` is linear.
_PREFIX = re.compile(
    r"[\s|]{1,40}"
    r"|\[(?:default|rank)?\d{1,6}\]:"
    r"|\[\d{1,4},\d{1,6}\]<std(?:out|err)>:"
    r"|\d{1,6}: (?=\S)"
    r"|\([^()\n]{1,80}?(?:pid|ip|actor|rank|TP\d|DP\d|Worker|Core)[^()\n]{0,80}\)"
    r"|\[?\d{4}[-/]\d{1,2}[-/]\d{1,2}[T ,]?(?:\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d{2}:?\d{2})?)?\]?,?"
    r"|\[?\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?\]?"
    r"|[EWIFD]\d{4} \d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?: {1,8}\d{1,20})? [^\s\]]{1,120}\]"
    r"|(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG|EXCEPTION)\b(?:[ :|-]{0,3}"
    r"\d\d-\d\d \d\d:\d\d:\d\d)?"
    r"|\[[A-Za-z_./:-]{1,60}(?::\d{1,6})?\]"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d"
    r"|(?:stderr|stdout) ?[:|F]"
    r"|[a-z0-9][a-z0-9_.-]{1,60}  ?\|"
    r"|[-:|>] "
)


def without_codes(text: str) -> str:
    """`text` without NUL and escape codes."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text


def split_lines(text: str) -> list[str]:
    """Lines of `text`, split at newlines and carriage returns, without NUL and escape codes."""
    text = without_codes(text)
    if "\r" in text:
        text = text.replace("\r", "\n")
    lines = text.split("\n")
    if len(text) <= MAX_LINE or all(len(line) <= MAX_LINE for line in lines):
        return lines
    return [piece for line in lines for piece in _pieces(line)]


def _pieces(line: str) -> list[str]:
    """A long line in pieces that overlap, so that no message is cut in two."""
    if len(line) <= MAX_LINE:
        return [line]
    step = MAX_LINE - OVERLAP
    return [line[start : start + MAX_LINE] for start in range(0, len(line) - OVERLAP, step)]


def strip_prefixes(line: str) -> str:
    """The message of a line, without what ranks, loggers and schedulers put before it."""
    position = 0
    for _ in range(12):
        found = _PREFIX.match(line, position)
        if found is None or found.end() == position:
            break
        position = found.end()
    return line[position:]


def missing_end(seen: bytes, tail: bytes) -> bytes:
    """The part of `tail` that comes after what was seen.

    Args:
        seen: The end of a stream that may have broken off.
        tail: The end of the whole text.
    """
    # The longest beginning of the tail with which the stream ended: all of it, as a rule.
    for length in range(min(len(seen), len(tail)), 0, -1):
        if seen.endswith(tail[:length]):
            return tail[length:]
    return tail
