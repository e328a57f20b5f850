"""Steps that are told again while the API is away, and not when it has refused them."""

from __future__ import annotations

import logging

import httpx
import pytest

from prefect_heteroflow.orchestration.insisting import insist

REQUEST = httpx.Request("POST", "http://127.0.0.1/api")
LOGGER = logging.getLogger("test")


def answered(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(status))


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError(""), httpx.ReadTimeout(""), answered(503), answered(500), answered(429)],
    ids=["connect", "timeout", "503", "500", "429"],
)
async def test_step_is_repeated_until_the_api_takes_it(error: httpx.HTTPError) -> None:
    tries = 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise error

    await insist(step, LOGGER, "the end of attempt 1", first_pause_seconds=0.0)
    assert tries == 3


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_step_that_the_api_refuses_is_not_repeated(status: int) -> None:
    tries = 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        raise answered(status)

    with pytest.raises(httpx.HTTPStatusError):
        await insist(step, LOGGER, "the end of attempt 1", first_pause_seconds=0.0)
    assert tries == 1
