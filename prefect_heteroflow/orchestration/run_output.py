"""The output of a plain job as the log of its run."""

from __future__ import annotations

import codecs
import logging
from typing import Any

_LONGEST_LINE = 16 * 1024


class RunOutput:
    """Turns chunks of bytes into log records, one a line."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger = logger
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk; whole lines are logged, an open one waits for its end."""
        self._rest += self._decoder.decode(chunk)
        *lines, self._rest = self._rest.split("\n")
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

    def _log(self, line: str) -> None:
        # A progress bar overwrites itself: what a person would see is what follows the last \r.
        text = line.rstrip("\r").rpartition("\r")[2]
        if text:
            self._logger.info("%s", text.replace("\x00", ""))
