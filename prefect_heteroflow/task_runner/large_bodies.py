"""Bodies that take much with them when they are sent, and what of it is the most.

What a body reads of the flow's script goes with it, and is pickled anew for each call: it may have
changed in between.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.task_runner.pickles import Pickler

if TYPE_CHECKING:
    from prefect import Task

LARGE_BYTES = 10_000_000
"""Of a pickled body, from which on it is told."""


class LargeBodies:
    """Says of each task once that its body is a large one.

    Args:
        say: Gets the name of the task and the words.
    """

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def look_at(self, task: Task[..., Any], size_bytes: int) -> None:
        """Say it if it is so.

        Args:
            task: The task.
            size_bytes: Of its body, pickled.
        """
        if size_bytes < LARGE_BYTES:
            return
        with self._lock:
            if task.name in self._seen:
                return
            self._seen.add(task.name)
        self._say(task.name, _words(task.fn, size_bytes))


def largest_part(body: Callable[..., Any]) -> tuple[str, int] | None:
    """The name of what takes the most room in a body that is sent by value, and its bytes.

    That is a global variable, one of an enclosing function, or a default of the signature.
    """
    found = {name: _size(value) for name, value in _taken_along(inspect.unwrap(body), set())}
    name = max(found, key=lambda name: found[name], default=None)
    return None if name is None else (name, found[name])


def _words(body: Callable[..., Any], size_bytes: int) -> str:
    most = None
    with suppress(Exception):  # a body with a strange signature shall run all the same
        most = largest_part(body)
    part = "" if most is None else f"; the largest part is {most[0]!r} ({_megabytes(most[1])})"
    return (
        f"its body takes {_megabytes(size_bytes)} with it, pickled anew for each call{part}. Let"
        " the body read that from where it is stored, or define the task in a module that can be"
        " imported: nothing of that is sent"
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


def _taken_along(body: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What the body reads, by name; of functions what those read."""
    if not isinstance(body, FunctionType) or id(body) in seen:
        return
    seen.add(id(body))
    around = zip(body.__code__.co_freevars, body.__closure__ or (), strict=False)
    signature = inspect.signature(body).parameters.values()
    values = {
        **{name: body.__globals__[name] for name in _names(body.__code__) & {*body.__globals__}},
        **{name: cell.cell_contents for name, cell in around if _is_filled(cell)},
        **{one.name: one.default for one in signature if one.default is not one.empty},
    }
    for name, value in values.items():
        if isinstance(value, FunctionType):
            yield from _taken_along(value, seen)
        else:
            yield name, value


def _names(code: CodeType) -> set[str]:
    inner = (value for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # the enclosing function has not come to it yet
        return False
    return True


class _Counter:
    """A file that keeps nothing of what is written: the whole is large, and may be so twice."""

    size_bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size_bytes += size
        return size


def _size(value: Any) -> int:
    counter = _Counter()
    with suppress(Exception):  # it was pickled in another way, or by another name
        Pickler(counter).dump(value)
    return counter.size_bytes
