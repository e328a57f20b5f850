"""Nodes on a real server: published, claimed, cordoned, read, and with how many requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import VariableCreate, WorkPoolCreate

from prefect_heteroflow.core.resources import Cluster, Gpu, Node
from prefect_heteroflow.orchestration import node_claim, variables
from prefect_heteroflow.orchestration.node_values import (
    NODE_PREFIX,
    Holder,
    node_to_value,
    node_variable_name,
)
from prefect_heteroflow.orchestration.nodes import (
    NodeNameTaken,
    claim_node_name,
    cordon_node,
    publish_node,
    read_cluster,
    read_registry,
    uncordon_node,
)
from tests.support.prefect_server import PrefectServer, connected

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
LIVENESS = 90.0


@asynccontextmanager
async def counted(client: PrefectClient) -> AsyncIterator[Counter[str]]:
    """Requests by method and route while the block runs.

    What a busy SQLite refuses with 503 is sent again by the client, and does not count.
    """
    seen: Counter[str] = Counter()

    async def count(response: httpx.Response) -> None:
        if response.status_code != 503:
            request = response.request
            seen[f"{request.method} {request.url.path.split('/')[2]}"] += 1

    hooks = client._client.event_hooks
    client._client.event_hooks = {**hooks, "response": [*hooks["response"], count]}
    try:
        yield seen
    finally:
        client._client.event_hooks = hooks


def new_node(**values: Any) -> Node:
    return Node(**{"name": f"node-{uuid4().hex[:8]}", "pool": "p", "memory_mb": 65536, **values})


async def publish(client: PrefectClient, node: Node, at: datetime = NOW, **values: Any) -> Any:
    values = {"worker_instance_id": "me", **values}
    return await publish_node(client, node, heartbeat_at=at, **values)


async def claim(client: PrefectClient, node: Node, at: datetime = NOW, **values: Any) -> Any:
    values = {"worker_instance_id": "me", "liveness_seconds": LIVENESS, **values}
    return (await claim_node_name(client, node, now=at, **values)).id


async def read(client: PrefectClient, at: datetime = NOW) -> Cluster:
    return await read_cluster(client, now=at, liveness_seconds=LIVENESS)


def find(cluster: Cluster, node: Node) -> Node:
    return next(it for it in cluster.nodes if it.name == node.name)


async def put_foreign(client: PrefectClient, node: Node, holder: Holder, at: datetime) -> None:
    """Publish the node as another worker would."""
    value = node_to_value(node, holder=holder, heartbeat_at=at)
    await client.create_variable(VariableCreate(name=node_variable_name(node.name), value=value))


async def test_published_node_is_read_back(server: PrefectServer) -> None:
    """With its GPUs, live, whether or not its Variable was there before."""
    gpu = Gpu(uuid="GPU-1", name="A10", memory_mb=24576, free_mb=20000, healthy=True)
    node = new_node(gpus=(gpu,), docker=True, last_error="disk full")
    async with connected(server) as client:
        for free_mb in (20000, 100):
            node = replace(node, gpus=(replace(gpu, free_mb=free_mb),))
            await publish(client, node)
            assert find(await read(client), node) == node


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PrefectServer]:
    """With no more pools and Variables than one page holds."""
    with PrefectServer(tmp_path) as started:
        yield started


async def test_heartbeat_is_one_request_and_reading_two(own_server: PrefectServer) -> None:
    """The common cases are cheap: they come every few seconds from every node."""
    node = new_node()
    async with connected(own_server) as client:
        token = await claim(client, node)
        async with counted(client) as seen:
            assert await publish(client, node, claim=token) == token
            await publish(client, node)
        assert seen == {"PATCH variables": 2}
        async with counted(client) as seen:
            await read(client)
        assert seen == {"POST variables": 1, "POST work_pools": 1}


@pytest.mark.parametrize(("age", "live"), [(0, True), (90, True), (91, False), (-3600, True)])
async def test_node_is_live_while_its_heartbeat_is_young(
    server: PrefectServer, age: int, live: bool
) -> None:
    """A clock that is ahead makes no dead node."""
    node = new_node()
    async with connected(server) as client:
        await publish(client, node, at=NOW - timedelta(seconds=age))
        assert find(await read(client), node).live is live


async def test_stopped_node_is_not_live_at_once(server: PrefectServer) -> None:
    """A worker that says goodbye needs no liveness window."""
    node = new_node()
    async with connected(server) as client:
        await publish(client, node, stopped=True)
        assert find(await read(client), node).live is False
        await claim(client, node, worker_instance_id="next")
        assert find(await read(client), node).live is True


async def test_cordon_outlives_heartbeats_and_workers(server: PrefectServer) -> None:
    """A heartbeat that knows nothing of a cordon does not undo it; a new worker neither."""
    gpus = tuple(Gpu(uuid=f"GPU-{n}", name="A10", memory_mb=24576) for n in range(2))
    node = new_node(gpus=gpus)
    async with connected(server) as client:
        await publish(client, node)
        await cordon_node(client, node.name, reason="Xid 79", at=NOW, gpu_uuid="GPU-1")
        await publish(client, node)
        seen = find(await read(client), node)
        assert not seen.cordoned
        assert [gpu.healthy for gpu in seen.gpus] == [None, False]
        await cordon_node(client, node.name, reason="by hand", at=NOW)
        await claim(client, node, at=NOW + timedelta(days=1), worker_instance_id="next")
        seen = find(await read(client), node)
        assert seen.cordoned
        assert seen.cordon_reason == "by hand"
        assert [gpu.healthy for gpu in seen.gpus] == [None, False]
        assert await uncordon_node(client, node.name)
        assert not await uncordon_node(client, node.name)
        assert find(await read(client), node) == node


async def test_names_with_the_same_letters_are_two_nodes(server: PrefectServer) -> None:
    """`node-a`, `node_a` and `Node-A` do not overwrite each other."""
    stem = uuid4().hex[:8]
    nodes = [new_node(name=name) for name in (f"n-{stem}", f"n_{stem}", f"N-{stem}", f"n {stem}")]
    async with connected(server) as client:
        for node in nodes:
            await publish(client, node)
        cluster = await read(client)
        assert [find(cluster, node) for node in nodes] == nodes


async def test_broken_and_foreign_variables_are_skipped_with_a_warning(
    server: PrefectServer,
) -> None:
    """One bad value takes no other node away."""
    node = new_node()
    broken = f"{NODE_PREFIX}{uuid4().hex}"
    foreign = f"heteroflowxnode_{uuid4().hex}"
    async with connected(server) as client:
        await publish(client, node)
        await client.create_variable(VariableCreate(name=broken, value={"name": "x"}))
        await client.create_variable(VariableCreate(name=foreign, value="mine"))
        registry = await read_registry(client, now=NOW, liveness_seconds=LIVENESS)
        assert find(registry.cluster, node) == node
        problems = [problem for problem in registry.problems if broken in problem]
        assert problems == [f"The Variable {broken} is left out: pool is None, not a text."]
        assert not any(foreign in problem for problem in registry.problems)
        await client.delete_variable_by_name(broken)


async def test_pools_of_all_types_are_in_the_cluster(server: PrefectServer) -> None:
    """Also untagged and paused ones; routing decides what they are good for."""
    name = f"pool-{uuid4().hex[:8]}"
    async with connected(server) as client:
        await client.create_work_pool(WorkPoolCreate(name=name, type="process", is_paused=True))
        pool = next(pool for pool in (await read(client)).pools if pool.name == name)
        assert pool.worker_type == "process"
        assert pool.paused
        assert pool.memory_mb is None


async def test_many_nodes_are_read_page_by_page(server: PrefectServer) -> None:
    """No node is lost to the server's limit of 200 rows an answer."""
    stem = uuid4().hex[:6]
    nodes = [new_node(name=f"many-{stem}-{index}") for index in range(230)]
    async with connected(server) as client:
        for start in range(0, len(nodes), 20):
            await asyncio.gather(*(publish(client, node) for node in nodes[start : start + 20]))
        names = [it.name for it in (await read(client)).nodes]
        assert {node.name for node in nodes} <= set(names)
        assert len(names) == len(set(names))
        for node in nodes:
            await put_away(client, node)


