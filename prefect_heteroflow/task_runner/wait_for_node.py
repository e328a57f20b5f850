"""Attempts that wait on another pool whose nodes are all gone or cordoned since it was chosen."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from prefect_heteroflow.core.resources import Cluster, Resources
from prefect_heteroflow.core.routing import fits

_LOOK_EVERY_SECONDS = 15.0
_SLOT_SECONDS = 30.0
"""Workers poll every 10 s: who waits longer though a node takes runs waits for a slot."""


class WaitForNode:
    """Looks at the nodes of a pool while an attempt waits there.

    Args:
        pool: Where it waits.
        read_cluster: The nodes as they are now; it may raise `httpx.HTTPError`.
        timeout_seconds: For how long no node may take runs, at least 0.
        resources: What the attempt needs.
        say: Told why the attempt waits, each reason once.
    """

    def __init__(
        self,
        pool: str,
        read_cluster: Callable[[], Cluster],
        *,
        timeout_seconds: float,
        resources: Resources,
        say: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._read_cluster = read_cluster
        self._timeout_seconds = timeout_seconds
        self._resources = resources
        self._say = say
        self._every_seconds = min(_LOOK_EVERY_SECONDS, timeout_seconds)
        self._looked: float | None = None
        self._waits_since = 0.0
        self._away_since: float | None = None
        self._said: set[str] = set()

    def is_in_vain(self, now: float) -> bool:
        """Whether no node of the pool took runs for the whole timeout.

        Args:
            now: Seconds of a clock that never goes back.
        """
        if self._looked is None:
            self._looked = self._waits_since = now  # it was chosen because it has a live node
        if now - self._looked < self._every_seconds:
            return False
        self._looked = now
        try:
            cluster = self._read_cluster()
        except httpx.HTTPError:
            return False  # nothing is known of the nodes
        has_nodes = any(node.pool == self._pool for node in cluster.places)
        if has_nodes and self._pool not in cluster.pools_without_takers:
            self._away_since = None
            if now - self._waits_since >= _SLOT_SECONDS:
                self._say_once(self._why_though_live(cluster))
            return False
        if self._away_since is None:
            self._away_since = now
        # A pool of declared size without a node yet may be waiting for somebody to start one.
        self._say_once(self._why_away(has_nodes))
        return has_nodes and now - self._away_since >= self._timeout_seconds

    def _say_once(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._say(f"it waits: {why}")

    def _why_away(self, has_nodes: bool) -> str:
        if not has_nodes:
            return f"pool {self._pool} has no worker yet"
        return (
            f"each node of pool {self._pool} is cordoned or not heard of; if none comes back, it is"
            f" given up after {self._timeout_seconds:.0f} s"
        )

    def _why_though_live(self, cluster: Cluster) -> str:
        pool = self._pool
        if any(known.name == pool and known.paused for known in cluster.pools):
            return f"pool {pool} is paused"
        takers = [
            node
            for node in cluster.nodes
            if node.pool == pool and node.live and not node.cordoned and fits(self._resources, node)
        ]
        if not takers:
            return f"no node of pool {pool} that takes runs now is large enough for it"
        names = ", ".join(sorted(node.name for node in takers))
        return (
            f"{names} of pool {pool} would fit and has not taken it: no slot is free there. A flow"
            " run holds its own slot while it waits for its tasks, so this one may be what it waits"
            " for: raise `--limit` of the worker, or the concurrency limit of the pool or its queue"
        )
