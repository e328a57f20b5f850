"""Which results can be made again, and which states of an argument are read for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.annotations import quote

from prefect_heteroflow.task_runner.lost_results import Producer, Producers, not_read
from prefect_heteroflow.task_runner.stored_results import ResultRecordMetadata


def producer_of(size_bytes: int) -> Producer:
    return Producer(task_run_id=uuid4(), size_bytes=size_bytes, run_again=lambda _: Completed())


def test_oldest_arguments_are_forgotten_when_they_are_too_much() -> None:
    """What is remembered has a cap."""
    producers = Producers(most_bytes=100)
    old, new = producer_of(60), producer_of(60)
    producers.remember(old)
    producers.remember(new)
    assert producers.find(old.task_run_id) is None
    assert producers.find(new.task_run_id) is new


def test_arguments_beyond_the_cap_are_not_remembered() -> None:
    """Nor do they push out anything for good."""
    producers = Producers(most_bytes=100)
    large = producer_of(101)
    producers.remember(large)
    assert producers.find(large.task_run_id) is None
    small = producer_of(1)
    producers.remember(small)
    assert producers.find(small.task_run_id) is small


def stored_state() -> State[Any]:
    metadata = ResultRecordMetadata(storage_key="a", serializer={"type": "pickle"})
    return Completed(data=metadata)


@pytest.mark.parametrize(
    "wrap",
    [lambda it: it, lambda it: [it], lambda it: {"a": (1, it)}, lambda it: [[1], {2: [it]}]],
    ids=["plain", "list", "dict", "deep"],
)
def test_states_are_found_wherever_the_engine_would_find_them(wrap: Callable[[Any], Any]) -> None:
    given = wrap(stored_state())
    assert repr(not_read(given)) != repr(given)


@pytest.mark.parametrize(
    "value",
    [quote(stored_state()), Completed(data=1), [1, "two", None], threading.Lock(), {"a": [b"c"]}],
    ids=["quoted", "in-memory", "list", "object", "dict"],
)
def test_what_needs_no_reading_stays_the_same_object(value: Any) -> None:
    assert not_read(value) is value
