"""Reads the output of an attempt once, in chunks, and keeps what tells why it failed."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prefect_heteroflow.core.literals import (
    BENIGN,
    LiteralFinder,
    PlainFinder,
    candidates,
    shapes_of,
)
from prefect_heteroflow.core.log_lines import ESCAPES_BYTES, MAX_LINE, OVERLAP
from prefect_heteroflow.core.matching import message_of, shown
from prefect_heteroflow.core.rule_lines import RuleLines
from prefect_heteroflow.core.user_rules import UserRule

_BLOCK = 256 * 1024
"""Bytes that are gathered before they are looked at."""
_AHEAD = 4 * 1024
"""Bytes after a line that may still belong to its context."""
_LONGEST = 512 * 1024
"""A line longer than this is cut into pieces of this size, which overlap."""
_BEFORE_LINES, _AFTER_LINES = 8, 12
_SNIPPET = 4 * 1024
_HEAD = 2 * 1024
_TAIL = 64 * 1024
_FIRST, _LAST = 4, 4
_LEFT_OUT = "[heteroflow: {} lines left out]"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that a rule matched while the output streamed."""

    rule: str
    line_number: int
    """From 0."""
    line: str
    """Secrets masked, at most 500 characters."""


@dataclass(frozen=True, slots=True)
class _Snippet:
    first_line: int
    """Number of the first line of `text`, from 0."""
    hit_line: int
    text: bytes
    inside: bool = False
    """A piece out of a long line, without its beginning."""


@dataclass(slots=True)
class _Kept:
    first: list[_Snippet] = field(default_factory=list)
    last: deque[_Snippet] = field(default_factory=lambda: deque(maxlen=_LAST))

    def add(self, snippet: _Snippet) -> None:
        if len(self.first) < _FIRST:
            self.first.append(snippet)
        else:
            self.last.append(snippet)


