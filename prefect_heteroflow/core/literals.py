"""Which rules can match a line, found by literals: the fast first step before any regex."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from prefect_heteroflow.core.required import required_literals
from prefect_heteroflow.core.rules import RULES, Role, Rule

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
"""Digits carry no literal's meaning: lines that differ in numbers share one shape."""

_ORDER = (Role.PLATFORM, Role.ROOT, Role.FOLLOW_UP, Role.SUMMARY, Role.GENERIC)
TELLING: tuple[Rule, ...] = tuple(
    sorted((rule for rule in RULES if rule.role in _ORDER), key=lambda r: _ORDER.index(r.role))
)
"""Rules that can name a cause, in the order in which they are tried on one line."""
START_FIRST: tuple[Rule, ...] = tuple(sorted(TELLING, key=lambda rule: not rule.at_start))
BENIGN: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.role is Role.BENIGN)
RECOVERED: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.role is Role.RECOVERED)


@lru_cache(maxsize=1)
def needed_literals() -> tuple[frozenset[str], ...]:
    """For each rule of `TELLING` the literals one of which stands in every match.

    Read from the patterns when they are first asked for: that takes 0.2 s, which no start of a
    process has to spend before something fails.
    """
    return tuple(required_literals(rule.pattern) for rule in TELLING)


def _shortest(literals: Iterable[str]) -> tuple[str, ...]:
    """`literals` without those that contain another one."""
    kept: list[str] = []
    for literal in sorted(literals, key=len):
        if not any(short in literal for short in kept):
            kept.append(literal)
    return tuple(sorted(kept))


@lru_cache(maxsize=1)
def all_literals() -> tuple[str, ...]:
    """What a scanner looks for; every match of every rule contains one of them (ASCII)."""
    return _shortest({literal for needed in needed_literals() for literal in needed})


class LiteralFinder(Protocol):
    """Something that finds many literals at once; `prefect_heteroflow.fast_literals` has one."""

    def lines_with_hits(self, block: bytes) -> Iterable[tuple[int, int]]:
        """Start and end of each line of `block` that contains one of `all_literals()`, in order."""


def shapes_of(lines: Iterable[str]) -> list[bytes]:
    """One shape per line: its characters as bytes with every digit replaced by zero."""
    text = "\n".join(lines)
    return text.encode("latin-1", "replace").translate(_DIGITS).split(b"\n")


def _trie_pattern(words: Iterable[bytes]) -> bytes:
    root: dict[int, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = root
        for byte in word:
            node = node.setdefault(byte, {})
        node[-1] = {}

    def pattern(node: dict) -> bytes:  # type: ignore[type-arg]
        if -1 in node:
            return b""  # A prefix that is a literal itself decides already.
        tails: dict[bytes, list[bytes]] = {}
        for byte, below in node.items():
            tails.setdefault(pattern(below), []).append(re.escape(bytes([byte])))
        parts = [
            (heads[0] if len(heads) == 1 else b"[" + b"".join(heads) + b"]") + tail
            for tail, heads in tails.items()
        ]
        return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"

    return pattern(root)


@lru_cache(maxsize=1)
def _any_literal() -> re.Pattern[bytes]:
    shapes = {literal.encode("latin-1").translate(_DIGITS) for literal in all_literals()}
    return re.compile(_trie_pattern(sorted(shapes)))


@lru_cache(maxsize=1)
def _rules_by_literal() -> tuple[tuple[bytes, tuple[int, ...]], ...]:
    numbers: dict[bytes, list[int]] = {}
    for number, needed in enumerate(needed_literals()):
        for literal in needed:
            shape = literal.encode("latin-1").translate(_DIGITS)
            numbers.setdefault(shape, []).append(number)
    return tuple((literal, tuple(found)) for literal, found in numbers.items())


@lru_cache(maxsize=8192)
def candidates(shape: bytes) -> tuple[Rule, ...]:
    """Rules of `TELLING` one of whose literals stands in a line of this shape, in order."""
    if _any_literal().search(shape) is None:
        return ()
    found: set[int] = set()
    for literal, numbers in _rules_by_literal():
        if literal in shape:
            found.update(numbers)
    return tuple(TELLING[number] for number in sorted(found))


class PlainFinder:
    """`LiteralFinder` of the standard library: quick where lines differ only in numbers."""

    def lines_with_hits(self, block: bytes) -> Iterable[tuple[int, int]]:
        """See `LiteralFinder`."""
        start = 0
        search = _any_literal().search
        silent = _SILENT
        for shape in block.translate(_DIGITS).split(b"\n"):
            end = start + len(shape)
            if shape not in silent:
                if search(shape) is not None:
                    yield start, end
                elif len(shape) <= 1000:
                    if len(silent) >= 4096:
                        silent.clear()
                    silent.add(shape)
            start = end + 1


_SILENT: set[bytes] = set()
"""Shapes of lines known to contain no literal; at most 4096 of 1000 bytes."""
