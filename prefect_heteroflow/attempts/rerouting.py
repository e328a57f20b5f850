"""Another place for a planned attempt that cannot start where it was planned."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.guard import CannotYet
from prefect_heteroflow.attempts.next_attempt import never_started_row
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.job_values import JobValueError
from prefect_heteroflow.core.policy import Ending, RetryStrategy
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.routing import Route, fits, route
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.leases import lease

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.retrying_worker import RetryingWorker

_LEASE_SECONDS = 60.0


def planned(row: Attempt) -> dict[str, Any]:
    """Job variables of the attempt that a row plans."""
    names = ("memory_mb", "shm_mb", "gpu_count", "gpu_memory_mb")
    return {name: getattr(row, name) for name in names if getattr(row, name) is not None}


async def pool_exists(client: PrefectClient, pool: str) -> bool:
    """Whether nobody has deleted that work pool.

    Raises:
        httpx.HTTPError: The API failed.
    """
    try:
        await client.read_work_pool(pool)
    except ObjectNotFound:
        return False
    return True


async def elsewhere(
    worker: RetryingWorker, run: FlowRun, row: Attempt, cluster: Cluster, *, pool: str | None
) -> Route | None:
    """A live node for a planned attempt outside of its pool, if the run's strategy lets it go.

    Args:
        worker: Its client and settings are used.
        run: The run that waits, or its front run.
        row: What is planned.
        cluster: The nodes and pools that are known.
        pool: Where it waits. A node of it that fits takes the run when it has room.
    """
    try:
        configuration = await worker.configuration_for(run)
        values = configuration.job_values(worker.heteroflow_settings)
    except JobValueError:
        return None  # whoever takes the run says so
    if values.policy.retry_strategy is not RetryStrategy.RETRY_NEW_NODE:
        return None
    wanted = dataclasses.replace(values.resources, **planned(row))
    containers = worker.starts_containers(run)
    if run.work_pool_name is None:
        # Its pool was deleted; the nodes are known for a while.
        kinds = [it.docker for it in cluster.nodes if it.pool == row.pool]
        containers = next((kind for kind in kinds if kind is not None), containers)
    cluster = _without_deleted(cluster)
    own = [node for node in cluster.nodes if node.pool == pool]
    if any(node.takes_runs and fits(wanted, node) for node in own):
        return None
    found = route(wanted, cluster, current_pool=None, containers=containers)
    if not isinstance(found, Route) or found.node is None:
        return None
    return found


async def replan(worker: RetryingWorker, front: FlowRun, row: Attempt) -> Attempt | None:
    """Plan an attempt elsewhere whose pool was deleted, or end its run if there is no place.

    It is waited for the pool, or a place, for `lost_contact_timeout`: workers create their pool
    again.

    Args:
        worker: Its client and settings are used.
        front: The front run, `Escalated`.
        row: The attempt that was planned.

    Returns:
        What is planned now; `None` if the run has ended, or another worker sees to it.

    Raises:
        CannotYet: It is still waited for.
        httpx.HTTPError: The API failed.
    """
    client = worker.client
    async with lease(client, f"replan_{front.id.hex}", seconds=_LEASE_SECONDS) as held:
        rows = await read_attempts(client, front.id) if held else []
        if not rows or rows[-1] != row:
            return None
        cluster = await worker.read_cluster(fresh=True)
        found = await elsewhere(worker, front, row, cluster, pool=None)
        if found is not None:
            worker.get_flow_run_logger(front).warning(
                "Work pool '%s', where attempt %d was planned, was deleted: next on %s of pool %s"
                " (%s).",
                row.pool,
                row.attempt,
                found.node,
                found.pool,
                found.reason,
            )
            moved = dataclasses.replace(row, pool=found.pool, node=None, flow_run_id="")
            await write_attempts(client, front.id, [moved], summary=True)
            return moved
        limit = worker.heteroflow_settings.lost_contact_timeout
        since = None if front.state is None else front.state.timestamp
        if since is not None and utc_now() - since < timedelta(seconds=limit):
            raise CannotYet(
                f"Work pool '{row.pool}', where attempt {row.attempt} was planned, was deleted, and"
                " the run can go nowhere else. It ends unless the pool, or another place, is there"
                f" within {limit:.0f} s."
            )
        await end_unplaced(client, front, row, str(row.pool))
        return None


async def end_unplaced(client: PrefectClient, front: FlowRun, row: Attempt, pool: str) -> str:
    """End a task whose planned attempt has no pool any more; gives the reason."""
    reason = (
        f"Attempt {row.attempt} was planned in pool {pool}, which was deleted, and there is no"
        " other place for it."
    )
    closed = never_started_row(
        row,
        reason,
        flow_run_id=front.id,
        now=utc_now(),
        ended_task=True,
        ending=Ending.FAILED,
    )
    await write_attempts(client, front.id, [closed], summary=True)
    await transitions.take_over(client, front.id, transitions.end_by(closed))
    return reason


def _without_deleted(cluster: Cluster) -> Cluster:
    """A node is known for a while after its pool was deleted."""
    pools = {pool.name for pool in cluster.pools}
    return dataclasses.replace(
        cluster, nodes=tuple(node for node in cluster.nodes if node.pool in pools)
    )