class FailureScanner:
    """Keeps the head, the tail, and for each rule the first and last few lines with context.

    Memory is bounded by about 6 MiB, whatever is fed: any bytes, lines of any length, `NUL`,
    UTF-16 (of ASCII text), escape codes, carriage returns. Nothing is lost that
    `evidence_text()` needs for a diagnosis; that text goes into `Evidence.log`.

    Example:
        ```python
        scanner = FailureScanner()
        for chunk in stream:
            scanner.feed(chunk)
        diagnose(Evidence(exit_code=1, log=scanner.evidence_text()))
        ```
    """

    def __init__(self, finder: LiteralFinder | None = None) -> None:
        """An empty scanner.

        Args:
            finder: An engine for many literals, such as `fast_literals.fast_finder()`;
                by default the standard library's.
        """
        self._finder: LiteralFinder = PlainFinder() if finder is None else finder
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._held = b""
        self._data = b""
        self._scanned = 0
        self._scanned_line = 0
        self._kept: dict[str, _Kept] = {}
        self._head = b""
        self._of_user = RuleLines(())
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def look_for(self, rules: Sequence[UserRule]) -> None:
        """Keep the newest line of each of the user's own rules too, in what is fed from now on."""
        self._of_user = RuleLines(rules)

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the output; they may end anywhere."""
        if not chunk:
            return
        if self._of_user.are_wanted:
            self._of_user.feed(self._decoder.decode(chunk))
        for start in range(0, len(chunk), _BLOCK):
            self._pending.append(bytes(chunk[start : start + _BLOCK]))
            self._pending_size += len(self._pending[-1])
            if self._pending_size >= _BLOCK:
                self._take()
                self._scan(final=False)

    def evidence_text(self) -> str:
        """What was kept, in the order of the output, with notes where lines were left out.

        May be called at any time, and again after more was fed.
        """
        self._take()
        kept = {
            rule: _Kept(list(k.first), deque(k.last, maxlen=_LAST))
            for rule, k in self._kept.items()
        }
        self._scan_range(len(self._data), kept)
        text = _text_of(kept, self._head, self._tail())
        # Behind everything: what a rule has matched far above may be left out of the rest.
        return "\n".join(part for part in (text, self._of_user.text()) if part)

    def findings(self) -> list[Finding]:
        """The lines that rules matched so far, in order; per rule the first and last few."""
        self._take()
        kept = {
            rule: _Kept(list(k.first), deque(k.last, maxlen=_LAST))
            for rule, k in self._kept.items()
        }
        self._scan_range(len(self._data), kept)
        found = [
            Finding(rule, snippet.hit_line, shown(_hit_text(snippet)))
            for rule, rows in kept.items()
            for snippet in (*rows.first, *rows.last)
        ]
        return sorted(found, key=lambda finding: (finding.line_number, finding.rule))

    def _take(self) -> None:
        """Moves what is pending into the window, normalised."""
        if not self._pending:
            return
        new = self._held + b"".join(self._pending)
        self._pending.clear()
        self._pending_size = 0
        self._held = b""
        if b"\x1b" in new:
            cut = new.rfind(b"\x1b", max(0, len(new) - 32))
            if cut >= 0 and ESCAPES_BYTES.fullmatch(new[cut:]) is None and b"\n" not in new[cut:]:
                new, self._held = new[:cut], new[cut:]
            new = ESCAPES_BYTES.sub(b"", new)
        if b"\x00" in new:
            new = new.replace(b"\x00", b"")
        if b"\r" in new:
            new = new.replace(b"\r", b"\n")
        if len(self._head) < _HEAD:
            self._head += new[: _HEAD - len(self._head)]
        self._data += new

    def _scan(self, *, final: bool) -> None:
        data = self._data
        limit = data.rfind(b"\n", self._scanned, max(self._scanned, len(data) - _AHEAD)) + 1
        if limit <= self._scanned:
            if len(data) - self._scanned <= _LONGEST:
                return
            limit = len(data) - _AHEAD
        self._scan_range(limit, self._kept)
        self._scanned_line += data.count(b"\n", self._scanned, limit)
        self._scanned = limit
        keep_from = max(0, limit - max(_TAIL, OVERLAP))
        self._data = data[keep_from:]
        self._scanned -= keep_from

    def _scan_range(self, limit: int, kept: dict[str, _Kept]) -> None:
        data, start = self._data, self._scanned
        if start and data[start - 1 : start] != b"\n":
            start = max(0, start - OVERLAP)  # A long line that was cut: look across the cut.
        block = data[start:limit]
        counted, line_number = start, self._scanned_line
        for first, last in self._finder.lines_with_hits(block):
            begin, end = start + first, start + last
            line_number += data.count(b"\n", counted, begin)
            counted = max(counted, begin)
            self._look(begin, end, line_number, kept)

    def _look(self, begin: int, end: int, line_number: int, kept: dict[str, _Kept]) -> None:
        for piece in range(begin, max(end, begin + 1), MAX_LINE - OVERLAP):
            stop = min(end, piece + MAX_LINE)
            line = self._data[piece:stop].decode("utf-8", "replace")
            rules = candidates(shapes_of([line])[0])
            if rules:
                text = message_of(line)
                matched = [rule.id for rule in rules if rule.regex.search(text) is not None][:3]
                if matched and not any(rule.regex.search(text) for rule in BENIGN):
                    snippet = (
                        _Snippet(line_number, line_number, self._data[piece:stop], inside=True)
                        if piece > begin
                        else self._snippet(piece, stop, line_number)
                    )
                    for rule_id in matched:
                        kept.setdefault(rule_id, _Kept()).add(snippet)
            if stop >= end:
                return

    def _snippet(self, begin: int, end: int, line_number: int) -> _Snippet:
        data = self._data
        first = begin
        lines_before = 0
        lowest = max(0, begin - _SNIPPET // 2)
        while lines_before < _BEFORE_LINES and first > lowest and data[first - 1 : first] == b"\n":
            previous = data.rfind(b"\n", lowest, first - 1)
            if previous < 0:
                break
            first = previous + 1
            lines_before += 1
        last = end
        highest = min(len(data), end + _SNIPPET // 2)
        for _ in range(_AFTER_LINES):
            following = data.find(b"\n", last + 1, highest)
            if following < 0:
                break
            last = following
        return _Snippet(line_number - lines_before, line_number, data[first:last])

    def _tail(self) -> _Snippet:
        start = max(0, len(self._data) - _TAIL)
        cut = (self._data.find(b"\n", start) + 1 or start) if start else 0
        lines_before = self._data.count(b"\n", 0, self._scanned)
        first_line = self._scanned_line - lines_before + self._data.count(b"\n", 0, cut)
        return _Snippet(first_line, first_line, self._data[cut:])


def _hit_text(snippet: _Snippet) -> str:
    lines = snippet.text.split(b"\n")
    at = snippet.hit_line - snippet.first_line
    return lines[min(at, len(lines) - 1)].decode("utf-8", "replace")


def _text_of(kept: dict[str, _Kept], head: bytes, tail: _Snippet) -> str:
    """Snippets, head and tail merged by line number; of overlapping ones each line stands once."""
    snippets = {
        (snippet.first_line, snippet.hit_line, snippet.text): snippet
        for rows in kept.values()
        for snippet in (*rows.first, *rows.last)
    }
    if len(head) >= _HEAD:
        head = head[: head.rfind(b"\n") + 1]  # Without the line that was cut.
    start = [_Snippet(0, 0, head.removesuffix(b"\n"))] if head else []
    pieces = [*start, *(snippets[key] for key in sorted(snippets)), tail]
    out: list[str] = []
    next_line = 0
    for piece in sorted(pieces, key=lambda row: row.first_line):
        lines = piece.text.split(b"\n")
        skip = 0 if piece.inside else next_line - piece.first_line
        if skip < 0:
            out.append(_LEFT_OUT.format(-skip))
            skip = 0
        out.extend(line.decode("utf-8", "replace") for line in lines[skip:])
        next_line = max(next_line, piece.first_line + len(lines))
    return "\n".join(out)
