"""Pool tags on a real server: stored, shown in the description, kept up to date."""

from __future__ import annotations

from datetime import datetime, timezone
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate

from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool
from prefect_heteroflow.orchestration.nodes import publish_node, read_cluster
from prefect_heteroflow.orchestration.pool_tags import (
    PoolNotFound,
    read_pool_tags,
    refresh_pool_line,
    tag_pool,
    untag_pool,
)
from tests.support.prefect_server import PrefectServer, connected

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)


async def new_pool(client: PrefectClient, description: str | None = None) -> str:
    name = f"pool-{uuid4().hex[:8]}"
    pool = WorkPoolCreate(name=name, type="heteroflow-process", description=description)
    await client.create_work_pool(pool)
    return name


async def description_of(client: PrefectClient, name: str) -> str | None:
    return (await client.read_work_pool(name)).description


async def declared(client: PrefectClient, name: str) -> Pool:
    cluster = await read_cluster(client, now=NOW, liveness_seconds=90)
    return next(pool for pool in cluster.pools if pool.name == name)


async def test_tag_is_read_back_and_shown_below_the_users_text(server: PrefectServer) -> None:
    """One line of the description is ours, the rest is the user's."""
    async with connected(server) as client:
        name = await new_pool(client, "Night runs.\nAsk Bob.")
        pool = await tag_pool(client, name, gpu_memory_mb=24576, memory_mb=65536, now=NOW)
        assert pool == await read_pool_tags(client, name)
        assert pool == Pool(name=name, gpu_memory_mb=24576, memory_mb=65536)
        assert await declared(client, name) == Pool(
            name=name, gpu_memory_mb=24576, memory_mb=65536, worker_type="heteroflow-process"
        )
        assert await description_of(client, name) == (
            "Night runs.\nAsk Bob.\nheteroflow: 24576 MB GPU memory, 65536 MB memory, no live node"
        )
        assert await untag_pool(client, name, now=NOW)
        assert await description_of(client, name) == "Night runs.\nAsk Bob."
        assert await read_pool_tags(client, name) is None
        assert not await untag_pool(client, name, now=NOW)


async def test_second_tag_keeps_what_it_does_not_name(server: PrefectServer) -> None:
    """Values are declared one by one or together."""
    async with connected(server) as client:
        name = await new_pool(client)
        await tag_pool(client, name, gpu_memory_mb=24576, now=NOW)
        pool = await tag_pool(client, name, gpu_count=4, now=NOW)
        assert pool == Pool(name=name, gpu_memory_mb=24576, gpu_count=4)
        assert await description_of(client, name) == (
            "heteroflow: 4 x 24576 MB GPU memory, no live node"
        )


async def test_live_nodes_come_and_go_in_the_line(server: PrefectServer) -> None:
    """A worker refreshes the line from the cluster it has read; unchanged costs no write."""
    async with connected(server) as client:
        name = await new_pool(client, "mine")
        gpu = Gpu(uuid="GPU-1", name="A10", memory_mb=24576)
        node = Node(name=f"{name}-a", pool=name, memory_mb=65536, gpus=(gpu,))
        await publish_node(client, node, worker_instance_id="w", heartbeat_at=NOW)
        cluster = await read_cluster(client, now=NOW, liveness_seconds=90)
        assert await refresh_pool_line(client, name, cluster)
        line = f"heteroflow: 24576 MB GPU memory, 65536 MB memory, 1 live node ({name}-a)"
        assert await description_of(client, name) == f"mine\n{line}"
        before = (await client.read_work_pool(name)).updated
        assert not await refresh_pool_line(client, name, cluster)
        assert (await client.read_work_pool(name)).updated == before
        await publish_node(client, node, worker_instance_id="w", heartbeat_at=NOW, stopped=True)
        cluster = await read_cluster(client, now=NOW, liveness_seconds=90)
        assert await refresh_pool_line(client, name, cluster)
        assert await description_of(client, name) == "mine"


async def test_refresh_does_not_write_over_a_text_that_was_just_changed(
    server: PrefectServer,
) -> None:
    """What the worker remembers of the pool may be old; the text on the server counts."""
    async with connected(server) as client:
        name = await new_pool(client, "old text")
        known = await client.read_work_pool(name)
        await client.update_work_pool(name, WorkPoolUpdate(description="new text"))
        cluster = Cluster(pools=(Pool(name=name, memory_mb=1024),))
        assert await refresh_pool_line(client, name, cluster, known=known)
        assert await description_of(client, name) == (
            "new text\nheteroflow: GPUs unknown, 1024 MB memory, no live node"
        )
        # What is known shows the right line: the server is not even asked.
        known = await client.read_work_pool(name)
        await client.delete_work_pool(name)
        assert not await refresh_pool_line(client, name, cluster, known=known)


async def test_refresh_of_a_deleted_pool_is_no_error(server: PrefectServer) -> None:
    """Its workers run on for a while."""
    async with connected(server) as client:
        cluster = Cluster(pools=(Pool(name="gone", memory_mb=1024),))
        assert not await refresh_pool_line(client, "gone", cluster)


async def test_pool_that_does_not_exist_is_refused_with_a_list(server: PrefectServer) -> None:
    """A slip of the pen is seen at once."""
    async with connected(server) as client:
        name = await new_pool(client)
        for call in (
            tag_pool(client, "gpu-24bg", memory_mb=1, now=NOW),
            untag_pool(client, "gpu-24bg", now=NOW),
        ):
            with pytest.raises(PoolNotFound) as refused:
                await call
            text = str(refused.value)
            assert text.startswith("There is no work pool 'gpu-24bg'. There are: ")
            assert name in text or " more. " in text
            assert "prefect work-pool create gpu-24bg --type heteroflow" in text


async def test_tag_of_a_deleted_pool_is_reported_and_can_be_taken_back(
    server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not routed to."""
    async with connected(server) as client:
        name = await new_pool(client)
        await tag_pool(client, name, memory_mb=1024, now=NOW)
        await client.delete_work_pool(name)
        cluster = await read_cluster(client, now=NOW, liveness_seconds=90)
        assert name not in [pool.name for pool in cluster.pools]
        assert await untag_pool(client, name, now=NOW)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "Nothing to declare"),
        ({"memory_mb": 0}, "memory_mb is 0; allowed are whole numbers from 1 on"),
        ({"gpu_memory_mb": -8192}, "gpu_memory_mb is -8192"),
        ({"gpu_count": -1}, "gpu_count is -1; allowed are whole numbers from 0 on"),
        ({"memory_mb": True}, "memory_mb is True"),
    ],
)
async def test_numbers_that_make_no_sense_are_refused(
    server: PrefectServer, values: dict[str, int], complaint: str
) -> None:
    """Before anything is written, naming the value and what is allowed."""
    async with connected(server) as client:
        name = await new_pool(client)
        with pytest.raises(ValueError, match=complaint):
            await tag_pool(client, name, **values, now=NOW)
        assert await read_pool_tags(client, name) is None
