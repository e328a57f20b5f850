"""This node among the others: its name, its heartbeats, and what is known of all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import anyio
import httpx
from prefect.client.orchestration import get_client

from prefect_heteroflow.core.resources import Cluster, Node
from prefect_heteroflow.orchestration.clock import utc_now, warn_of_difference
from prefect_heteroflow.orchestration.nodes import (
    NodeNameTaken,
    claim_node_name,
    publish_node,
    read_cluster,
)
from prefect_heteroflow.orchestration.pool_tags import refresh_pool_line
from prefect_heteroflow.orchestration.variables import measure_clock

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool

_CLUSTER_SECONDS = 2.0
# A restarted worker whose old process died without a word waits so long for its old name.
_CLAIM_SECONDS = 20.0
_SIGN_OFF_SECONDS = 5.0


class NodePresence:
    """Publishes one node and reads the others.

    Args:
        node: The node as it was probed.
        liveness_seconds: Without a heartbeat for so long a node counts as gone.
        client: Gives the worker's client once it has one.
        logger: For an API that does not answer.
    """

    def __init__(
        self,
        node: Node,
        *,
        liveness_seconds: float,
        client: Callable[[], PrefectClient],
        logger: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.node = node
        self._liveness_seconds = liveness_seconds
        self._client = client
        self._logger = logger
        self._instance_id = str(uuid4())
        self._claim: UUID | None = None
        self._heard_at: datetime | None = None
        self.back_since: datetime | None = None
        """When it was last heard of again, after others had to take it for gone."""
        self._cluster: tuple[float, Cluster] | None = None

    async def claim_name(self) -> None:
        """Take the node's name, before the worker has set up its own client.

        Raises:
            NodeNameTaken: Another live worker has it.
        """
        try:
            async with get_client() as client:
                await measure_clock(client)
                warn_of_difference(self._logger)
                claimed = await claim_node_name(
                    client,
                    self.node,
                    worker_instance_id=self._instance_id,
                    now=utc_now(),
                    liveness_seconds=self._liveness_seconds,
                    wait_seconds=_CLAIM_SECONDS,
                )
                self.node, self._claim = claimed.node, claimed.id
        except httpx.HTTPError as error:
            self._logger.warning(
                "The Prefect API does not answer (%s); this node is published as soon as it does.",
                type(error).__name__,
            )

    async def publish(self, node: Node, pool: WorkPool | None) -> None:
        """Say that the node is alive, and refresh its pool's line.

        Raises:
            NodeNameTaken: Another worker has taken the name over.
        """
        self.node = replace(node, former_pools=self.node.former_pools)
        if self._claim is None:
            await self.claim_name()
        if self._claim is not None:
            await self._say_alive()
            warn_of_difference(self._logger)
            self._note_heard()
        if pool is not None:
            await refresh_pool_line(
                self._client(), node.pool, await self.read_cluster(), known=pool
            )

    def _note_heard(self) -> None:
        before, self._heard_at = self._heard_at, utc_now()
        if before is None:
            return
        # By the clock of the wall, as the others count: that of a machine at sleep stands still.
        if (self._heard_at - before).total_seconds() > self._liveness_seconds:
            self.back_since = self._heard_at

    async def sign_off(self) -> None:
        """Say that the node's worker stops; the API gets five seconds to take it."""
        if self._claim is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_SIGN_OFF_SECONDS):
            try:
                await self._say_alive(stopped=True)
            except (httpx.HTTPError, NodeNameTaken) as error:
                self._logger.debug("The node could not be signed off: %s", error)

    async def _say_alive(self, *, stopped: bool = False) -> None:
        self._claim = await publish_node(
            self._client(),
            self.node,
            worker_instance_id=self._instance_id,
            heartbeat_at=utc_now(),
            stopped=stopped,
            claim=self._claim,
        )

    async def read_cluster(self, *, fresh: bool = False) -> Cluster:
        """All known nodes and pools, at most two seconds old; this node is always among them.

        Args:
            fresh: Ask again: before a run is told that it fits nowhere.
        """
        now = time.monotonic()
        if not fresh and self._cluster is not None and now - self._cluster[0] < _CLUSTER_SECONDS:
            return self._cluster[1]
        try:
            cluster = await read_cluster(self._client(), liveness_seconds=self._liveness_seconds)
        except httpx.HTTPError as error:
            self._logger.warning("The nodes could not be read (%s); deciding with this one.", error)
            cluster = Cluster() if self._cluster is None else self._cluster[1]
        cluster = self._with_this_node(cluster)
        self._cluster = (now, cluster)
        return cluster

    def worker_type_of(self, pool: str) -> str | None:
        """Worker type of a pool, as far as the last read of the cluster told."""
        pools = () if self._cluster is None else self._cluster[1].pools
        return next((known.worker_type for known in pools if known.name == pool), None)

    def _with_this_node(self, cluster: Cluster) -> Cluster:
        # A busy API may not have taken our heartbeats for a while; we know that we are here.
        nodes = [
            replace(node, live=True) if node.name == self.node.name else node
            for node in cluster.nodes
        ]
        if not any(node.name == self.node.name for node in nodes):
            nodes.append(self.node)
        return Cluster(nodes=tuple(nodes), pools=cluster.pools)

    async def looks_after(self, node_name: str | None, pool: str | None) -> bool:
        """Whether a live worker looks after what that node runs, or ran, for a pool."""
        cluster = await self.read_cluster()
        return any(
            node.name == node_name and node.live and pool in (node.pool, *node.former_pools)
            for node in cluster.nodes
        )
