"""What an exception of a task's body proves: its type, and only of some things its message."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from prefect import Task, task
from prefect.exceptions import (
    Abort,
    CrashedRun,
    FlowPauseTimeout,
    FlowRunWaitTimeout,
    MissingResult,
    Pause,
    TerminationSignal,
    UnfinishedRun,
)
from prefect.utilities.callables import call_with_parameters

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence, ExceptionInfo, FailureClass
from prefect_heteroflow.exceptions_as_data import exception_info
from prefect_heteroflow.task_runner.child import begin_at_body, value_of_body

APPLICATION = FailureClass.APPLICATION_ERROR
NETWORK = FailureClass.NETWORK_TIMEOUT


class Told(Exception):
    """An error of an application."""


class FetchTimeoutError(Exception):
    """One whose name says what it is."""


class OwnPauseTimeout(FlowPauseTimeout):
    """The same, of somebody who knows what Prefect has."""


def named(name: str, message: str, *bases: str) -> ExceptionInfo:
    names = (name, *bases, "builtins.Exception", "builtins.BaseException")
    return ExceptionInfo(type_names=names, message=message)


def raised_from(error: Exception, cause: Exception) -> ExceptionInfo:
    error.__cause__ = cause
    return exception_info(error)


@pytest.mark.parametrize(
    ("info", "of_body", "of_flow"),
    [
        (exception_info(TimeoutError("mine")), NETWORK, NETWORK),
        (exception_info(ConnectionResetError("reset")), NETWORK, NETWORK),
        (named("httpx.ReadTimeout", "", "httpx.TransportError"), NETWORK, NETWORK),
        (exception_info(FetchTimeoutError("slow")), NETWORK, NETWORK),
        (
            exception_info(OSError(28, "No space left on device")),
            FailureClass.DISK_PRESSURE,
            FailureClass.DISK_PRESSURE,
        ),
        (
            named("httpx.HTTPStatusError", "Server error '503 Service Unavailable' for url"),
            FailureClass.TRANSIENT_ERROR,
            FailureClass.TRANSIENT_ERROR,
        ),
        (
            named("sqlite3.OperationalError", "database is locked"),
            FailureClass.TRANSIENT_ERROR,
            FailureClass.TRANSIENT_ERROR,
        ),
        (named("httpxtra.Told", "Server error '503 Service Unavailable' for"), APPLICATION, None),
        (exception_info(OSError("No space left on device")), APPLICATION, None),
        (exception_info(ValueError("Read timed out")), APPLICATION, NETWORK),
        (exception_info(Told("503 Service Unavailable")), APPLICATION, None),
        (raised_from(Told("no answer"), TimeoutError("mine")), NETWORK, NETWORK),
        (raised_from(Told("no answer"), ValueError("Read timed out")), APPLICATION, NETWORK),
        (
            raised_from(MemoryError(), ValueError("Read timed out")),
            FailureClass.CPU_OUT_OF_MEMORY,
            NETWORK,
        ),
        (
            exception_info(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")),
            FailureClass.GPU_OUT_OF_MEMORY,
            FailureClass.GPU_OUT_OF_MEMORY,
        ),
        (exception_info(MemoryError()), FailureClass.CPU_OUT_OF_MEMORY, None),
        (exception_info(PermissionError(13, "no")), FailureClass.PERMISSION_DENIED, None),
        (exception_info(FlowPauseTimeout("never resumed")), APPLICATION, APPLICATION),
        (exception_info(FlowRunWaitTimeout("still runs")), APPLICATION, APPLICATION),
        (exception_info(CrashedRun("Crash detected")), APPLICATION, APPLICATION),
        (exception_info(UnfinishedRun("is Pending")), APPLICATION, APPLICATION),
        (exception_info(MissingResult("no value")), APPLICATION, APPLICATION),
        (exception_info(Abort("not allowed")), APPLICATION, APPLICATION),
        (exception_info(Pause("paused")), APPLICATION, APPLICATION),
        (raised_from(FlowPauseTimeout("never resumed"), TimeoutError("mine")), NETWORK, NETWORK),
        (exception_info(OwnPauseTimeout("near miss: an own type")), NETWORK, NETWORK),
        (exception_info(TerminationSignal(15)), FailureClass.TASK_CANCELLED, None),
        (named("prefect_x.exceptions.FlowPauseTimeout", "near miss"), NETWORK, NETWORK),
    ],
    ids=lambda value: (
        ""
        if not isinstance(value, ExceptionInfo)
        else (
            f"{value.type_names[0].rpartition('.')[2]} {value.message[:20]}"
            + "".join(f" from {cause.type_names[0].rpartition('.')[2]}" for cause in value.causes)
        )
    ),
)
def test_transient_is_what_the_type_says_and_memory_also_what_the_message_says(
    info: ExceptionInfo, of_body: FailureClass, of_flow: FailureClass | None
) -> None:
    """A whole flow's attempt (`of_flow`) is still read by its message too."""
    evidence = Evidence(phase="run", exception=info)
    found = diagnose(evidence, trusts_messages=False)
    assert found is not None
    assert found.failure is of_body
    if of_flow is not None:
        attempt = diagnose(evidence)
        assert attempt is not None
        assert attempt.failure is of_flow


def test_types_to_retry_count_for_what_a_message_does_not_prove() -> None:
    evidence = Evidence(phase="run", exception=exception_info(ValueError("Read timed out")))
    found = diagnose(evidence, retry_exceptions=["ValueError"], trusts_messages=False)
    assert found is not None
    assert (found.failure, found.verdict) == (APPLICATION, "retry")


@task
def fails() -> None:
    raise Told("the body's line")


@task
async def fails_async() -> None:
    raise Told("the body's line")


@task
def calls_prefect_again() -> None:
    call_with_parameters(fails.fn, {})


def functions_shown(body: Task[..., Any], **parameters: Any) -> list[str]:
    """The functions in the traceback of that body, from the outermost."""
    try:
        value_of_body(body, parameters)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # this test
        begin_at_body(error)
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (fails, ["fails"]),
        (fails_async, ["fails_async"]),
        (calls_prefect_again, ["calls_prefect_again", "call_with_parameters", "fails"]),
    ],
    ids=["a body", "a coroutine", "frames of Prefect within the body stay"],
)
def test_traceback_of_a_body_begins_with_the_body(body: Task[..., Any], shown: list[str]) -> None:
    assert functions_shown(body) == shown


def test_traceback_without_a_line_of_the_user_stays_whole() -> None:
    assert "call_with_parameters" in functions_shown(fails, no_such_argument=1)
