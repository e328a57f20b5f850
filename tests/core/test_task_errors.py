"""An exception of a body as its own type and as `HeteroTaskError` in one."""

from __future__ import annotations

import json
import pickle
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import pytest
from prefect.exceptions import PrefectException

from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.task_runner.errors import (
    HeteroTaskError,
    Origin,
    WorkerDiedError,
    as_task_error,
    with_origin,
)
from prefect_heteroflow.task_runner.exceptions_sent import exception_bytes

ORIGIN = Origin(node="node-1", attempt=2, remote_traceback="Traceback: here")


class PlainError(Exception):
    pass


class FieldsError(Exception):
    """Has an attribute of the name of one of ours."""

    def __init__(self, text: str, node: str = "theirs") -> None:
        super().__init__(text)
        self.node = node


class AbstractError(Exception, metaclass=ABCMeta):
    """Its class has a metaclass of its own."""


class OwnTaskError(HeteroTaskError):
    """What a user made of ours."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class FinalError(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("final")


def _json_error() -> Exception:
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("bad"),
        lambda: ValueError(),
        lambda: KeyError("key"),
        lambda: FileNotFoundError(2, "No such file", "name"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        lambda: PlainError("one", 2),
        lambda: FieldsError("text"),
        _json_error,
        lambda: ImportError("no module", name="missing"),
        lambda: Exception("text"),
        lambda: Exception(),
        lambda: Exception("one", 2),
        lambda: PrefectException("text"),
        lambda: AbstractError("text"),
    ],
    ids=[
        *("one", "none", "key", "os", "unicode", "own", "fields", "json", "import"),
        *("exception", "exception-none", "exception-two", "prefect", "metaclass"),
    ],
)
def test_error_is_both_types_and_says_what_the_cause_says(make: Callable[[], Exception]) -> None:
    """Also after a journey by pickle."""
    cause = make()
    for error in (both := as_task_error(cause, ORIGIN), pickle.loads(pickle.dumps(both))):
        assert isinstance(error, type(cause))
        assert isinstance(error, HeteroTaskError)
        assert type(error).__name__ == type(cause).__name__
        assert (str(error), repr(error), error.args) == (str(cause), repr(cause), cause.args)
        assert type(error.cause) is type(cause)
        assert error.remote_traceback == "Traceback: here"


@pytest.mark.parametrize(
    ("cause", "name", "value"),
    [
        (FileNotFoundError(2, "No such file", "name"), "filename", "name"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "start", 0),
        (StopIteration(5), "value", 5),
        (FieldsError("text", node="theirs"), "node", "theirs"),
    ],
    ids=["filename", "start", "value", "node"],
)
def test_attributes_of_the_cause_are_kept(cause: Exception, name: str, value: Any) -> None:
    """Even where one of ours has the same name."""
    assert getattr(as_task_error(cause, ORIGIN), name) == value


def test_type_that_allows_no_subclass_arrives_as_ours_with_its_cause() -> None:
    """Nothing is lost but the type."""
    cause = FinalError.__new__(FinalError, "text")
    error = as_task_error(cause, ORIGIN)
    assert type(error) is HeteroTaskError
    assert error.cause is cause
    assert "FinalError: text" in str(error)


@pytest.mark.parametrize(
    "cause",
    [SystemExit(3), KeyboardInterrupt(), BaseException("text")],
    ids=["exit", "interrupt", "base"],
)
def test_what_is_no_exception_stays_what_it_is(cause: BaseException) -> None:
    """Else `except Exception` would catch an exit."""
    assert as_task_error(cause, ORIGIN) is cause


def test_error_that_a_user_made_of_ours_stays_what_it_is_with_its_fields() -> None:
    arrived = pickle.loads(exception_bytes(OwnTaskError(5)))
    assert as_task_error(arrived, ORIGIN) is arrived
    assert (type(arrived), str(arrived), arrived.code) == (OwnTaskError, "code 5", 5)


def test_death_of_a_worker_travels_with_its_facts() -> None:
    """A persisted result of a failed task keeps them."""
    diagnosis = Diagnosis(failure=FailureClass.PROCESS_CRASHED, rule="rule", reason="reason")
    error = WorkerDiedError("died", signal=11, diagnosis=diagnosis)
    found = pickle.loads(pickle.dumps(with_origin(error, ORIGIN)))
    assert (str(found), found.signal, found.exit_code) == ("died", 11, None)
    assert (found.diagnosis, found.node, found.attempt) == (diagnosis, "node-1", 2)


def test_error_without_origin_has_empty_attributes() -> None:
    """Users may raise one themselves."""
    assert HeteroTaskError("text").node is None
