"""What the Python code of this process prints and logs, heard while it does so."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect_heteroflow.core.rule_lines import RuleLines


@contextmanager
def heard_by(lines: RuleLines) -> Iterator[None]:
    """Let `lines` hear what is printed, written to stderr and logged through Prefect.

    Nothing is held back: each text goes on where it was going, at once. What other processes print
    is not heard, nor what is written to the file descriptors themselves.
    """
    ear = _Ear(lines)
    outputs = sys.stdout, sys.stderr
    logger = logging.getLogger("prefect")
    sys.stdout, sys.stderr = (_Overheard(output, ear) for output in outputs)
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        sys.stdout, sys.stderr = outputs


class _Ear(logging.Handler):
    """Tasks print and log from many threads."""

    def __init__(self, lines: RuleLines) -> None:
        super().__init__()
        self._lines = lines
        # A signal handler may print in the middle of it.
        self._feeding = threading.RLock()

    def hear(self, text: str) -> None:
        with self._feeding:
            self._lines.feed(text)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.hear(f"{record.getMessage()}\n")
        except Exception:  # as all handlers do: a record with wrong arguments ends no flow
            self.handleError(record)


class _Overheard:
    """A text stream, in all but what is written to it as before."""

    def __init__(self, stream: Any, ear: _Ear) -> None:
        self._stream, self._ear = stream, ear

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        self._ear.hear(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)
