"""Forgets nodes that do not come back: their Variables go, once nothing depends on them.

Only runs of nodes that are published are moved when their worker is away (see `lost_contact`), so
a node with such runs is kept until they are settled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.left_behind import how_left
from prefect_heteroflow.orchestration.history import read_many_attempts
from prefect_heteroflow.orchestration.nodes import forget_node, read_registry
from prefect_heteroflow.orchestration.run_pages import read_runs_under_way
from prefect_heteroflow.orchestration.transitions import task_id_of

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.orchestration.node_values import NodeRecord

_MOST_NAMES = 5
"""Of runs in one message."""


class NotForgotten(Exception):
    """Nothing was removed; the text says which node is still needed and what to do."""


async def forget_nodes(
    client: PrefectClient, names: Sequence[str], *, now: datetime, liveness_seconds: float
) -> dict[str, bool]:
    """Remove what is published of these nodes, and their cordons.

    All are checked before the first is removed.

    Args:
        client: A client in use.
        names: The nodes.
        now: The time, with a time zone.
        liveness_seconds: Age from which on a heartbeat counts for nothing.

    Returns:
        For each name whether the node was cordoned.

    Raises:
        NotForgotten: A name is unknown, a worker lives, or a run has to be moved first.
        httpx.HTTPError: The API failed.
    """
    registry = await read_registry(client, now=now, liveness_seconds=liveness_seconds)
    known = {record.node.name: record for record in registry.nodes}
    unknown = ", ".join(repr(name) for name in names if name not in known)
    if unknown:
        there = f"There are: {', '.join(known)}." if known else "There is none yet."
        raise NotForgotten(f"There is no node {unknown}. {there}")
    chosen = [known[name] for name in dict.fromkeys(names)]
    for record in chosen:
        if record.node.live:
            age = max((now - record.heartbeat_at).total_seconds(), 0) // 1
            raise NotForgotten(
                f"Node {record.node.name} is in use: its worker was heard of {age:.0f} s ago; stop"
                " it first."
            )
    for record in chosen:
        runs = await _runs_of(client, record)
        if runs:
            more = f" and {len(runs) - _MOST_NAMES} more" if len(runs) > _MOST_NAMES else ""
            raise NotForgotten(
                f"Node {record.node.name} has runs that are not settled yet:"
                f" {', '.join(run.name for run in runs[:_MOST_NAMES])}{more}. Another worker moves"
                " them after lost_contact_timeout; cancel them, or forget the node then."
            )
    return {record.node.name: await forget_node(client, record.node.name) for record in chosen}


async def _runs_of(client: PrefectClient, record: NodeRecord) -> list[FlowRun]:
    """Runs that the node's worker left half-way and that nobody has moved yet."""
    pools = (record.node.pool, *record.node.former_pools)
    runs = await read_runs_under_way(client, pools)
    if not runs:
        return []
    histories = await read_many_attempts(client, {task_id_of(run) for run in runs})
    offline = set()
    for pool in pools:
        with contextlib.suppress(ObjectNotFound):
            workers = await client.read_workers_for_work_pool(pool)
            offline |= {worker.name for worker in workers if worker.status == "OFFLINE"}
    found = []
    for run in runs:
        left = how_left(run, histories.get(task_id_of(run), ()))
        if left is None:
            continue
        # Where no row names the node yet, the worker's labels do.
        taker = run.labels.get("prefect.worker.name")
        if left.node == record.node.name or (left.node is None and taker in offline):
            found.append(run)
    return found
