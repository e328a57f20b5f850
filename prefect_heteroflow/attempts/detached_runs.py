"""Retries that wait in no work queue: a person has deleted it, or its pool.

No worker is ever given such a run, and the API knows no way to put it into a queue again. So its
attempt gets a run of its own, in the pool's default queue or in another pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from prefect_heteroflow.attempts.guard import CannotYet, Guard
from prefect_heteroflow.attempts.next_attempt import next_row_like
from prefect_heteroflow.attempts.rerouting import elsewhere, end_unplaced, pool_exists
from prefect_heteroflow.attempts.restarts import note_resumed
from prefect_heteroflow.attempts.run_again import ENDED_FOR_NEXT
from prefect_heteroflow.attempts.stranded import move_planned
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, read_many_attempts
from prefect_heteroflow.orchestration.leases import lease
from prefect_heteroflow.orchestration.run_pages import read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_LEASE_SECONDS = 60.0
# A worker whose pool was deleted creates it again within that time.
_LATE = timedelta(seconds=30)


class DetachedRuns:
    """Finds them and lets them go on, or ends them.

    Args:
        worker: Its client and settings are used.
        logger: For what is moved.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()

    async def look(self) -> None:
        """See to each overdue retry that no queue holds.

        Raises:
            httpx.HTTPError: The API failed.
        """
        client = self._worker.client
        runs = [run for run in await self._overdue() if run.work_queue_id is None]
        tasks = {transitions.task_id_of(run) for run in runs}
        histories = await read_many_attempts(client, tasks)
        for run in runs:
            history = histories.get(transitions.task_id_of(run))
            # Others than ours: flows that are served without a pool, for example.
            if history is None or _planned(history) is None:
                continue
            logger = self._worker.get_flow_run_logger(run)
            with self._guard.over(f"Run '{run.name}', which waits in no queue,", logger):
                await self._look_at(run, history)

    async def _overdue(self) -> list[FlowRun]:
        return await read_all_runs(
            self._worker.client,
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(
                    type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]),
                    name=FlowRunFilterStateName(not_any_=list(transitions.NEVER_PLANNED)),
                ),
                next_scheduled_start_time=FlowRunFilterNextScheduledStartTime.model_validate(
                    {"before_": utc_now() - _LATE}
                ),
            ),
        )

    async def _look_at(self, run: FlowRun, history: Sequence[Attempt]) -> None:
        client, task_id = self._worker.client, transitions.task_id_of(run)
        async with lease(client, f"detached_{run.id.hex}", seconds=_LEASE_SECONDS) as held:
            if not held:
                return
            now = await client.read_flow_run(run.id)
            rows = await read_attempts(client, task_id)
            planned = _planned(rows)
            if transitions.has_stood_still(run, now) and rows == list(history) and planned:
                await self._go_on(now, planned)

    async def _go_on(self, run: FlowRun, row: Attempt) -> None:
        worker, client = self._worker, self._worker.client
        await note_resumed(worker, run)
        placement = transitions.job_variables_of(run).get("placement")
        if row.pool is not None and await pool_exists(client, row.pool):
            reason = (
                f"The work queue in which the run waited was deleted: attempt {row.attempt} goes on"
                f" in the default queue of pool {row.pool}."
            )
            self._logger.warning("Run %s: %s", run.id, reason)
            await move_planned(worker, run, row, row.pool, reason, placement=placement)
            return
        cluster = await worker.read_cluster(fresh=True)
        found = await elsewhere(worker, run, row, cluster, pool=None)
        if found is not None:
            reason = (
                f"Pool {row.pool}, in which the run waited, was deleted: next on {found.node} of"
                f" pool {found.pool} ({found.reason})."
            )
            self._logger.warning("Run %s: %s", run.id, reason)
            await move_planned(worker, run, row, found.pool, reason)
            return
        limit = worker.heteroflow_settings.lost_contact_timeout
        if utc_now() - _due(run) < timedelta(seconds=limit):
            raise CannotYet(
                f"Pool {row.pool}, in which the run waited, was deleted, and the run can go nowhere"
                f" else. It ends unless the pool, or another place, is there within {limit:.0f} s."
            )
        front = await client.read_flow_run(transitions.task_id_of(run))
        reason = await end_unplaced(client, front, row, str(row.pool))
        if run.id != front.id:
            ended = transitions.ended_state(transitions.ATTEMPT_FAILED, reason)
            await transitions.finish(client, run.id, ended, force=True)


def _planned(history: Sequence[Attempt]) -> Attempt | None:
    """The row of the attempt that the run waits for.

    No row plans the one that follows an attempt which was ended because its run was started again.
    """
    last = history[-1]
    if last.status is AttemptStatus.CANCELLED and last.decision in ENDED_FOR_NEXT:
        return next_row_like(last)
    return last if last.status is AttemptStatus.SCHEDULED else None


def _due(run: FlowRun) -> datetime:
    due = None if run.state is None else run.state.state_details.scheduled_time
    return utc_now() if due is None else due
