"""What is known of nodes and pools, kept in Prefect Variables.

Three kinds of Variables, each with one writer: `heteroflow_node_*` by the node's worker with each
heartbeat, `heteroflow_cordon_*` by whoever cordons it, `heteroflow_pool_*` by `heteroflow pool
tag`. So no heartbeat can overwrite what somebody else has just written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.schemas.actions import VariableUpdate
from prefect.logging import get_logger

from prefect_heteroflow.core.resources import Cluster, Node, Pool
from prefect_heteroflow.orchestration import clock
from prefect_heteroflow.orchestration.node_claim import (
    NodeNameTaken,
    claim_node_name,
    own_holder,
)
from prefect_heteroflow.orchestration.node_values import (
    CORDON_PREFIX,
    NODE_PREFIX,
    POOL_PREFIX,
    Cordon,
    NodeRecord,
    apply_cordon,
    cordon_to_value,
    cordon_variable_name,
    node_to_value,
    node_variable_name,
    parse_cordon_value,
    parse_node_value,
    parse_pool_value,
)
from prefect_heteroflow.orchestration.variables import (
    delete_variable,
    read_pages,
    read_variables,
    write_variable,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool

__all__ = [
    "NodeNameTaken",
    "Registry",
    "claim_node_name",
    "cordon_node",
    "forget_node",
    "publish_node",
    "read_cluster",
    "read_registry",
    "uncordon_node",
]

logger = get_logger("heteroflow.nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Everything that is published, at one moment."""

    nodes: tuple[NodeRecord, ...] = ()
    """By name; `live` and the cordon are filled in."""
    pools: tuple[Pool, ...] = ()
    """Every work pool of the server by name, with what is declared of it."""
    descriptions: Mapping[str, str | None]
    """Pool name -> description."""
    problems: tuple[str, ...] = ()
    """Values that could not be used, one sentence each."""

    @property
    def cluster(self) -> Cluster:
        """What routing needs of it."""
        return Cluster(nodes=tuple(record.node for record in self.nodes), pools=self.pools)


async def publish_node(
    client: PrefectClient,
    node: Node,
    *,
    worker_instance_id: str,
    heartbeat_at: datetime,
    stopped: bool = False,
    claim: UUID | None = None,
) -> UUID | None:
    """Publish the node with a heartbeat; one request unless its Variable is missing.

    The node's cordon fields are not written (see `cordon_node`).

    Args:
        client: A client in use.
        node: What to publish.
        worker_instance_id: Different for each start of a worker.
        heartbeat_at: The time, with a time zone.
        stopped: The worker ends: the node is not live from now on and its name is free.
        claim: The id from `claim_node_name`. With it, a worker that was silent for so long that
            another took over its name is told so; without it, the last writer wins.

    Returns:
        The claim to use next time; another one than before if the Variable had been deleted.

    Raises:
        NodeNameTaken: Another worker has taken over the name.
        httpx.HTTPError: The API failed; a heartbeat should be tried again later.
    """
    value = node_to_value(
        node, holder=own_holder(worker_instance_id), heartbeat_at=heartbeat_at, stopped=stopped
    )
    name = node_variable_name(node.name)
    if claim is None:
        await write_variable(client, name, value)
        return None
    body = VariableUpdate(value=value).model_dump(mode="json", exclude_unset=True)
    try:
        await clock.request(
            client, "PATCH", "/variables/{id}", path_params={"id": str(claim)}, json=body
        )
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 404:
            raise
    else:
        return claim
    if stopped:
        return None  # nothing to say goodbye to
    again = await claim_node_name(
        client,
        node,
        worker_instance_id=worker_instance_id,
        now=heartbeat_at,
        liveness_seconds=math.inf,
    )
    return again.id


async def cordon_node(
    client: PrefectClient,
    name: str,
    *,
    reason: str,
    at: datetime,
    gpu_uuid: str | None = None,
    keep: bool = False,
) -> None:
    """Keep a node, or one GPU of it, out of use until `uncordon_node`; survives its worker.

    With `keep`, what is cordoned already keeps its reason and time: the first fault is the one
    to look at, and a person's word stands above ours.

    Raises:
        httpx.HTTPError: The API failed.
    """
    cordon = await _read_cordon(client, name)
    known = cordon.reason is not None if gpu_uuid is None else gpu_uuid in cordon.gpus
    if keep and known:
        return
    if gpu_uuid is None:
        cordon = replace(cordon, reason=reason)
    else:
        cordon = replace(cordon, gpus={**cordon.gpus, gpu_uuid: reason})
    await write_variable(client, cordon_variable_name(name), cordon_to_value(cordon, at=at))


