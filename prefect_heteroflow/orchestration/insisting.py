"""Steps that must not be lost: told again for as long as the Prefect API does not take them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import httpx

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 30.0


async def insist(
    step: Callable[[], Awaitable[T]],
    logger: logging.Logger | logging.LoggerAdapter[Any],
    what: str,
    *,
    first_pause_seconds: float = 1.0,
    until: anyio.Event | None = None,
) -> T | None:
    """Do a step, and again for as long as the API is away or overloaded.

    Args:
        step: Safe to repeat: after an outage nobody knows whether the last request arrived.
        logger: Gets a warning for each time that the step has to be told again.
        what: What is kept meanwhile, for the warning: "the end of attempt 2".
        first_pause_seconds: Doubles up to 30 s.
        until: Set when the step is no longer wanted; then `None` comes back.

    Raises:
        httpx.HTTPStatusError: The API has answered, and refuses the step.
    """
    pause_seconds = first_pause_seconds
    while True:
        try:
            return await step()
        except httpx.HTTPError as error:
            if not is_passing(error):
                raise
            logger.warning(
                "The Prefect API does not answer (%s); %s is kept and told again in %.0f s.",
                _name_of(error),
                what,
                pause_seconds,
            )
            with anyio.move_on_after(pause_seconds):
                await (until or anyio.Event()).wait()
            if until is not None and until.is_set():
                return None
            pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * pause_seconds)


def is_passing(error: httpx.HTTPError) -> bool:
    """The API was not reached, or could not cope: the same request may be taken later."""
    if not isinstance(error, httpx.HTTPStatusError):
        return True
    status = error.response.status_code
    return status >= 500 or status == 429


def _name_of(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return type(error).__name__
