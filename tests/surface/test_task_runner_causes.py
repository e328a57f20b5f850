"""What an exception of a body was raised from."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prefect import flow, task
from pydantic import BaseModel, ValidationError

from prefect_heteroflow import HeteroTaskError, HeteroTaskRunner
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    """Flows run in this process."""
    with flows_run_here(server):
        yield


def error_of(fail: Callable[[], Any]) -> Any:
    """The error of a task with that body."""
    submitted = task(retries=0)(fail)

    def body() -> Any:
        return submitted.submit().result(raise_on_failure=False)

    return flow(task_runner=HeteroTaskRunner(max_retries=0))(body)()


class Told(Exception):
    """An error with a type of its own."""


def test_causes_of_an_exception_arrive_with_it_behind_the_traceback_of_the_child() -> None:
    def fail() -> None:
        try:
            try:
                {}["deep"]
            except KeyError as error:
                raise Told("middle") from error
        except Told as error:
            raise ValueError("near") from error

    error = error_of(fail)
    middle = error.__cause__
    assert (type(error).__name__, type(middle), middle.args) == ("ValueError", Told, ("middle",))
    assert isinstance(middle.__cause__, KeyError)
    shown = "".join(traceback.format_exception(error))
    assert 'raise Told("middle") from error' in shown
    assert error.cause.__cause__ is middle


def test_cause_that_cannot_be_pickled_takes_nothing_from_its_exception() -> None:
    def fail() -> None:
        cause = Told("cause")
        cause.lock = threading.Lock()  # type: ignore[attr-defined]
        raise ValueError("near") from cause

    error = error_of(fail)
    assert isinstance(error, ValueError)
    assert "Told: cause" in error.remote_traceback
    assert "Told: cause" in "".join(traceback.format_exception(error))


def test_type_that_cannot_be_subclassed_arrives_as_our_type_with_the_exception_as_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And a warning says so."""

    def fail() -> None:
        class Model(BaseModel):
            number: int

        Model(number="x")

    error = error_of(fail)
    assert type(error) is HeteroTaskError
    assert isinstance(error.cause, ValidationError)
    assert error.__cause__ is error.cause
    assert error.cause.errors()[0]["loc"] == ("number",)
    assert "ValidationError cannot be subclassed" in caplog.text


def test_traceback_of_a_body_that_is_sent_by_value_shows_its_lines() -> None:
    """It has no place in a module; its file is known nevertheless."""

    def fail() -> None:
        raise Told("the line that failed")

    error = error_of(fail)
    assert f'File "{__file__}"' in error.remote_traceback
    assert 'raise Told("the line that failed")' in error.remote_traceback
