"""What of a flow's parameters its bodies see, and at what price."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prefect.utilities.hashing import hash_objects

from prefect_heteroflow.task_runner.flow_parameters import (
    SENT_BYTES,
    NotSent,
    names_sent,
    with_stand_ins,
)


class Counted:
    """Knows how many of its kind were pickled."""

    pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        Counted.pickled += 1
        return Counted, ()


def test_small_parameters_are_sent_beside_a_large_one() -> None:
    parameters = {"data": bytes(SENT_BYTES), "day": "monday", "names": ["a", "b"]}
    assert set(names_sent(parameters)) == {"day", "names"}


def test_parameter_that_cannot_be_pickled_takes_no_other_away() -> None:
    assert names_sent({"lock": threading.Lock(), "day": "monday"}) == ("day",)


def test_all_of_them_together_are_bounded() -> None:
    """The smallest come first: many of them say more than one."""
    half = SENT_BYTES * 5 // 8
    parameters = {"first": bytes(half), "second": bytes(half - 1), "third": 3}
    assert names_sent(parameters) == ("third", "second")


def test_large_parameter_is_not_pickled_to_its_end() -> None:
    """Its whole pickle would take memory and time for nothing."""
    Counted.pickled = 0
    many: list[Any] = [(Counted(), bytes(1000)) for _ in range(10_000)]
    assert names_sent({"many": many}) == ()
    assert Counted.pickled < 2000


def test_one_that_is_not_sent_says_so_and_gives_no_cache_key() -> None:
    """A key without it would be that of another flow run, with another value."""
    seen = with_stand_ins({"day": "monday"}, ["data"])
    assert seen is not None
    assert seen["day"] == "monday"
    assert isinstance(seen["data"], NotSent)
    assert "'data' of the flow is not sent" in repr(seen["data"])
    with pytest.raises(Exception, match="not sent"):
        hash_objects(seen, raise_on_failure=True)
