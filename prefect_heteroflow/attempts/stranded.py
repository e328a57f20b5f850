"""Planned attempts that wait in a pool whose nodes are all gone or cordoned since it was chosen.

A run that never had an attempt waits where its user has sent it, as any run of Prefect does. One
that we have planned somewhere is ours to move on.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType

from prefect_heteroflow.attempts.lost_contact import OUR_WORKER_TYPES
from prefect_heteroflow.attempts.orphans import planned as planned_resources
from prefect_heteroflow.attempts.reconcile import create_planned, number_of
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.job_values import JobValueError
from prefect_heteroflow.core.policy import RetryStrategy
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.routing import Route, route
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_many_attempts, write_attempts
from prefect_heteroflow.orchestration.leases import lease
from prefect_heteroflow.orchestration.run_pages import read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_LEASE_SECONDS = 60.0


class Stranded:
    """What one worker knows of pools that have no live node.

    Args:
        worker: Its client and settings are used.
        logger: For what is moved.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._away_since: dict[str, float] = {}

    async def look(self) -> None:
        """Move the planned attempts of pools that were away for `lost_contact_timeout`."""
        worker = self._worker
        cluster = await worker.read_cluster()
        now = time.monotonic()
        away = _pools_away(cluster)
        self._away_since = {name: self._away_since.get(name, now) for name in away}
        timeout = worker.heteroflow_settings.lost_contact_timeout
        gone = [name for name, since in self._away_since.items() if now - since >= timeout]
        waiting = await self._waiting_in(gone, timeout) if gone else []
        tasks = {transitions.task_id_of(run) for run in waiting}
        histories = await read_many_attempts(worker.client, tasks)
        for run in waiting:
            history = histories.get(transitions.task_id_of(run))
            if history is not None and history[-1].status is AttemptStatus.SCHEDULED:
                await self._look_at(run, history[-1], cluster)

    async def _waiting_in(self, pools: list[str], timeout: float) -> list[FlowRun]:
        before = utc_now() - timedelta(seconds=timeout)
        return await read_all_runs(
            self._worker.client,
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
                next_scheduled_start_time=FlowRunFilterNextScheduledStartTime.model_validate(
                    {"before_": before}
                ),
            ),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=pools)),
        )

    async def _look_at(self, run: FlowRun, last: Attempt, cluster: Cluster) -> None:
        client = self._worker.client
        found = await self._route(run, last, cluster)
        if found is None:
            return
        async with lease(client, f"stranded_{run.id.hex}", seconds=_LEASE_SECONDS) as held:
            if not held:
                return
            now = await client.read_flow_run(run.id)
            if now.state is None or run.state is None or now.state.id != run.state.id:
                return  # its pool is back, or somebody was faster
            reason = (
                f"No node of pool {run.work_pool_name} took runs for"
                f" {self._worker.heteroflow_settings.lost_contact_timeout:.0f} s, each is cordoned"
                f" or not heard of:"
                f" next on {found.node} of pool {found.pool} ({found.reason})."
            )
            self._logger.warning("Run %s: %s", run.id, reason)
            await self._move(now, last, found.pool, reason)

    async def _route(self, run: FlowRun, row: Attempt, cluster: Cluster) -> Route | None:
        """To a live node elsewhere, if the run's strategy lets it go there."""
        worker = self._worker
        try:
            configuration = await worker.configuration_for(run)
            values = configuration.job_values(worker.heteroflow_settings)
        except JobValueError:
            return None  # whoever takes the run says so
        if values.policy.retry_strategy is not RetryStrategy.RETRY_NEW_NODE:
            return None
        found = route(
            dataclasses.replace(values.resources, **planned_resources(row)),
            cluster,
            current_pool=None,
            containers=worker.starts_containers(run),
        )
        if not isinstance(found, Route) or found.node is None:
            return None
        return found

    async def _move(self, run: FlowRun, planned: Attempt, pool: str, reason: str) -> None:
        """Rows first: whoever comes after a worker that dies in between goes on from there."""
        client, task_id = self._worker.client, transitions.task_id_of(run)
        next_row = dataclasses.replace(planned, pool=pool, node=None, flow_run_id="")
        if run.id == task_id:
            await write_attempts(client, task_id, [next_row], summary=True)
            await transitions.escalate(client, task_id, reason)
            front = await client.read_flow_run(task_id)
            await create_planned(self._worker, front)
            return
        number = number_of(run)
        if planned.attempt == number:
            never = dataclasses.replace(
                planned,
                flow_run_id=str(run.id),
                status=AttemptStatus.CANCELLED,
                decision=reason,
                ended=utc_now().isoformat(),
                never_started=True,
            )
            next_row = dataclasses.replace(next_row, attempt=number + 1)
            await write_attempts(client, task_id, [never, next_row], summary=True)
        ended = transitions.ended_state(transitions.ATTEMPT_FAILED, reason)
        await transitions.finish(client, run.id, ended, force=True)
        front = await client.read_flow_run(task_id)
        await create_planned(self._worker, front, newest=number)


def _pools_away(cluster: Cluster) -> set[str]:
    """Pools of ours that have nodes, none of which takes runs; not paused ones."""
    ours = {
        pool.name
        for pool in cluster.pools
        if pool.worker_type in OUR_WORKER_TYPES and not pool.paused
    }
    return ours & cluster.pools_without_takers
