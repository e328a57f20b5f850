"""An exception on its way between processes, whatever its constructor wants."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from prefect_heteroflow.task_runner.errors import HeteroTaskError, Origin, as_task_error
from prefect_heteroflow.task_runner.exceptions_sent import (
    WithExceptions,
    exception_bytes,
    left_out_of,
)

ORIGIN = Origin(node="node-1", attempt=2, remote_traceback="Traceback: here")


class KeywordError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class KeywordOSError(OSError):
    def __init__(self, *, path: str) -> None:
        super().__init__(2, "No such file", path)


class RefusingError(Exception):
    """Takes only what it was made from, not what it says."""

    def __init__(self, text: str) -> None:
        if text.startswith("refused"):
            raise RuntimeError("made twice")
        super().__init__(f"refused: {text}")


class RewordingError(Exception):
    """Its constructor takes its own text, and says something else then."""

    def __init__(self, code: object = 0) -> None:
        super().__init__(f"code {code}")


class SlottedError(Exception):
    __slots__ = ("__own", "code")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 5
        self.__own = 6

    def own(self) -> int:
        return self.__own


class LockedError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.code = 5


class LockedArgumentError(Exception):
    """One of its arguments lives in its process only."""


class SealedError(Exception):
    """Its class refuses to be built at all."""

    def __new__(cls, *args: object) -> SealedError:
        raise RuntimeError("sealed")


def status_error() -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://host/path")
    response = httpx.Response(404, request=request, text="not here")
    return httpx.HTTPStatusError("404 Not Found", request=request, response=response)


def sent(error: BaseException) -> Any:
    """The exception as it arrives."""
    return pickle.loads(exception_bytes(error))


MAKERS: dict[str, Callable[[], Exception]] = {
    "httpx": status_error,
    "keyword": lambda: KeywordError(code=5),
    "keyword-os": lambda: KeywordOSError(path="name"),
    "refusing": lambda: RefusingError("text"),
    "rewording": lambda: RewordingError(7),
    "slotted": lambda: SlottedError("text"),
    "plain": lambda: ValueError("bad", 3),
    "os": lambda: FileNotFoundError(2, "No such file", "name"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_exception_arrives_as_its_type_and_says_the_same(make: Callable[[], Exception]) -> None:
    error = make()
    arrived = sent(error)
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args) == (str(error), error.args)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_exception_that_arrived_is_both_types_also_after_another_journey(
    make: Callable[[], Exception],
) -> None:
    error = make()
    both = as_task_error(sent(error), ORIGIN)
    for found in (both, pickle.loads(pickle.dumps(both))):
        assert isinstance(found, type(error))
        assert isinstance(found, HeteroTaskError)
        assert (str(found), found.args) == (str(error), error.args)
        assert type(found.cause) is type(error)
        assert found.remote_traceback == "Traceback: here"


def test_request_and_response_of_an_http_error_are_usable() -> None:
    error: Any = as_task_error(sent(status_error()), ORIGIN)
    assert error.response.status_code == 404
    assert error.response.text == "not here"
    assert str(error.request.url) == "http://host/path"
    assert error.response.request is error.request


def test_what_python_keeps_outside_of_the_attributes_arrives() -> None:
    error: Any = as_task_error(sent(KeywordOSError(path="name")), ORIGIN)
    assert (error.errno, error.strerror, error.filename) == (2, "No such file", "name")


def test_slots_arrive() -> None:
    error: Any = as_task_error(sent(SlottedError("text")), ORIGIN)
    assert (error.code, error.own()) == (5, 6)


def test_notes_of_an_exception_with_keywords_arrive_once() -> None:
    error = KeywordError(code=5)
    error.__notes__ = ["a note"]  # `add_note` came with Python 3.11
    assert as_task_error(sent(error), ORIGIN).__notes__ == ["a note"]  # type: ignore[attr-defined]


def test_attribute_that_cannot_be_pickled_is_left_out_and_named() -> None:
    arrived = sent(LockedError("text"))
    assert (type(arrived), str(arrived), arrived.code) == (LockedError, "text", 5)
    assert not hasattr(arrived, "lock")
    assert left_out_of(arrived) == ("LockedError.lock",)


def test_argument_that_cannot_be_pickled_arrives_as_what_it_is_shown_as() -> None:
    lock = threading.Lock()
    arrived = sent(LockedArgumentError("text", lock))
    assert arrived.args == ("text", repr(lock))
    assert left_out_of(arrived) == ("LockedArgumentError.args[1]",)


def test_nothing_is_left_out_of_an_exception_that_can_be_pickled() -> None:
    """The near miss."""
    arrived = sent(KeywordError(code=5))
    assert left_out_of(arrived) == ()
    assert vars(arrived) == {"code": 5}


def test_exceptions_in_an_exception_arrive_too() -> None:
    """As those of a group do."""
    error = ValueError("outer", [status_error()])
    error.inner = KeywordError(code=5)  # type: ignore[attr-defined]
    arrived = sent(error)
    assert arrived.args[1][0].response.status_code == 404
    assert arrived.inner.code == 5


def test_exception_that_refers_to_itself_is_sent_or_refused_without_end() -> None:
    error = KeywordError(code=5)
    error.__dict__["again"] = [error]
    assert type(sent(error)) is KeywordError


def test_class_that_cannot_be_built_arrives_all_the_same() -> None:
    """Neither its `__new__` nor its `__init__` is called."""
    error = Exception.__new__(SealedError, "text")
    assert (type(sent(error)), sent(error).args) == (SealedError, ("text",))


def test_class_that_this_process_alone_has_is_refused() -> None:
    """The near miss: nothing can rebuild it elsewhere."""

    class OwnError(Exception):
        lock = threading.Lock()  # the class is sent by value, and its lock cannot be

    with pytest.raises(TypeError, match="lock"):
        exception_bytes(OwnError("text"))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_exception_in_a_value_arrives_as_its_type_and_says_the_same(
    make: Callable[[], Exception],
) -> None:
    """Itself, and within one that came from a task."""
    error = make()
    group = as_task_error(ValueError("group", [error]), ORIGIN)
    value = pickle.loads(WithExceptions()({"errors": [error, error], "group": group}))
    (first, second), inner = value["errors"], value["group"].args[1][0]
    assert first is second
    for arrived in (first, inner):
        assert type(arrived) is type(error)
        assert (str(arrived), arrived.args) == (str(error), error.args)


def test_whether_there_was_an_exception_in_the_values_is_known() -> None:
    pickled = WithExceptions()
    assert pickle.loads(pickled({"a": [1]})) == {"a": [1]}
    assert not pickled.has_met_one
    pickled(ValueError("text"))
    assert pickled.has_met_one


def test_part_of_an_exception_in_a_value_is_not_left_out() -> None:
    """Nobody could say that it is missing."""
    with pytest.raises(pickle.PicklingError, match=r"LockedError\.lock"):
        WithExceptions()([LockedError("text")])
