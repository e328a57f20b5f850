"""One run, or one step of a look, with which something is wrong does not end the whole look."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.backend import WorkerCannotStart
from prefect_heteroflow.orchestration.insisting import is_passing

_Logger: TypeAlias = logging.Logger | logging.LoggerAdapter[Any]
_MOST_REMEMBERED = 1000


class CannotYet(Exception):
    """What keeps a part of a look from being done now, as a sentence for people."""


class Guard:
    """Goes on after what concerns one run or one step only, and says it once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    @contextmanager
    def over(
        self, what: str, logger: logging.Logger | logging.LoggerAdapter[Any]
    ) -> Iterator[None]:
        """Do a part of a look; if it fails, the others follow all the same.

        Args:
            what: The part, for the warning: "What was left of run 'x'". The same failure of the
                same part is said once, until that went well.
            logger: Gets the warning.

        Raises:
            httpx.HTTPError: The API is away or overloaded: the others would fail as well.
            WorkerCannotStart: This worker must end.
        """
        try:
            yield
        except Exception as error:  # whatever it is: the others must be seen to
            is_away = isinstance(error, httpx.HTTPError) and is_passing(error)
            if is_away or isinstance(error, WorkerCannotStart):
                raise
            self._say(what, error, logger)
        else:
            self._said.pop(what, None)

    def _say(self, what: str, error: Exception, logger: _Logger) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._said.get(what) == text:
            return
        while len(self._said) >= _MOST_REMEMBERED:
            self._said.pop(next(iter(self._said)))
        self._said[what] = text
        if isinstance(error, CannotYet):
            logger.warning("%s", error)
            return
        is_answer = isinstance(error, (httpx.HTTPError, ObjectNotFound))
        logger.warning(
            "%s could not be seen to; it is tried again, and said again only when it fails"
            " otherwise. %s",
            what,
            text,
            exc_info=None if is_answer else error,
        )
