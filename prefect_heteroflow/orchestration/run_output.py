"""The output of a plain job as the log of its run."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterable, Iterator
from typing import Any

_LONGEST_LINE = 16 * 1024
_SINGLE_LINES = 50
"""A job that prints more lines at once is faster than records can be made of single ones."""


class RunOutput:
    """Turns chunks of bytes into log records: one a line, many lines in one where many come."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger = logger
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk; whole lines are logged, an open one waits for its end."""
        self._rest += self._decoder.decode(chunk)
        *lines, self._rest = self._rest.split("\n")
        if len(lines) > _SINGLE_LINES:
            lines = list(_joined(_shown(line) for line in lines))
        for line in lines:
            self._log(line)
        while len(self._rest) > _LONGEST_LINE:
            self._log(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]

    def close(self) -> None:
        """Log what came after the last line end."""
        if self._rest:
            self._log(self._rest)
            self._rest = ""

    def _log(self, text: str) -> None:
        shown = _shown(text)
        if shown:
            self._logger.info("%s", shown)


def _shown(line: str) -> str:
    """A progress bar overwrites itself: what a person would see is what follows the last CR."""
    return line.rstrip("\r").rpartition("\r")[2].replace("\x00", "")


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """The lines in blocks of at most 16 KiB, or of one longer line."""
    block: list[str] = []
    size = 0
    for line in lines:
        if block and size + len(line) > _LONGEST_LINE:
            yield "\n".join(block)
            block, size = [], 0
        block.append(line)
        size += len(line) + 1
    if block:
        yield "\n".join(block)
