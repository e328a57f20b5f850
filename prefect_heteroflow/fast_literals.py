"""An Aho-Corasick engine for `FailureScanner` and `diagnose`, where one is installed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from prefect_heteroflow.core.literals import LiteralFinder, all_literals


class AhoCorasickFinder:
    """`LiteralFinder` on `ahocorasick_rs` (the Rust crate `aho-corasick` as a DFA)."""

    def __init__(self, automaton: Any) -> None:
        self._automaton = automaton

    def lines_with_hits(self, block: bytes) -> Iterable[tuple[int, int]]:
        """See `LiteralFinder`."""
        done = -1
        for _, start, end in self._automaton.find_matches_as_indexes(block):
            if start < done:
                continue
            first = block.rfind(b"\n", 0, start) + 1
            last = block.find(b"\n", end)
            done = len(block) if last < 0 else last
            yield first, done


@lru_cache(maxsize=1)
def fast_finder() -> LiteralFinder | None:
    """The fast engine, built once per process, or `None` where `ahocorasick_rs` is missing."""
    try:
        import ahocorasick_rs
    except ImportError:
        return None
    return AhoCorasickFinder(
        ahocorasick_rs.BytesAhoCorasick(
            [literal.encode("latin-1") for literal in all_literals()],
            implementation=ahocorasick_rs.Implementation.DFA,
        )
    )
