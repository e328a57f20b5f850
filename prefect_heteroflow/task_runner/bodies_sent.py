"""The body of a task on its way to another process: what is sent, and the task that this gives."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect_heteroflow.task_runner import contexts
from prefect_heteroflow.task_runner.modules_by_value import can_import
from prefect_heteroflow.task_runner.pickles import to_pickle

if TYPE_CHECKING:
    from prefect import Task

_MISSING = object()


class BodyNotPortable(Exception):
    """The body of a task cannot be sent to another process; it has to run at home."""


class Body(NamedTuple):
    """A body as it is sent."""

    data: bytes
    is_by_value: bool


def pack_body(task: Task[..., Any], *, to_bytes: Callable[[Any], bytes] = to_pickle) -> Body:
    """How a child gets the task: by its place in a module where it can import that, else by value.

    Args:
        task: The task.
        to_bytes: Pickles what is sent by value.

    Raises:
        BodyNotPortable: Neither works; says why.
    """
    try:
        place = _by_place(task)
        return Body(place or contexts.pack_value(task, to_bytes=to_bytes), place is None)
    except Exception as error:  # pickling runs the code of what the body refers to
        raise BodyNotPortable(f"{type(error).__name__}: {error}") from error


def load_body(data: bytes) -> Task[..., Any]:
    """The task whose body is to run: by its place in a module, or pickled by value."""
    kind, *rest = pickle.loads(data)
    if kind == "value":
        task: Task[..., Any] = pickle.loads(rest[0])
        return task
    module, qualified_name, *changes = rest
    found: Any = import_module(module)
    for name in qualified_name.split("."):
        found = getattr(found, name)
    if changes:
        found = copy.copy(found)
        found.__dict__.update(pickle.loads(changes[0]))
    return found  # type: ignore[no-any-return]


def _by_place(task: Task[..., Any]) -> bytes | None:
    module_name = getattr(task.fn, "__module__", None)
    qualified_name = getattr(task.fn, "__qualname__", None)
    if not module_name or not qualified_name or "<" in qualified_name:
        return None
    module = sys.modules.get(module_name)
    if module is None or not can_import(module_name, getattr(module, "__file__", None)):
        return None
    found: Any = module
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    if found is task:
        return pickle.dumps(("place", module_name, qualified_name))
    if type(found) is not type(task) or found.fn is not task.fn:
        return None
    # `with_options` gives another task with the same body.
    changes = _changes(task, found)
    rest = (to_pickle(changes),) if changes else ()
    return pickle.dumps(("place", module_name, qualified_name, *rest))


def _changes(task: Task[..., Any], found: Task[..., Any]) -> dict[str, Any]:
    """What a body may read of the task and would not find in that one."""
    there = vars(found)
    sent = vars(contexts.slim(task))
    return {
        name: sent[name]
        for name, value in vars(task).items()
        if not _is_same(value, there.get(name, _MISSING))
    }


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # values with their own idea of `==`
        return False
