"""What an exception was raised from: pickle leaves that out, so it travels beside the exception."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress

from prefect_heteroflow.task_runner.exceptions_sent import exception_bytes
from prefect_heteroflow.task_runner.known_classes import load_at_home

_MOST = 20

Link = tuple[bool, bytes]
"""Whether it was a cause (`raise ... from`), or else the exception that was being handled."""


def with_causes(pickled: bytes, error: BaseException) -> bytes:
    """The pickled exception, which rebuilds also the chain of those that it came from.

    The chain ends before the first one that cannot be sent.

    Args:
        pickled: The exception alone.
        error: The exception itself.
    """
    links: list[Link] = []
    with suppress(Exception):
        for is_cause, found in chain_of(error):
            links.append((is_cause, exception_bytes(found)))
    return pickle.dumps(_Chained(pickled, tuple(links))) if links else pickled


def chain_of(error: BaseException) -> Iterator[tuple[bool, BaseException]]:
    """The exceptions that a traceback shows before this one, the nearest first."""
    seen = {id(error)}
    here = error
    while len(seen) <= _MOST:
        before = here.__cause__
        is_cause = before is not None
        if before is None and not here.__suppress_context__:
            before = here.__context__
        if before is None or id(before) in seen:
            return
        yield is_cause, before
        seen.add(id(before))
        here = before


class _Chained:
    """Is an exception with its chain when it has been pickled and loaded."""

    def __init__(self, error: bytes, links: tuple[Link, ...]) -> None:
        self._error = error
        self._links = links

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self._error, self._links)


def _rebuilt(data: bytes, links: tuple[Link, ...]) -> BaseException:
    error: BaseException = load_at_home(data)
    here = error
    with suppress(Exception):  # a type that is not there in this process
        for is_cause, link in links:
            before: BaseException = load_at_home(link)
            if is_cause:
                here.__cause__ = before
            else:
                here.__context__ = before
            here = before
    return error