async def test_second_live_worker_of_the_same_name_is_refused(server: PrefectServer) -> None:
    """The text names the other worker and the setting that gives another name."""
    node = new_node(pool="gpu-8gb")
    other = Holder(instance_id="other", host="host-7", pid=4711)
    async with connected(server) as client:
        await put_foreign(client, node, other, NOW - timedelta(seconds=3))
        with pytest.raises(NodeNameTaken) as refused:
            await claim(client, new_node(name=node.name, pool="gpu-24gb"))
        text = str(refused.value)
        assert text == (
            f"The node name {node.name!r} is taken by another worker on host host-7 (process 4711)"
            " of pool 'gpu-8gb', heard of 3 s ago. Give this node a name of its own with"
            " PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME, or stop that worker; if it is dead, the"
            " name is free in 87 s."
        )
        assert find(await read(client), node).pool == "gpu-8gb"


async def test_name_of_a_worker_not_heard_of_is_taken_over(server: PrefectServer) -> None:
    """A dead worker's heartbeat grows old."""
    node = new_node()
    async with connected(server) as client:
        other = Holder(instance_id="other", host="elsewhere", pid=1)
        await put_foreign(client, node, other, NOW - timedelta(seconds=91))
        await claim(client, node)
        registry = await read_registry(client, now=NOW, liveness_seconds=LIVENESS)
        record = next(it for it in registry.nodes if it.node.name == node.name)
        assert record.holder.instance_id == "me"


async def test_name_taken_over_from_another_pool_keeps_that_pool(server: PrefectServer) -> None:
    """Runs that the earlier worker left there are found by it."""
    node = new_node(pool="before")
    async with connected(server) as client:
        await publish(client, node, worker_instance_id="other", stopped=True)
        moved = replace(node, pool="after")
        token = await claim(client, moved)
        assert find(await read(client), node).former_pools == ("before",)
        await publish(client, replace(moved, former_pools=("before",)), claim=token)
        assert find(await read(client), node).former_pools == ("before",)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until a line is written to it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


