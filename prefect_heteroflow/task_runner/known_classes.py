"""Values from another process, without what that process made of classes that are known here.

A class of the flow's script goes to a child by value, and comes back with each value of it.
Cloudpickle finds the class that it was copied from, and would put the copy's methods and counters
onto that one.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from cloudpickle import cloudpickle

_MARK = b"_make_skeleton_"
"""Stands in the bytes of each value with a class by value."""

_unfinished: WeakSet[type] = WeakSet()
"""Classes that were made here and have nothing in them yet."""
_lock = threading.RLock()


def load_at_home(data: bytes) -> Any:
    """The value; a class in it that is known here stays as it is, any other one is made.

    Args:
        data: From `pickles.to_pickle`, in this process or another one.

    Raises:
        Exception: It cannot be loaded; of whatever type pickle or the value's own code raises.
    """
    if _MARK not in data:
        return pickle.loads(data)
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        found = super().find_class(module, name)
        if module.partition(".")[0] == "cloudpickle":
            if name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return _known_or(found)
            if name == "_class_setstate":
                return _unless_known(found)
        return found


def _known_or(make: Callable[..., type]) -> Callable[..., type]:
    def found(*arguments: Any) -> type:
        *_, class_id, _extra = arguments
        tracked: Any = cloudpickle
        with _lock:  # who finds it in another thread's hands has to find it among the unfinished
            known: type | None = tracked._DYNAMIC_CLASS_TRACKER_BY_ID.get(class_id)
            if known is None:
                known = make(*arguments)
                _unfinished.add(known)
        return known

    return found


def _unless_known(fill: Callable[[type, Any], type]) -> Callable[[type, Any], type]:
    def filled(kind: type, state: Any) -> type:
        # Not only by the first thread: the others may need it before that one is there.
        if kind in _unfinished:
            fill(kind, state)
            _unfinished.discard(kind)
        return kind

    return filled
