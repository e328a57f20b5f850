"""Prefect Variables of this package: set, delete and read many with few requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import httpx
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from prefect_heteroflow.orchestration import clock
from prefect_heteroflow.orchestration.node_values import VARIABLE_PREFIX

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

LEAST_PAGE = 50
"""A page shorter than this is the last one, whatever limit the server is set to (200 at first)."""


async def read_variables(client: PrefectClient) -> dict[str, Any]:
    """Name -> value of all Variables of this package."""

    async def read_page(*, offset: int) -> list[dict[str, Any]]:
        # `client.read_variables` takes no filter. `like_` matches anywhere in a name, `_` matches
        # any character and case does not count: the prefixes are checked again by the caller.
        body = {"offset": offset, "variables": {"name": {"like_": VARIABLE_PREFIX}}}
        response = await clock.request(client, "POST", "/variables/filter", json=body)
        return list(response.json())

    return {row["name"]: row["value"] for row in await read_pages(read_page)}


async def measure_clock(client: PrefectClient) -> None:
    """Ask for one Variable, for the `Date` of the answer (see `clock.utc_now`).

    Raises:
        httpx.HTTPError: The API failed.
    """
    await clock.request(client, "POST", "/variables/filter", json={"limit": 1})


async def read_pages(
    read_page: Callable[..., Awaitable[list[Any]]], *, most: int | None = None
) -> list[Any]:
    """All rows of a filter route, page by page, or so many; `read_page` takes the `offset`."""
    rows: list[Any] = []
    while most is None or len(rows) < most:
        page = await read_page(offset=len(rows))
        rows += page
        if len(page) < LEAST_PAGE:
            break
    return rows


async def write_variable(client: PrefectClient, name: str, value: dict[str, Any]) -> None:
    """Set a Variable; one request if it exists."""
    for _ in range(3):
        try:
            await client.update_variable(VariableUpdate(name=name, value=value))
            return
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
        try:
            await client.create_variable(VariableCreate(name=name, value=value))
            return
        except ObjectAlreadyExists:
            continue  # made by somebody else in between


async def delete_variable(client: PrefectClient, name: str) -> bool:
    """Delete a Variable; False if there is none."""
    try:
        await client.delete_variable_by_name(name)
    except ObjectNotFound:
        return False
    return True
