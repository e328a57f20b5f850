"""Classes with slots, sent by value."""

from __future__ import annotations

import copyreg
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from prefect_heteroflow.task_runner.known_classes import load_at_home
from prefect_heteroflow.task_runner.pickles import to_pickle
from tests.support.process_beyond import another_process

T = TypeVar("T")


def sent(value: Any) -> Any:
    """As the other process has it; that process is over then."""
    data = to_pickle(value)
    with another_process():
        return pickle.loads(data)


def back(value: Any) -> Any:
    """The value after it was in another process."""
    data = to_pickle(value)
    with another_process():
        data = to_pickle(pickle.loads(data))
    return load_at_home(data)


def plain() -> Any:
    class Plain:
        __slots__ = ("content",)

        def __init__(self, content: int) -> None:
            self.content = content

    return Plain(5)


def one_slot() -> Any:
    class OneSlot:
        __slots__ = "content"

        def __init__(self, content: int) -> None:
            self.content = content

    return OneSlot(5)


def described() -> Any:
    class Described:
        __slots__: ClassVar[dict[str, str]] = {"content": "what is in it"}

        def __init__(self, content: int) -> None:
            self.content = content

    return Described(5)


def private() -> Any:
    class _Private:
        __slots__ = ("__own", "__weakref__")

        def __init__(self, content: int) -> None:
            self.__own = content

        @property
        def content(self) -> int:
            return self.__own

    return _Private(5)


def with_dict() -> Any:
    class WithDict:
        __slots__ = ("__dict__", "content")

        def __init__(self, content: int) -> None:
            self.content = content
            self.more = content

    return WithDict(5)


def with_data() -> Any:
    @dataclass(slots=True)
    class WithData:
        content: int

    return WithData(5)


def frozen() -> Any:
    @dataclass(slots=True, frozen=True)
    class Frozen:
        content: int

    return Frozen(5)


def derived() -> Any:
    class Base(ABC):
        __slots__ = ("kept",)

        @property
        @abstractmethod
        def content(self) -> int: ...

    class Derived(Base, Generic[T]):
        __slots__ = ()

        def __init__(self, content: int) -> None:
            self.kept = content

        @property
        def content(self) -> int:
            return self.kept

    return Derived(5)


def named_tuple() -> Any:
    class Named(NamedTuple):
        content: int

    return Named(5)


def of_tuple() -> Any:
    class Pair(tuple[int, int]):
        __slots__ = ()

        @property
        def content(self) -> int:
            return self[0] + self[1]

    return Pair((2, 3))


SHAPES: list[Callable[[], Any]] = [
    plain,
    one_slot,
    described,
    private,
    with_dict,
    with_data,
    frozen,
    derived,
    named_tuple,
    of_tuple,
]


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_value_with_slots_comes_back_from_another_process(make: Callable[[], Any]) -> None:
    value = make()
    found = back(value)
    assert type(found) is type(value)
    assert found.content == 5


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_value_has_a_dict_in_the_other_process_only_where_it_has_one_here(
    make: Callable[[], Any],
) -> None:
    """Else a body could set what no instance of its class can have."""
    value = make()
    assert hasattr(sent(value), "__dict__") is hasattr(value, "__dict__")


class _AddsSlots(type):
    """Makes slots by itself, and wants nobody else to."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if "__slots__" in body:
            raise TypeError("it makes its slots itself")
        return super().__new__(cls, name, bases, body)


def test_class_whose_slots_stand_there_only_as_a_word_arrives_as_it_did() -> None:
    """Set afterwards they make none; a library that fills classes by itself may do that."""

    class Told(metaclass=_AddsSlots):
        def __init__(self) -> None:
            self.content = 5

    Told.__slots__ = ("content",)  # type: ignore[attr-defined]
    assert back(Told()).content == 5
    assert copyreg._slotnames(Told) == ["content"]  # type: ignore[attr-defined]
