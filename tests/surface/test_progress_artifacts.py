"""Progress artifacts on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.orchestration.progress_artifacts import (
    progress_key,
    read_progress_artifact,
    write_progress,
)
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as found:
            yield found


@pytest.fixture
def run_id(api: Api) -> UUID:
    api.create_pool("progress", "heteroflow-process")
    return UUID(api.submit(api.deploy("host_oom", "progress", name="progress"), {"need_mb": 1}))


async def make(client: PrefectClient, run_id: UUID, key: str, data: float, kind: str) -> None:
    await client.create_artifact(ArtifactCreate(key=key, type=kind, data=data, flow_run_id=run_id))


async def test_newest_progress_artifact_of_the_attempt_is_its_progress(
    client: PrefectClient, run_id: UUID
) -> None:
    assert await read_progress_artifact(client, run_id) is None
    await make(client, run_id, "training", 10.0, "progress")
    await make(client, run_id, "training", 55.5, "progress")
    await make(client, run_id, "loss", 0.5, "markdown")
    assert await read_progress_artifact(client, run_id) == Progress(point="55.5 %", percent=55.5)


async def test_run_shows_one_artifact_with_at_most_98_percent_until_it_has_succeeded(
    api: Api, client: PrefectClient, run_id: UUID
) -> None:
    assert await write_progress(client, run_id, 40.0) == 40.0
    assert await write_progress(client, run_id, 100.0) == 98.0
    body = {"artifacts": {"key": {"any_": [progress_key(run_id)]}}}
    assert [it["data"] for it in api.post("/artifacts/filter", body)] == [98.0]
    assert await write_progress(client, run_id, 100.0, succeeded=True) == 100.0
    (artifact,) = api.post("/artifacts/filter", body)
    assert (artifact["type"], artifact["data"]) == ("progress", 100.0)


async def test_artifact_of_the_run_is_not_taken_for_the_attempts_own(
    client: PrefectClient, run_id: UUID
) -> None:
    """On the front run both stand side by side."""
    await write_progress(client, run_id, 40.0)
    assert await read_progress_artifact(client, run_id) is None
