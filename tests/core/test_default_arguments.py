"""Arguments that are the defaults of their signature, in the process that gets them."""

from __future__ import annotations

import pickle
import threading
from typing import Any

from prefect_heteroflow.task_runner.default_arguments import defaults_in, with_own_defaults

MISSING = object()


class Options:
    def __init__(self, size: int) -> None:
        self.size = size


OPTIONS = Options(1)


def body(first: int, options: Any = OPTIONS, value: Any = MISSING, mode: str = "a") -> None:
    """Its defaults are what the tests are about."""


DEFAULTS = {"options": OPTIONS, "value": MISSING, "mode": "a"}


def sent(parameters: dict[str, Any]) -> dict[str, Any]:
    names = defaults_in(body, parameters)
    return with_own_defaults(body, pickle.loads(pickle.dumps(parameters)), names)


def test_defaults_are_those_of_the_process() -> None:
    found = sent({"first": 1, **DEFAULTS})
    assert found == {"first": 1, **DEFAULTS}
    assert found["value"] is MISSING


def test_an_argument_like_the_default_is_none() -> None:
    """The near miss: another object."""
    assert sent({"first": 1, **DEFAULTS, "value": object()})["value"] is not MISSING


def test_default_that_was_changed_at_home_is_the_changed_one() -> None:
    parameters = {"first": 1, **DEFAULTS}
    names = defaults_in(body, parameters)
    changed = {**parameters, "options": Options(2), "mode": "b"}
    found = with_own_defaults(body, changed, names)
    assert (found["options"].size, found["mode"]) == (2, "b")


def test_defaults_that_were_not_sent_stand_in_their_order() -> None:
    found = with_own_defaults(body, {"first": 1, "mode": "b"}, ("options", "value"))
    assert list(found) == ["first", "options", "value", "mode"]


def test_name_that_the_other_process_does_not_know_is_left_alone() -> None:
    """Its module may be another version."""
    assert with_own_defaults(body, {"first": 1, "gone": 2}, ("gone", "first")) == {
        "first": 1,
        "gone": 2,
    }


def test_value_that_cannot_be_pickled_is_the_one_that_came() -> None:
    own = threading.Lock()

    def locked(lock: Any = own) -> None:
        """Sent all the same."""

    other = threading.Lock()
    assert with_own_defaults(locked, {"lock": other}, ("lock",)) == {"lock": other}
