"""A backtracking matcher that counts its steps, over the tree that `re` itself parses."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_parse as _parser


class StepCounter:
    """Searches as `re` does without its shortcuts; `steps` is an upper bound of its work."""

    def __init__(self, pattern: str) -> None:
        self._items = list(_parser.parse(pattern))
        self.steps = 0

    def search(self, text: str) -> bool:
        """Whether the pattern is found in `text`; adds to `steps`."""
        return any(
            next(self._sequence(self._items, 0, text, start), None) is not None
            for start in range(len(text) + 1)
        )

    def _sequence(self, items: list[Any], at: int, text: str, pos: int) -> Iterator[int]:
        if at == len(items):
            yield pos
            return
        operation, argument = items[at]
        for end in self._item(str(operation), argument, text, pos):
            yield from self._sequence(items, at + 1, text, end)

    def _item(self, operation: str, argument: Any, text: str, pos: int) -> Iterator[int]:
        self.steps += 1
        if operation in ("MAX_REPEAT", "MIN_REPEAT"):
            yield from self._repeat(operation == "MAX_REPEAT", argument, text, pos)
        elif operation == "SUBPATTERN":
            yield from self._sequence(list(argument[-1]), 0, text, pos)
        elif operation == "BRANCH":
            for branch in argument[1]:
                yield from self._sequence(list(branch), 0, text, pos)
        elif operation in ("ASSERT", "ASSERT_NOT"):
            direction, body = argument
            found = self._looks(direction, list(body), text, pos)
            if found is (operation == "ASSERT"):
                yield pos
        elif operation == "AT":
            if _at(str(argument), text, pos):
                yield pos
        elif pos < len(text) and _one(operation, argument, text[pos]):
            yield pos + 1

    def _looks(self, direction: int, body: list[Any], text: str, pos: int) -> bool:
        if direction > 0:
            return next(self._sequence(body, 0, text, pos), None) is not None
        return any(
            end == pos
            for start in range(pos, max(-1, pos - 40), -1)
            for end in self._sequence(body, 0, text, start)
        )

    def _repeat(self, greedy: bool, argument: Any, text: str, pos: int) -> Iterator[int]:
        low, high, body = argument
        items = list(body)
        ends = [pos]
        for _ in range(min(int(high), len(text) - pos + 1)):
            following = next(self._sequence(items, 0, text, ends[-1]), None)
            if following is None or following == ends[-1]:
                break
            ends.append(following)
            if not greedy and len(ends) > low + 1:
                yield ends[-2]
        allowed = ends[low:] if len(ends) > low else []
        yield from reversed(allowed) if greedy else allowed


def _at(kind: str, text: str, pos: int) -> bool:
    if kind in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return pos == 0
    if kind in ("AT_END", "AT_END_STRING"):
        return pos == len(text)
    before = pos > 0 and (text[pos - 1].isalnum() or text[pos - 1] == "_")
    after = pos < len(text) and (text[pos].isalnum() or text[pos] == "_")
    return (before != after) is (kind == "AT_BOUNDARY")


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdigit,
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_WORD": lambda char: char.isalnum() or char == "_",
}


def _one(operation: str, argument: Any, char: str) -> bool:
    if operation == "LITERAL":
        return ord(char) == argument
    if operation == "NOT_LITERAL":
        return ord(char) != argument
    if operation == "ANY":
        return char != "\n"
    assert operation == "IN", operation
    negate, hit = False, False
    for kind, value in argument:
        name = str(kind)
        if name == "NEGATE":
            negate = True
        elif name == "LITERAL":
            hit = hit or ord(char) == value
        elif name == "RANGE":
            hit = hit or value[0] <= ord(char) <= value[1]
        else:
            category = str(value)
            known = _CATEGORIES[category.replace("NOT_", "")](char)
            hit = hit or (known is not ("NOT_" in category))
    return hit is not negate


def hostile_texts(pattern: str) -> list[str]:
    """Texts that start to match `pattern` as often as possible and never finish."""
    literals = [text for text in re.split(r"[^A-Za-z0-9 :=/_-]+", pattern) if len(text) > 2]
    head = (literals or ["x"])[0]
    return [head * 200, (head + " ") * 200, "1" * 2000, " " * 2000, "a." * 1000, "|" * 2000]