async def _read_cordon(client: PrefectClient, name: str) -> Cordon:
    variable = await client.read_variable_by_name(cordon_variable_name(name))
    if variable is not None:
        try:
            return parse_cordon_value(variable.value)
        except ValueError as error:
            logger.warning("The Variable %s is replaced: %s.", variable.name, error)
    return Cordon(name=name, gpus={})


async def uncordon_node(client: PrefectClient, name: str) -> bool:
    """Let a node and all its GPUs be used again; False if nothing was cordoned."""
    return await delete_variable(client, cordon_variable_name(name))


async def forget_node(client: PrefectClient, name: str) -> bool:
    """Remove what was published of a node, and its cordon; true if it was cordoned.

    A worker that lives all the same publishes its node anew with its next heartbeat.

    Raises:
        httpx.HTTPError: The API failed.
    """
    # The cordon last: a node that is still there must not come into use when this breaks off.
    await delete_variable(client, node_variable_name(name))
    return await uncordon_node(client, name)


async def read_cluster(
    client: PrefectClient, *, now: datetime | None = None, liveness_seconds: float
) -> Cluster:
    """All nodes and pools, in two requests (more for each further page).

    Values that cannot be used are logged as warnings and left out.

    Args:
        client: A client in use.
        now: The time, with a time zone; by default the server's when it has answered.
        liveness_seconds: A node with an older heartbeat is not `live`.

    Raises:
        httpx.HTTPError: The API failed.
    """
    registry = await read_registry(client, now=now, liveness_seconds=liveness_seconds)
    for problem in registry.problems:
        logger.warning("%s", problem)
    return registry.cluster


async def read_registry(
    client: PrefectClient, *, now: datetime | None = None, liveness_seconds: float
) -> Registry:
    """`read_cluster` with all that a person wants to see: heartbeats, holders, problems.

    Raises:
        httpx.HTTPError: The API failed.
    """
    variables, work_pools = await asyncio.gather(
        read_variables(client), read_pages(client.read_work_pools)
    )
    # Not before: the answer tells by how much this machine's clock is wrong.
    now = now or clock.utc_now()
    return _registry(variables, work_pools, now=now, liveness_seconds=liveness_seconds)


def _registry(
    variables: Mapping[str, Any],
    work_pools: list[WorkPool],
    *,
    now: datetime,
    liveness_seconds: float,
) -> Registry:
    problems: list[str] = []

    def parse(prefix: str, parser: Callable[[object], Any]) -> list[Any]:
        found = []
        for name, value in variables.items():
            if name.startswith(prefix):
                try:
                    found.append(parser(value))
                except ValueError as error:
                    problems.append(f"The Variable {name} is left out: {error}.")
        return found

    cordons = {cordon.name: cordon for cordon in parse(CORDON_PREFIX, parse_cordon_value)}
    records = []
    for record in parse(NODE_PREFIX, parse_node_value):
        age = (now - record.heartbeat_at).total_seconds()
        live = not record.stopped and age <= liveness_seconds
        cordon = cordons.get(record.node.name)
        node = apply_cordon(record.node, cordon)
        records.append(
            replace(record, node=replace(node, live=live, stopped=record.stopped), cordon=cordon)
        )
    declared = {pool.name: pool for pool in parse(POOL_PREFIX, parse_pool_value)}
    pools = [
        replace(
            declared.pop(pool.name, Pool(name=pool.name)),
            worker_type=pool.type,
            paused=bool(pool.is_paused),
        )
        for pool in work_pools
    ]
    problems += [f"The tagged work pool {name!r} does not exist any more." for name in declared]
    return Registry(
        nodes=tuple(sorted(records, key=lambda record: str(record.node.name))),
        pools=tuple(sorted(pools, key=lambda pool: pool.name)),
        descriptions={pool.name: pool.description for pool in work_pools},
        problems=tuple(problems),
    )
