"""An API that is away is asked again, without end while somebody wants to know."""

from __future__ import annotations

import httpx
import pytest

from prefect_heteroflow.task_runner.waiting_out import wait_out

AWAY = httpx.ConnectError("away")
BUSY = httpx.HTTPStatusError(
    "busy", request=httpx.Request("GET", "http://x"), response=httpx.Response(503)
)
REFUSED = httpx.HTTPStatusError(
    "no", request=httpx.Request("GET", "http://x"), response=httpx.Response(422)
)


class Api:
    """Fails as told, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_answer_comes_after_the_outage_and_pauses_grow_up_to_five_seconds() -> None:
    pauses: list[float] = []
    api = Api(*[AWAY, BUSY] * 4)
    assert wait_out(api, is_over=lambda: False, sleep=pauses.append) == "answer"
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_refusal_is_raised_at_once() -> None:
    pauses: list[float] = []
    with pytest.raises(httpx.HTTPStatusError):
        wait_out(Api(REFUSED), is_over=lambda: False, sleep=pauses.append)
    assert pauses == []


def test_outage_is_raised_when_nobody_wants_to_know_any_more() -> None:
    with pytest.raises(httpx.ConnectError):
        wait_out(Api(AWAY, AWAY), is_over=lambda: True, sleep=lambda _: None)
