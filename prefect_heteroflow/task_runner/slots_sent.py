"""Slots of classes that are sent by value.

Cloudpickle makes the class without them, and names them afterwards. Its instances have a
`__dict__` then, and cannot come back to where they have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MemberDescriptorType
from typing import Any, NamedTuple

from cloudpickle import cloudpickle

_NO_PLACES = ("__dict__", "__weakref__")
"""Stand among the slots, and are none."""


def with_slots(kind: type, reduced: Any) -> Any:
    """What builds the class anew, with its slots from the beginning.

    Args:
        kind: The class.
        reduced: What builds it without them: the answer of cloudpickle's `reducer_override`.
    """
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    if make is not getattr(cloudpickle, "_make_skeleton_class", None) or not _has_slots(kind):
        return reduced
    maker, name, bases, body, *more = arguments
    if NamedTuple in bases:  # which names its slots itself, and lets nobody else
        return reduced
    body = {**body, "__slots__": vars(kind)["__slots__"]}
    return make, (maker, name, bases, body, *more), *rest


def _has_slots(kind: type) -> bool:
    """Whether it was made with what its `__slots__` says, and will be once more."""
    there = vars(kind)
    said: str | Iterable[str] | None = there.get("__slots__")
    if said is None or not _leaves_slots_alone(type(kind)):
        return False
    names = (said,) if isinstance(said, str) else tuple(said)
    if any((name in names) != (name in there) for name in _NO_PLACES):
        return False
    # The places of private names have other names.
    places = [value for value in there.values() if isinstance(value, MemberDescriptorType)]
    return len(places) == len(set(names) - set(_NO_PLACES))


def _leaves_slots_alone(maker: type) -> bool:
    # One in C, such as that of `msgspec.Struct`, makes them itself and refuses any others.
    new: Any = maker.__new__
    return new is type.__new__ or isinstance(new, FunctionType)
