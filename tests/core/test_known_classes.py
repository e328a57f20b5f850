"""Classes that were sent by value, when values of them come back."""

from __future__ import annotations

import gc
import pickle
from enum import Enum
from typing import Any, ClassVar

import pytest

from prefect_heteroflow.task_runner.causes import with_causes
from prefect_heteroflow.task_runner.exceptions_sent import exception_bytes
from prefect_heteroflow.task_runner.known_classes import load_at_home
from prefect_heteroflow.task_runner.pickles import to_pickle
from tests.support.process_beyond import another_process


def returned(value: Any) -> bytes:
    """The value as another process sends it back."""
    sent = to_pickle(value)
    with another_process():
        return to_pickle(pickle.loads(sent))


def test_class_that_is_known_here_stays_as_it_is_when_a_value_of_it_comes_back() -> None:
    class Reading:
        made = 0

        def scaled(self) -> int:
            return self.made

    data, scaled = returned(Reading()), Reading.scaled
    Reading.made = 7
    assert type(load_at_home(data)) is Reading
    assert Reading.made == 7
    assert Reading.scaled is scaled


def test_enum_that_is_known_here_stays_as_it_is_when_a_member_of_it_comes_back() -> None:
    class Color(Enum):
        RED = 1

        def named(self) -> str:
            return self.name

    data, named = returned(Color.RED), Color.named
    assert load_at_home(data) is Color.RED
    assert Color.named is named


def test_subclass_that_is_known_here_is_not_announced_to_its_base_again() -> None:
    class Base:
        subclasses: ClassVar[list[str]] = []

        def __init_subclass__(cls) -> None:
            Base.subclasses.append(cls.__name__)

    class Child(Base):
        pass

    load_at_home(returned(Child()))
    assert Base.subclasses == ["Child"]


def test_class_that_another_process_made_is_built_with_what_it_has() -> None:
    with another_process():

        class Made:
            def number(self) -> int:
                return 5

        data = to_pickle([Made(), Made()])
    first, second = load_at_home(data)
    assert (first.number(), second.number()) == (5, 5)
    assert type(first) is type(second)


class _Breaks:
    """Cannot be loaded for the first time."""

    loads = 0

    def __reduce__(self) -> Any:
        return _broken_once, ()


def _broken_once() -> int:
    _Breaks.loads += 1
    if _Breaks.loads == 1:
        raise OSError("not yet")
    return 5


def test_class_whose_first_load_broke_off_is_complete_after_the_next_one() -> None:
    with another_process():

        class Made:
            number = _Breaks()

        data = to_pickle(Made())
    gc.disable()  # it would drop the half of a class that there is
    try:
        with pytest.raises(OSError, match="not yet"):
            load_at_home(data)
        assert load_at_home(data).number == 5
    finally:
        gc.enable()


def test_look_at_an_exception_that_is_sent_leaves_its_class_as_it_is() -> None:
    class ReadingError(Exception):
        def scaled(self) -> int:
            return 1

    scaled = ReadingError.scaled
    exception_bytes(ReadingError("text"))
    assert ReadingError.scaled is scaled


def test_causes_of_an_exception_leave_their_classes_here_as_they_are() -> None:
    class ReadingError(Exception):
        def scaled(self) -> int:
            return 1

    scaled = ReadingError.scaled
    error = ReadingError("outer")
    error.__cause__ = ReadingError("inner")
    sent = with_causes(exception_bytes(error), error)
    found = load_at_home(sent)
    assert type(found.__cause__) is ReadingError
    assert ReadingError.scaled is scaled