async def test_name_of_a_dead_process_of_this_machine_is_taken_over_at_once(
    server: PrefectServer, process: subprocess.Popen[bytes]
) -> None:
    """A worker that is killed and started again does not wait for its own old heartbeat."""
    start = node_claim._process_start(process.pid)
    mine = node_claim.own_holder("other")
    holder = replace(mine, pid=process.pid, pid_started=start)
    node = new_node()
    async with connected(server) as client:
        await put_foreign(client, node, holder, NOW)
        with pytest.raises(NodeNameTaken):
            await claim(client, node)
        process.communicate(b"\n")
        await claim(client, node)


async def test_process_id_used_again_is_not_the_old_worker(server: PrefectServer) -> None:
    """The start time tells a new process of the same id apart."""
    mine = node_claim.own_holder("other")
    holder = replace(mine, pid=os.getppid(), pid_started=(mine.pid_started or 0) + 1)
    node = new_node()
    async with connected(server) as client:
        await put_foreign(client, node, holder, NOW)
        await claim(client, node)


async def test_process_id_of_another_container_proves_nothing(server: PrefectServer) -> None:
    """In another process id namespace a missing process id may well live."""
    holder = replace(node_claim.own_holder("other"), pid=4_000_000, pid_namespace="1")
    node = new_node()
    async with connected(server) as client:
        await put_foreign(client, node, holder, NOW)
        with pytest.raises(NodeNameTaken):
            await claim(client, node)


async def test_of_many_workers_that_claim_at_once_one_wins(server: PrefectServer) -> None:
    """For a new name and for one whose holder is dead."""
    for dead_holder in (False, True):
        node = new_node()
        async with connected(server) as client:
            if dead_holder:
                other = Holder(instance_id="dead", host="elsewhere", pid=1)
                await put_foreign(client, node, other, NOW - timedelta(days=1))
            claims = [claim(client, node, worker_instance_id=f"w{n}") for n in range(12)]
            results = await asyncio.gather(*claims, return_exceptions=True)
        refused = [result for result in results if isinstance(result, NodeNameTaken)]
        assert len(refused) == 11, results


async def test_waiting_for_a_silent_holder_ends_with_its_liveness(server: PrefectServer) -> None:
    """A restarted container gets its name back without being started twice."""
    node = new_node()
    async with connected(server) as client:
        other = Holder(instance_id="other", host="elsewhere", pid=1)
        await put_foreign(client, node, other, NOW)
        await claim(client, node, liveness_seconds=1.5, wait_seconds=10)
        assert find(await read(client), node).live


async def test_waiting_ends_at_once_when_the_holder_lives(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat during the wait is proof enough."""
    monkeypatch.setattr(node_claim, "CLAIM_POLL_SECONDS", 0.1)
    node = new_node()
    async with connected(server) as client:
        other = Holder(instance_id="other", host="elsewhere", pid=1)
        await put_foreign(client, node, other, NOW)
        waiting = asyncio.create_task(claim(client, node, wait_seconds=60))
        await asyncio.sleep(0.3)
        value = node_to_value(node, holder=other, heartbeat_at=NOW + timedelta(seconds=1))
        await variables.write_variable(client, node_variable_name(node.name), value)
        with pytest.raises(NodeNameTaken):
            await asyncio.wait_for(waiting, 10)


async def test_worker_that_lost_its_name_while_it_slept_is_told(server: PrefectServer) -> None:
    """Two workers never publish one node in turns."""
    node = new_node()
    async with connected(server) as client:
        token = await claim(client, node, worker_instance_id="sleeper")
        # Published as by a process that cannot be looked at from here.
        await put_away(client, node)
        other = Holder(instance_id="other", host="elsewhere", pid=1)
        await put_foreign(client, node, other, NOW)
        with pytest.raises(NodeNameTaken) as refused:
            await publish(client, node, claim=token, worker_instance_id="sleeper")
        assert "is dead" not in str(refused.value)
        await publish(client, node, claim=token, worker_instance_id="sleeper", stopped=True)
        registry = await read_registry(client, now=NOW, liveness_seconds=LIVENESS)
        record = next(it for it in registry.nodes if it.node.name == node.name)
        assert record.holder.instance_id == "other"
        assert record.node.live


async def test_variable_deleted_by_hand_comes_back_with_the_next_heartbeat(
    server: PrefectServer,
) -> None:
    """Whoever tidies up Variables takes no node away for good."""
    node = new_node()
    async with connected(server) as client:
        token = await claim(client, node)
        await put_away(client, node)
        again = await publish(client, node, claim=token)
        assert again not in (None, token)
        assert await publish(client, node, claim=again) == again
        assert find(await read(client), node) == node


async def put_away(client: PrefectClient, node: Node) -> None:
    await client.delete_variable_by_name(node_variable_name(node.name))
