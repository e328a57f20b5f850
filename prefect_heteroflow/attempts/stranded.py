"""Planned attempts that wait for nodes which are gone or cordoned since they were chosen.

All nodes of their pool are, or the only one that fits, while smaller ones go on. A run that never
had an attempt waits where its user has sent it, as any run of Prefect does. One that we have
planned somewhere is ours to move on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType

from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.next_attempt import never_started_row
from prefect_heteroflow.attempts.reconcile import create_planned, number_of
from prefect_heteroflow.attempts.rerouting import elsewhere
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.routing import OUR_WORKER_TYPES, awaited_nodes
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_many_attempts, write_attempts
from prefect_heteroflow.orchestration.leases import lease
from prefect_heteroflow.orchestration.run_pages import read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

T = TypeVar("T")
_LEASE_SECONDS = 60.0


class _AwaySince(Generic[T]):
    """Since when things were always among those that are away, on this worker's clock."""

    def __init__(self) -> None:
        self._since: dict[T, float] = {}

    def for_longer_than(self, seconds: float, away: Iterable[T], now: float) -> set[T]:
        """Those of them that have been away for so long; all others are forgotten."""
        self._since = {each: self._since.get(each, now) for each in away}
        return {each for each, since in self._since.items() if now - since >= seconds}


class Stranded:
    """What one worker knows of pools and nodes that take no runs.

    Args:
        worker: Its client and settings are used.
        logger: For what is moved.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()
        self._pools = _AwaySince[str]()
        self._nodes = _AwaySince[tuple[str, str]]()

    async def look(self) -> None:
        """Move the planned attempts of what was away for `lost_contact_timeout`."""
        worker = self._worker
        cluster = await worker.read_cluster()
        now, timeout = time.monotonic(), worker.heteroflow_settings.lost_contact_timeout
        pools = self._pools.for_longer_than(timeout, _pools_away(cluster), now)
        nodes = self._nodes.for_longer_than(timeout, _nodes_away(cluster), now)
        waiting = await self._waiting_in(pools, timeout)
        waiting += [
            run
            for run in await self._waiting_in({pool for pool, _ in nodes}, timeout, planned=True)
            if nodes & _awaited_by(run)
        ]
        tasks = {transitions.task_id_of(run) for run in waiting}
        histories = await read_many_attempts(worker.client, tasks)
        for run in waiting:
            history = histories.get(transitions.task_id_of(run))
            if history is not None and history[-1].status is AttemptStatus.SCHEDULED:
                with self._guard.over(f"Run '{run.name}', which waits,", self._logger):
                    await self._look_at(run, history[-1], cluster)

    async def _waiting_in(
        self, pools: Collection[str], timeout: float, *, planned: bool = False
    ) -> list[FlowRun]:
        """Runs that are overdue by that time; those that no worker has planned only if wanted."""
        if not pools:
            return []
        never = list(transitions.NEVER_PLANNED) if planned else None
        before = utc_now() - timedelta(seconds=timeout)
        return await read_all_runs(
            self._worker.client,
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(
                    type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]),
                    name=FlowRunFilterStateName(not_any_=never),
                ),
                next_scheduled_start_time=FlowRunFilterNextScheduledStartTime.model_validate(
                    {"before_": before}
                ),
            ),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=list(pools))),
        )

    async def _look_at(self, run: FlowRun, last: Attempt, cluster: Cluster) -> None:
        client = self._worker.client
        found = await elsewhere(self._worker, run, last, cluster, pool=run.work_pool_name)
        if found is None:
            return
        async with lease(client, f"stranded_{run.id.hex}", seconds=_LEASE_SECONDS) as held:
            if not held:
                return
            now = await client.read_flow_run(run.id)
            if not transitions.has_stood_still(run, now):
                return  # its pool is back, or somebody was faster
            away, one = f"No node of pool {run.work_pool_name} took runs", "each"
            if run.work_pool_name not in cluster.pools_without_takers:
                away = f"The node of pool {run.work_pool_name} for which it waited took no runs"
                one = "it"
            reason = (
                f"{away} for {self._worker.heteroflow_settings.lost_contact_timeout:.0f} s,"
                f" {one} is cordoned or not heard of: next on {found.node} of pool {found.pool}"
                f" ({found.reason})."
            )
            self._logger.warning("Run %s: %s", run.id, reason)
            await move_planned(self._worker, now, last, found.pool, reason)


async def move_planned(
    worker: RetryingWorker,
    run: FlowRun,
    planned: Attempt,
    pool: str,
    reason: str,
    *,
    placement: dict[str, Any] | None = None,
) -> None:
    """Give a planned attempt a run of its own, in the place of the one that waits for it.

    Rows first: whoever comes after a worker that dies in between goes on from there.

    Args:
        worker: Its client is used.
        run: What waits: the front run, or an attempt run, which ends.
        planned: The row of the attempt.
        pool: Where it is to run.
        reason: For row and states.
        placement: Which nodes of the pool it may have, if it stays in its pool.

    Raises:
        httpx.HTTPError: The API failed.
    """
    client, task_id = worker.client, transitions.task_id_of(run)
    next_row = dataclasses.replace(planned, pool=pool, node=None, flow_run_id="")
    if run.id == task_id:
        await write_attempts(client, task_id, [next_row], summary=True)
        await transitions.escalate(client, task_id, reason)
        front = await client.read_flow_run(task_id)
        await create_planned(worker, front, placement=placement, why=reason)
        return
    number = number_of(run)
    if planned.attempt == number:
        never = never_started_row(planned, reason, flow_run_id=run.id, now=utc_now())
        next_row = dataclasses.replace(next_row, attempt=number + 1)
        await write_attempts(client, task_id, [never, next_row], summary=True)
    else:  # a retry of the attempt run in its own pool
        await write_attempts(client, task_id, [next_row], summary=True)
    ended = transitions.ended_state(transitions.ATTEMPT_FAILED, reason)
    await transitions.finish(client, run.id, ended, force=True)
    front = await client.read_flow_run(task_id)
    await create_planned(worker, front, newest=number, placement=placement, why=reason)


def _pools_away(cluster: Cluster) -> set[str]:
    """Pools of ours that have nodes, none of which takes runs; not paused ones."""
    return _ours(cluster) & cluster.pools_without_takers


def _nodes_away(cluster: Cluster) -> set[tuple[str, str]]:
    """Pool and name of nodes that take no runs there, beside others of the pool that do."""
    pools = _ours(cluster) - cluster.pools_without_takers
    return {
        (node.pool, node.name)
        for node in cluster.places
        if node.pool in pools and not node.takes_runs
    }


def _awaited_by(run: FlowRun) -> set[tuple[str, str]]:
    names = awaited_nodes(transitions.job_variables_of(run).get("placement"))
    return {(str(run.work_pool_name), name) for name in names}


def _ours(cluster: Cluster) -> set[str]:
    return {
        pool.name
        for pool in cluster.pools
        if pool.worker_type in OUR_WORKER_TYPES and not pool.paused
    }
