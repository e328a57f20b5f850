"""Runs of this node that an earlier process of its worker left half-way.

Containers are found by their labels and watched again; this is for what has no container any
more, or never had one. The first look is when a worker starts, and others follow: a run whose
submission or whose watching broke off must not wait for the next start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort

from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.left_behind import (
    Left,
    LeftBehind,
    as_attempt,
    how_left,
    is_under_way,
    of_node,
)
from prefect_heteroflow.attempts.outcome import went_on
from prefect_heteroflow.attempts.rerouting import planned
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, ending_row
from prefect_heteroflow.core.contact import LOOKS, StoodStill, Whose, seen_again, whose
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.approval import AWAITING_APPROVAL
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, read_many_attempts
from prefect_heteroflow.orchestration.run_pages import read_all_runs, read_runs_under_way

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

LOOK_SECONDS = 15.0
"""Between two looks, about."""
_LOOKS_APART_SECONDS = 10.0
_SAID_BY_FLOWS = [StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED]
_ENDED_LATELY = timedelta(days=3)
"""Longer than a worker is usually away."""


class Orphans:
    """What one worker knows of the runs that it should be looking after.

    Those of its pool, and of the pools in which earlier workers of its node were.
    """

    def __init__(self, worker: RetryingWorker) -> None:
        self._worker = worker
        self._guard = Guard()
        self._seen: dict[UUID, StoodStill] | None = None
        """Runs that nobody looked after at the last look."""
        self._since = utc_now()

    async def look(self) -> None:
        """Settle each run that this node was running and of which nothing is left.

        What a row of this node says is acted on at the first look. What only the state and the
        labels say must have stood still from one look to the next: a run that was just taken looks
        the same.
        """
        worker, before = self._worker, self._seen
        now: dict[UUID, StoodStill] = {}
        self._seen = {}  # after an outage of the API nothing counts as having stood still
        # A flow may wait in a pause (`pause_flow_run`); what is parked has no process.
        parked = (transitions.ESCALATED, AWAITING_APPROVAL, "Suspended")
        runs = await read_runs_under_way(
            worker.client,
            worker.pools_looked_after,
            all_own_retries=before is None,
            but_for=parked,
        )
        for run in await self._but_for_those_of_others(runs):
            if worker.lives.is_busy_with(run.id) or run.state is None:
                continue
            now[run.id] = seen = seen_again(
                (before or {}).get(run.id),
                run.state.id,
                now=time.monotonic(),
                apart_seconds=_LOOKS_APART_SECONDS,
            )
            with self._guard.over(f"Run '{run.name}'", worker.get_flow_run_logger(run)):
                await self._look_at(run, is_first=before is None, looks=seen.looks)
        if before is None:
            await self._close_rows_of_ended()
        self._seen = now

    async def _but_for_those_of_others(self, runs: Sequence[FlowRun]) -> list[FlowRun]:
        """Without the runs of former pools that other nodes have, or that nobody sees from here."""
        worker, own = self._worker, self._worker.node.pool
        former = [run for run in runs if run.work_pool_name != own]
        if not former:
            return list(runs)
        await worker.read_cluster()  # it tells the pools' types
        tasks = {transitions.task_id_of(run) for run in former}
        histories = await read_many_attempts(worker.client, tasks)
        others = set()
        for run in former:
            left = how_left(run, histories.get(transitions.task_id_of(run), ()))
            # A container outlasts its worker, and only who starts some itself finds it again.
            is_hidden = worker.starts_containers(run) is not False and not worker.containers
            if left is None or left.node not in (None, worker.node.name) or is_hidden:
                others.add(run.id)
        return [run for run in runs if run.id not in others]

    async def _close_rows_of_ended(self) -> None:
        """Flows that reported their own end while no worker was there to close their row."""
        worker = self._worker
        runs = {
            run.id: run
            for run in await read_all_runs(
                worker.client,
                flow_run_filter=FlowRunFilter(
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_SAID_BY_FLOWS)),
                    end_time=FlowRunFilterEndTime.model_validate(
                        {"after_": utc_now() - _ENDED_LATELY}
                    ),
                ),
                work_pool_filter=WorkPoolFilter(
                    name=WorkPoolFilterName(any_=list(worker.pools_looked_after))
                ),
                sort=FlowRunSort.END_TIME_DESC,
            )
        }
        tasks = {transitions.task_id_of(run) for run in runs.values()}
        for history in (await read_many_attempts(worker.client, tasks)).values():
            last = history[-1]
            if last.status is not AttemptStatus.RUNNING:
                continue
            run = runs.get(UUID(last.flow_run_id))
            if run is not None and last.node == worker.node.name:
                with self._guard.over(f"Run '{run.name}'", worker.get_flow_run_logger(run)):
                    await worker.settle_lost(run, history)

    async def _look_at(self, run: FlowRun, *, is_first: bool, looks: int) -> None:
        if not is_first and looks < LOOKS:
            return
        worker = self._worker
        task_id = transitions.task_id_of(run)
        left = how_left(run, await read_attempts(worker.client, task_id))
        if left is None or (left.node is None and looks < LOOKS):
            return
        owner = await self._whose(left, run, looks)
        if owner is Whose.ANOTHERS:
            return
        if left.may_have_started and not worker.starts_containers(run):
            left = as_attempt(
                left, run
            )  # a container would have been found again, a child never is
        if left.what is Left.ATTEMPT:
            if owner is Whose.OURS:
                history = of_node(left, worker.node.name)
                because = self._why_lost(run, history[-1])
            else:
                history = of_node(left, None)
                because = "The worker that had taken it gave no sign of life."
            await worker.settle_lost(run, history, because=because)
        elif left.what is Left.DECISION:
            await go_on_after(worker, task_id, run)
        else:
            message = "The worker ended before the attempt was started."
            await schedule_again(worker, run, message, planned_in(left.history))

    def _why_lost(self, run: FlowRun, row: Attempt) -> str | None:
        """Processes end with their worker; one that began before this worker did has done so."""
        worker, started = self._worker, row.started
        if (
            worker.starts_containers(run)
            or not started
            or datetime.fromisoformat(started) >= self._since
        ):
            return None
        return (
            f"The worker of node {worker.node.name} ended while the attempt ran, and its processes"
            " with it."
        )

    async def _whose(self, left: LeftBehind, run: FlowRun, looks: int) -> Whose:
        worker, taken_on = self._worker, run.labels.get(transitions.NODE_LABEL)
        silence = worker.heteroflow_settings.lost_contact_timeout
        is_told = left.node is not None or taken_on is not None
        # Where an earlier worker of this node was, it counts as one of that pool's.
        node = replace(worker.node, pool=str(run.work_pool_name))
        return whose(
            left.node,
            taken_on=taken_on,
            taker=run.labels.get("prefect.worker.name"),
            worker_name=worker.name,
            node=node,
            others=() if is_told else (await worker.read_cluster()).places,
            looks=looks,
            looks_of_silence=math.ceil(silence / LOOK_SECONDS),
        )


async def go_on_after(worker: RetryingWorker, task_id: UUID, run: FlowRun) -> None:
    """Do what was written down when an attempt ended, if its worker died before it was done."""
    state = run.state
    if state is None or not is_under_way(run):
        return
    history = await read_attempts(worker.client, task_id)
    last = history[-1] if history else None
    if last is None or _was_taken_up(state, history):
        return
    if last.status is AttemptStatus.SCHEDULED and last.pool == run.work_pool_name:
        await schedule_again(worker, run, "The worker ended after it had decided.", planned(last))
    elif last.status is AttemptStatus.SCHEDULED:
        # `reconcile` creates the planned attempt run of a front run that is parked.
        await transitions.escalate(worker.client, task_id, f"Goes on in pool {last.pool}.")
        if run.id != task_id:
            ended = transitions.ended_state(transitions.ATTEMPT_FAILED, "Goes on elsewhere.")
            await transitions.finish(worker.client, run.id, ended, force=True)
    elif row := ending_row(history):
        ended, is_well = transitions.end_by(row), row.status is AttemptStatus.COMPLETED
        await transitions.finish(worker.client, run.id, ended, force=not is_well)
        if run.id != task_id:
            await transitions.take_over(worker.client, task_id, ended)


def _was_taken_up(state: State[Any], history: Sequence[Attempt]) -> bool:
    """Another worker is about to start the attempt that was planned."""
    ended = next((row.ended for row in reversed(history) if row.ended), None)
    return went_on(state, since=ended, is_retry=False)


def planned_in(history: Sequence[Attempt]) -> dict[str, Any]:
    """Job variables of the attempt that is planned, if one is.

    The state that carried them went when a worker took the run.
    """
    last = history[-1] if history else None
    return planned(last) if last is not None and last.status is AttemptStatus.SCHEDULED else {}


async def schedule_again(
    worker: RetryingWorker, run: FlowRun, message: str, variables: dict[str, Any] | None = None
) -> None:
    """Give a run back to its pool, with further job variables if there are any."""
    now = utc_now()
    kept = {**transitions.job_variables_of(run), **(variables or {})}
    if await transitions.await_retry(
        worker.client, run, due=now, message=message, job_variables=kept
    ):
        worker.wake_at(now, run.id)
