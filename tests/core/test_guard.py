"""What goes wrong with one run is said once; only an API that is away ends a look."""

from __future__ import annotations

import logging

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.backend import WorkerCannotStart
from prefect_heteroflow.attempts.guard import CannotYet, Guard

LOGGER = logging.getLogger("guarded")


def answer(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://api/flow_runs/")
    return httpx.HTTPStatusError(
        f"{status}", request=request, response=httpx.Response(status, request=request)
    )


def fail(guard: Guard, error: Exception, what: str = "Run 'x'") -> None:
    with guard.over(what, LOGGER):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        answer(404),
        answer(409),
        answer(422),
        ObjectNotFound(answer(404)),
        KeyError("a fault of ours"),
    ],
    ids=["404", "409", "422", "not found", "fault"],
)
def test_what_concerns_one_run_is_left_out_and_said_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    for _ in range(3):
        fail(guard, error)
    assert len(caplog.records) == 1
    assert "Run 'x'" in caplog.text


@pytest.mark.parametrize(
    "error",
    [answer(500), answer(503), answer(429), httpx.ConnectError("away"), WorkerCannotStart("taken")],
    ids=["500", "503", "429", "no answer", "cannot start"],
)
def test_what_concerns_all_ends_the_look(error: Exception) -> None:
    with pytest.raises(type(error)):
        fail(Guard(), error)


def test_the_same_failure_is_said_again_after_it_went_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = Guard()
    fail(guard, CannotYet("It waits."))
    with guard.over("Run 'x'", LOGGER):
        pass
    fail(guard, CannotYet("It waits."))
    assert [record.message for record in caplog.records] == ["It waits.", "It waits."]
