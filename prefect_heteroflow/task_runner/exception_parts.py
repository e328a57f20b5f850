"""What an exception consists of, and the same exception built from it without its constructor.

Pickle builds an exception by calling its class with `args`. That fails where the constructor wants
something else (`httpx.HTTPStatusError` wants keywords), and forgets what is in slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

Error = TypeVar("Error", bound=BaseException)

_HEAP_TYPE = 1 << 9
"""Flag of classes that were made by a `class` statement, or as one (CPython's `object.h`)."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """All that an exception has, but for its traceback and what it was raised from."""

    arguments: tuple[Any, ...]
    """What the class of Python's own among its bases is built from."""
    state: Any = None
    """What that class keeps elsewhere than in the attributes (`ImportError.name`)."""
    attributes: dict[str, Any] = field(default_factory=dict)
    slots: dict[str, Any] = field(default_factory=dict)


def parts_of(error: BaseException) -> Parts:
    """The parts; containers in them are those of the exception.

    Raises:
        Exception: Its class keeps them from being seen; of whatever type it raises.
    """
    attributes = dict(error.__dict__)
    reduced: Any = native_of(type(error)).__reduce__(error)
    _, arguments, *rest = reduced
    state = rest[0] if rest else None
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name not in attributes}
    return Parts(
        arguments=tuple(arguments),
        state=state or None,
        attributes=attributes,
        slots={name: getattr(error, name) for name in slots_of(error)},
    )


def built(kind: type[Error], parts: Parts) -> Error:
    """An exception of that class with those parts; no code of the class itself is called.

    Raises:
        Exception: The class cannot be built that way.
    """
    native: Any = native_of(kind)
    error: Error = native.__new__(kind, *parts.arguments)
    native.__init__(error, *parts.arguments)
    if isinstance(parts.state, dict):
        for name, value in parts.state.items():
            object.__setattr__(error, name, value)
    elif parts.state is not None:
        native.__setstate__(error, parts.state)
    error.__dict__.update(parts.attributes)
    notes = error.__dict__.get("__notes__")
    if isinstance(notes, list):  # a note on the one is none on the other
        error.__dict__["__notes__"] = list(notes)
    for name, value in parts.slots.items():
        object.__setattr__(error, name, value)
    return error


def native_of(kind: type[BaseException]) -> Any:
    """The nearest base that was not made by a `class` statement: it holds what C code reads."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = cast("type[BaseException]", kind.__base__)  # only `object` has none
    return kind


def slots_of(error: BaseException) -> tuple[str, ...]:
    """Names of its slots that hold something, as `getattr` wants them."""
    return tuple(name for name in _slot_names(type(error)) if hasattr(error, name))


def _slot_names(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            if name.startswith("__") and name.endswith("__"):
                continue  # `__dict__` and `__weakref__`
            private = name.startswith("__") and base.__name__.strip("_")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name
