"""Questions to the API that are asked again while it is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from prefect_heteroflow.orchestration.insisting import is_passing

T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 5.0


def wait_out(
    ask: Callable[[], T],
    *,
    is_over: Callable[[], bool],
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """The answer, once the API gives one; a task waits as long as its flow does.

    Args:
        ask: Asks the API.
        is_over: Nobody wants to know any more: the flow was cancelled.
        sleep: Waits so many seconds.

    Raises:
        httpx.HTTPError: The API refuses to answer, or `is_over`.
    """
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except httpx.HTTPError as error:
            if not is_passing(error) or is_over():
                raise
        sleep(pause_seconds)
        pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * pause_seconds)
