"""Leases: one holder at a time, and none that outlives its holder for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient

from prefect_heteroflow.orchestration.leases import LEASE_PREFIX, lease, remove_left_leases
from tests.support.prefect_server import PrefectServer


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    async with PrefectClient(server.api_url) as found:
        yield found


@pytest.fixture
def name() -> str:
    return f"test_{uuid4().hex}"


async def is_there(client: PrefectClient, name: str) -> bool:
    return await client.read_variable_by_name(f"{LEASE_PREFIX}{name}") is not None


async def test_lease_is_held_by_one_and_gone_afterwards(client: PrefectClient, name: str) -> None:
    async with lease(client, name, seconds=60) as first, lease(client, name, seconds=60) as second:
        assert (first, second) == (True, False)
    assert not await is_there(client, name)


async def test_lease_of_a_killed_holder_is_removed_when_it_is_over(
    client: PrefectClient, name: str
) -> None:
    async with lease(client, name, seconds=-1):
        assert await remove_left_leases(client) >= 1
        assert not await is_there(client, name)


async def test_lease_that_is_not_over_stays(client: PrefectClient, name: str) -> None:
    async with lease(client, name, seconds=60):
        await remove_left_leases(client)
        assert await is_there(client, name)
