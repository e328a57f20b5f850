"""An exception as bytes, also where pickle alone could not build it anew."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prefect_heteroflow.task_runner.errors import HeteroTaskError
from prefect_heteroflow.task_runner.exception_parts import Parts, built, parts_of, slots_of
from prefect_heteroflow.task_runner.known_classes import load_at_home
from prefect_heteroflow.task_runner.pickles import Pickler, to_pickle

_LEFT_OUT = "_heteroflow_left_out"


def exception_bytes(error: BaseException) -> bytes:
    """The pickled exception, without its traceback and what it was raised from.

    Pickle's way is tried first. Where it loses something, the exception travels in its parts; a
    part that cannot be pickled is left out, and noted (`left_out_of`).

    Raises:
        Exception: It cannot be sent at all, for its class cannot.
    """
    with suppress(Exception):
        data = to_pickle(error)
        if _is_same(load_at_home(data), error):
            return data
    left_out: list[str] = []
    whole = _InParts(error, left_out, ())
    data = to_pickle(whole)
    load_at_home(data)  # one that cannot be built anew would fail where nobody can tell why
    return data


class WithExceptions:
    """Pickles values, each exception in them as it is sent by itself.

    That takes three times as long as `to_pickle`, so it is for what cannot be loaded otherwise.

    Args:
        file: Makes what the pickle is written into.
    """

    def __init__(self, file: Callable[[], io.BytesIO] = io.BytesIO) -> None:
        self._file = file
        self.has_met_one = False

    def __call__(self, value: Any) -> bytes:
        """The value as bytes.

        Raises:
            Exception: It cannot be pickled, or some part of an exception in it cannot be.
        """
        with self._file() as file:
            pickler = _ExceptionPickler(file)
            pickler.dump(value)
            self.has_met_one = self.has_met_one or pickler.has_met_one
            return file.getvalue()


class _ExceptionPickler(Pickler):
    has_met_one = False

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, BaseException):
            return super().reducer_override(value)
        self.has_met_one = True
        if isinstance(value, HeteroTaskError):  # comes in parts by itself; those are pickled here
            return NotImplemented
        data = exception_bytes(value)
        missing = left_out_of(load_at_home(data))
        if missing:
            raise pickle.PicklingError(f"{', '.join(missing)} cannot be pickled")
        return pickle.loads, (data,)


def left_out_of(error: BaseException) -> tuple[str, ...]:
    """Names of what was left out of an exception that was sent, such as `SomeError.lock`.

    It is told once: the exception has no trace of it afterwards.
    """
    names: tuple[str, ...] = error.__dict__.pop(_LEFT_OUT, ())
    return names


def _is_same(found: Any, error: BaseException) -> bool:
    return str(found) == str(error) and slots_of(found) == slots_of(error)


class _InParts:
    """Is an exception when it has been pickled and loaded."""

    def __init__(
        self, error: BaseException, left_out: list[str], within: tuple[BaseException, ...]
    ) -> None:
        self._kind = type(error)
        self._left_out = left_out
        self._within = (*within, error)
        self._is_outermost = not within
        parts = parts_of(error)
        self._parts = Parts(
            arguments=self._arguments(parts.arguments),
            state=self._named(parts.state) if isinstance(parts.state, dict) else parts.state,
            attributes=self._named(parts.attributes),
            slots=self._named(parts.slots),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        names = tuple(self._left_out) if self._is_outermost else ()
        return _rebuilt, (self._kind, self._parts, names)

    def _arguments(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        found: list[Any] = []
        for index, value in enumerate(values):
            try:
                found.append(self._portable(value))
            except Exception:  # pickling runs the value's own code
                self._leave_out(f"args[{index}]")
                found.append(repr(value))
        return tuple(found)

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in values.items():
            try:
                found[name] = self._portable(value)
            except Exception:  # the same
                self._leave_out(name)
        return found

    def _leave_out(self, name: str) -> None:
        self._left_out.append(f"{self._kind.__qualname__}.{name}")

    def _portable(self, value: Any) -> Any:
        """The value, or what is pickled in its place; raises if that is nothing."""
        if isinstance(value, BaseException):
            with suppress(Exception):
                if _is_same(load_at_home(to_pickle(value)), value):
                    return value
            if any(value is outer for outer in self._within):
                raise ValueError("the exception refers to itself")
            return _InParts(value, self._left_out, self._within)
        if type(value) in (list, tuple) and any(isinstance(one, BaseException) for one in value):
            return type(value)(self._portable(one) for one in value)
        load_at_home(to_pickle(value))
        return value


def _rebuilt(kind: type[BaseException], parts: Parts, left_out: tuple[str, ...]) -> BaseException:
    error = built(kind, parts)
    if left_out:
        error.__dict__[_LEFT_OUT] = left_out
    return error
