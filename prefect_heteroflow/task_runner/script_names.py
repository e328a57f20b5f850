"""Names of the flow's script (`__main__`) in a process that runs one of its bodies.

What the script defines is sent by value, and then says that it comes from `__main__`, where pickle
looks for it when a body pickles it again: for `torch.save`, a `ProcessPoolExecutor` and the like.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cloudpickle import cloudpickle

_body: Callable[..., Any] | None = None
_parameters: dict[str, Any] = {}


@contextmanager
def offered(body: Callable[..., Any], parameters: dict[str, Any]) -> Iterator[None]:
    """While the body runs, `__main__` has what came with it; found when it is asked for."""
    global _body, _parameters
    _body, _parameters = body, parameters
    vars(sys.modules["__main__"]).setdefault("__getattr__", _found)
    try:
        yield
    finally:
        _body, _parameters = None, {}


def _found(name: str) -> Any:
    if not (name.startswith("__") and name.endswith("__")):
        for value in _candidates(name):
            if getattr(value, "__module__", None) == "__main__":
                return value
    raise AttributeError(f"module '__main__' has no attribute {name!r}")


def _candidates(name: str) -> Iterator[Any]:
    if _body is not None:
        yield getattr(inspect.unwrap(_body), "__globals__", {}).get(name)
    for value in (*_parameters.values(), *_classes()):
        if getattr(value, "__qualname__", None) == name:
            yield value


def _classes() -> list[type]:
    """All that came by value, also with an argument: the last one first."""
    known: Any = getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    return list(known)[::-1]
