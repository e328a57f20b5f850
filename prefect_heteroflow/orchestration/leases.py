"""A lease on one piece of work that several workers see at the same moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.variables import read_variables

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

LEASE_PREFIX = "heteroflow_lease_"


@asynccontextmanager
async def lease(client: PrefectClient, name: str, *, seconds: float) -> AsyncIterator[bool]:
    """Hold a lease while the block runs; gives `False` if somebody else holds it.

    It is a Variable: the API lets only one create a name. Read again, inside of the block, what
    made the work look necessary: whoever held the lease before may have done it.

    Args:
        client: A client in use.
        name: What the work is about: letters, digits and underscores.
        seconds: A holder that is gone keeps others away for so long.

    Raises:
        httpx.HTTPError: The API failed.
    """
    variable = f"{LEASE_PREFIX}{name}"
    token = str(uuid4())
    held = await _take(client, variable, token, seconds)
    try:
        yield held
    finally:
        if held:
            await _release(client, variable, token)


async def remove_left_leases(client: PrefectClient) -> int:
    """Remove leases that are over: their holders were killed, and nobody needs the work again.

    Raises:
        httpx.HTTPError: The API failed.
    """
    variables = await read_variables(client)
    left = [
        name
        for name, value in variables.items()
        if name.startswith(LEASE_PREFIX) and _is_over(value)
    ]
    for name in left:
        known = await client.read_variable_by_name(name)
        if known is not None and _is_over(known.value):
            await _delete(client, str(known.id))
    return len(left)


async def _take(client: PrefectClient, variable: str, token: str, seconds: float) -> bool:
    until = utc_now() + timedelta(seconds=seconds)
    value = {"token": token, "until": until.isoformat()}
    for _ in range(2):
        try:
            await client.create_variable(VariableCreate(name=variable, value=value))
            return True
        except ObjectAlreadyExists:
            known = await client.read_variable_by_name(variable)
            if known is None:
                continue
            if not _is_over(known.value):
                return False
            # By its id: of two that find it over, the slower one does not delete the new one.
            await _delete(client, str(known.id))
    return False


def _is_over(value: object) -> bool:
    until = value.get("until") if isinstance(value, dict) else None
    try:
        return utc_now() > datetime.fromisoformat(str(until))
    except (TypeError, ValueError):
        return True  # not ours, or damaged: nobody can release it


async def _release(client: PrefectClient, variable: str, token: str) -> None:
    known = await client.read_variable_by_name(variable)
    if known is not None and isinstance(known.value, dict) and known.value.get("token") == token:
        await _delete(client, str(known.id))


async def _delete(client: PrefectClient, variable_id: str) -> None:
    try:
        await client.request("DELETE", "/variables/{id}", path_params={"id": variable_id})
    except ObjectNotFound:
        return
