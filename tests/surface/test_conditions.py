"""Retry conditions for plain Prefect tasks."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.states import Crashed, Failed, exception_to_failed_state
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.conditions import retry_if, retry_if_transient
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.exceptions_as_data import exception_info


def _state(exc: BaseException) -> Any:
    return run_coro_as_sync(exception_to_failed_state(exc))


@pytest.mark.parametrize(
    ("exc", "retried"),
    [
        (TimeoutError("timed out"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (OSError(28, "No space left on device"), True),
        (ValueError("bad"), False),
        (MemoryError(), False),
        (PermissionError(13, "Permission denied"), False),
    ],
)
def test_transient_failures_are_retried(exc: BaseException, retried: bool) -> None:
    """Only where waiting helps does the condition say yes."""
    assert retry_if_transient(None, None, _state(exc)) is retried  # type: ignore[arg-type]


def test_named_classes_are_retried() -> None:
    """`retry_if` takes names and enum members alike."""
    condition = retry_if("CpuOutOfMemory", FailureClass.PERMISSION_DENIED)
    assert condition(None, None, _state(MemoryError()))  # type: ignore[arg-type]
    assert condition(None, None, _state(PermissionError("no")))  # type: ignore[arg-type]
    assert not condition(None, None, _state(TimeoutError()))  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [(), ("Nope",), ("",)])
def test_unknown_class_is_refused_at_once(classes: tuple[str, ...]) -> None:
    """A misspelt class is an error where it is written, not when the task fails."""
    with pytest.raises(ValueError, match="failure class"):
        retry_if(*classes)


def test_state_without_exception_is_read_by_its_message() -> None:
    """A crashed task run has only a message."""
    state = Crashed(message="Connection to server timed out: httpx.ReadTimeout")
    assert retry_if_transient(None, None, state)  # type: ignore[arg-type]


def test_state_without_anything_is_not_retried() -> None:
    """Nothing observed is no reason to retry."""
    assert not retry_if_transient(None, None, Failed())  # type: ignore[arg-type]


def test_cause_of_an_exception_counts() -> None:
    """A wrapped time-out is a time-out."""
    error = RuntimeError("no data")
    error.__cause__ = TimeoutError("timed out")
    assert retry_if_transient(None, None, _state(error))  # type: ignore[arg-type]


def test_exception_becomes_data() -> None:
    """Types by MRO, message, causes from the nearest outwards, and the traceback."""
    try:
        try:
            raise KeyError("a")
        except KeyError as cause:
            raise ValueError("b") from cause
    except ValueError as error:
        info = exception_info(error)
    assert info.type_names == (
        "builtins.ValueError",
        "builtins.Exception",
        "builtins.BaseException",
    )
    assert info.message == "b"
    assert [cause.type_names[0] for cause in info.causes] == ["builtins.KeyError"]
    assert info.traceback is not None
    assert "ValueError: b" in info.traceback


def test_suppressed_context_is_no_cause() -> None:
    """`raise ... from None` says that the context does not matter."""
    error = ValueError("b")
    error.__context__ = KeyError("a")
    error.__suppress_context__ = True
    assert exception_info(error).causes == ()


def test_broken_exception_becomes_data_all_the_same() -> None:
    """An exception whose text raises does not hide the failure."""

    class BadError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert "unreadable" in exception_info(BadError()).message


def test_cycle_of_causes_ends() -> None:
    """Two exceptions that are each other's cause are listed once."""
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert [cause.message for cause in exception_info(first).causes] == ["2"]
