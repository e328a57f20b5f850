"""Why no worker has taken a run yet, or never will: what its pool and its nodes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_heteroflow.cli.nodes import age_text
from prefect_heteroflow.core.routing import OUR_WORKER_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from prefect.client.schemas.objects import FlowRun

    from prefect_heteroflow.orchestration.node_values import NodeRecord
    from prefect_heteroflow.orchestration.nodes import Registry

NOT_TAKEN = "No heteroflow worker has taken this run yet."
SHOWN_NODES = 10


def why_untaken(run: FlowRun, registry: Registry, *, now: datetime) -> list[str]:
    """What to say of a run without attempts, one sentence or two in each line.

    Args:
        run: The run.
        registry: Pools and nodes.
        now: The time, with a time zone.
    """
    ended = run.state is not None and run.state.is_final()
    runs = "ran" if ended else "runs"
    pool = run.work_pool_name
    if pool is None:
        return [
            f"It has no work pool: it {runs} where its flow was called or served, and no worker of"
            " ours looks after it."
        ]
    worker_type = next((it.worker_type for it in registry.pools if it.name == pool), None)
    if worker_type is not None and worker_type not in OUR_WORKER_TYPES:
        return [
            f"It {runs} in work pool {pool} of type {worker_type!r}: no worker of ours looks after"
            " it."
        ]
    if ended:
        return ["It ended before a heteroflow worker had taken it."]
    due = _due(run)
    if due is not None and due > now:
        return [NOT_TAKEN, f"It is due at {due.isoformat(timespec='seconds')}."]
    return [NOT_TAKEN, *obstacles(run, registry, now=now)]


def obstacles(run: FlowRun, registry: Registry, *, now: datetime) -> list[str]:
    """What keeps a run that is due from being taken in its pool, and how it goes on.

    Empty for a run that is not scheduled, or not due.
    """
    name, due = run.work_pool_name, _due(run)
    if name is None or due is None or due > now:
        return []
    pool = next((it for it in registry.pools if it.name == name), None)
    if pool is None:
        return [f"Its work pool {name} does not exist any more."]
    if pool.paused:
        return [f"Work pool {name} is paused: `prefect work-pool resume {name}` ends that."]
    nodes = [record for record in registry.nodes if record.node.pool == name]
    if not nodes:
        return [
            f"Pool {name} has no node: start a worker with `prefect worker start --pool {name}"
            f" --type {pool.worker_type}`."
        ]
    takers = [record.node.name for record in nodes if record.node.takes_runs]
    if takers:
        shown = ", ".join(takers[:SHOWN_NODES])
        return [f"Live in pool {name}: {shown}. A node takes it when it has room for it."]
    return [f"It waits: no node of pool {name} takes runs.", *_node_lines(nodes, now)]


def _due(run: FlowRun) -> datetime | None:
    if run.state is None or not run.state.is_scheduled():
        return None
    return run.state.state_details.scheduled_time


def _node_lines(nodes: Sequence[NodeRecord], now: datetime) -> list[str]:
    lines = [_node_line(record, now) for record in nodes[:SHOWN_NODES]]
    more = len(nodes) - SHOWN_NODES
    return [*lines, f"And {more} more: see `heteroflow nodes`."] if more > 0 else lines


def _node_line(record: NodeRecord, now: datetime) -> str:
    node = record.node
    told, ways = [], []
    if node.cordoned:
        told.append("cordoned" + (f" ({node.cordon_reason})" if node.cordon_reason else ""))
        ways.append(f"`heteroflow node uncordon {node.name}`")
    if not node.live:
        age = age_text((now - record.heartbeat_at).total_seconds())
        told.append(f"{'stopped' if node.stopped else 'away'} (last heard of {age})")
        ways.append("a worker that is started there")
    verb = "lets" if len(ways) == 1 else "let"
    return f"Node {node.name} is {' and '.join(told)}: {' and '.join(ways)} {verb} it start."
