"""Attempts that wait on another pool whose nodes are all gone or cordoned since it was chosen."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from prefect_heteroflow.core.resources import Cluster

_LOOK_EVERY_SECONDS = 15.0


class WaitForNode:
    """Looks at the nodes of a pool while an attempt waits there.

    Args:
        pool: Where it waits.
        read_cluster: The nodes as they are now; it may raise `httpx.HTTPError`.
        timeout_seconds: For how long no node may take runs, at least 0.
        say: Told once, when the first look finds no node that takes runs, why the attempt waits.
    """

    def __init__(
        self,
        pool: str,
        read_cluster: Callable[[], Cluster],
        *,
        timeout_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._read_cluster = read_cluster
        self._timeout_seconds = timeout_seconds
        self._say = say
        self._every_seconds = min(_LOOK_EVERY_SECONDS, timeout_seconds)
        self._looked: float | None = None
        self._away_since: float | None = None
        self._has_said = False

    def is_in_vain(self, now: float) -> bool:
        """Whether no node of the pool took runs for the whole timeout.

        Args:
            now: Seconds of a clock that never goes back.
        """
        if self._looked is None:
            self._looked = now  # it was chosen because it has a live node
        if now - self._looked < self._every_seconds:
            return False
        self._looked = now
        try:
            cluster = self._read_cluster()
        except httpx.HTTPError:
            return False  # nothing is known of the nodes
        has_nodes = any(node.pool == self._pool for node in cluster.nodes)
        if has_nodes and self._pool not in cluster.pools_without_takers:
            self._away_since = None
            return False
        if self._away_since is None:
            self._away_since = now
        # A pool of declared size without a node yet may be waiting for somebody to start one.
        self._say_why(has_nodes)
        return has_nodes and now - self._away_since >= self._timeout_seconds

    def _say_why(self, has_nodes: bool) -> None:
        if self._has_said:
            return
        self._has_said = True
        if has_nodes:
            self._say(
                f"it waits: each node of pool {self._pool} is cordoned or not heard of; if none"
                f" comes back, it is given up after {self._timeout_seconds:.0f} s"
            )
        else:
            self._say(f"it waits: pool {self._pool} has no worker yet")
