"""Watches the attempts of workers that are away, and moves those that give no sign of life.

Every worker does so for all pools. What it remembers of an attempt (how long it has been silent)
is its own; that only one of them moves the run is kept by a lease.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.left_behind import (
    Left,
    LeftBehind,
    as_attempt,
    how_left,
    of_node,
    sleeps,
)
from prefect_heteroflow.attempts.orphans import go_on_after, planned_in, schedule_again
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.contact import (
    ENDS_WITH_ITS_WORKER,
    Absence,
    Answer,
    Contact,
    Ended,
    Lost,
    absence_of,
    look,
)
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.routing import OUR_WORKER_TYPES
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.heartbeats import last_heartbeat
from prefect_heteroflow.orchestration.history import read_attempts, read_many_attempts
from prefect_heteroflow.orchestration.leases import lease
from prefect_heteroflow.orchestration.run_pages import read_runs_under_way

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# Longer than settling an attempt takes while the API answers.
_LEASE_SECONDS = 120.0
# Looks come with `reconcile`, about every 15 s.
_LONGEST_PAUSE_SECONDS = 90.0
# What is known to be over is only looked at twice.
_STOPPED_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An attempt whose worker is away."""

    flow_run: FlowRun
    node: str
    left: LeftBehind
    written: tuple[Attempt, ...]
    """The rows as they were read."""
    absence: Absence

    @property
    def key(self) -> tuple[UUID, int]:
        """The attempt's name among all."""
        return self.flow_run.id, self.left.history[-1].attempt if self.left.history else 0


class LostContact:
    """What one worker knows of the attempts of others.

    Args:
        worker: Its client, settings and node are used.
        logger: For what is found.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()
        self._contacts: dict[tuple[UUID, int], Contact] = {}

    async def look(self) -> None:
        """Look once at each attempt whose worker is away, and settle those that are lost."""
        try:
            suspects = await self._find_suspects()
        except httpx.HTTPError:
            for key in self._contacts:
                self._judge(key, Answer.LINE_DOWN, None)
            raise
        known = {suspect.key for suspect in suspects}
        self._contacts = {key: it for key, it in self._contacts.items() if key in known}
        for suspect in suspects:
            what = f"Run '{suspect.flow_run.name}' of node {suspect.node}, which is away,"
            with self._guard.over(what, self._logger):
                try:
                    await self._look_at(suspect)
                except ObjectNotFound:
                    self._contacts.pop(suspect.key, None)

    async def _look_at(self, suspect: Suspect) -> None:
        beat = await last_heartbeat(self._worker.client, suspect.flow_run.id)
        judged = self._judge(suspect.key, Answer.SILENT, beat, is_over=suspect.absence.is_over)
        if isinstance(judged, Lost):
            self._contacts.pop(suspect.key, None)
            await self._settle(suspect, judged)
        elif not isinstance(judged, Ended) and judged.note:
            logger = self._worker.get_flow_run_logger(suspect.flow_run)
            what = suspect.absence.of_worker
            logger.warning("Worker of node %s %s. %s", suspect.node, what, judged.note)

    def _judge(
        self,
        key: tuple[UUID, int],
        answer: Answer,
        heartbeat: float | None,
        *,
        is_over: bool = False,
    ) -> Any:
        timeout = self._worker.heteroflow_settings.lost_contact_timeout
        after, judged = look(
            self._contacts.get(key, Contact()),
            answer,
            now=time.monotonic(),
            lost_contact_timeout=min(timeout, _STOPPED_TIMEOUT_SECONDS) if is_over else timeout,
            longest_pause=_LONGEST_PAUSE_SECONDS,
            heartbeat=heartbeat,
        )
        self._contacts[key] = after
        return judged

    async def _find_suspects(self) -> list[Suspect]:
        cluster = await self._worker.read_cluster(fresh=True)
        ours = {pool.name for pool in cluster.pools if pool.worker_type in OUR_WORKER_TYPES}
        pools = {place.pool for place in cluster.places if not place.live} & ours
        if not pools:
            return []
        runs = await read_runs_under_way(self._worker.client, sorted(pools))
        runs = [run for run in runs if run.id not in self._worker.lives]
        tasks = {transitions.task_id_of(run) for run in runs}
        histories = await read_many_attempts(self._worker.client, tasks)
        found = []
        for run in runs:
            if run.id not in self._worker.lives:
                history = histories.get(transitions.task_id_of(run), ())
                suspect = await self._suspect(run, history, cluster)
                if suspect is not None:
                    found.append(suspect)
        return found

    async def _suspect(
        self, run: FlowRun, history: tuple[Attempt, ...], cluster: Cluster
    ) -> Suspect | None:
        left, pool = how_left(run, history), str(run.work_pool_name)
        if left is None:
            return None
        # Where no row was written yet, the labels say where it was taken, and by whom.
        node = left.node or run.labels.get(transitions.NODE_LABEL)
        if node is not None:
            absence = absence_of(str(node), pool, cluster)
            if absence is None or (not absence.is_over and sleeps(run, utc_now())):
                return None
            return Suspect(
                flow_run=run, node=str(node), left=left, written=history, absence=absence
            )
        taker = run.labels.get("prefect.worker.name")
        if taker is None or not await self._is_offline(pool, str(taker)):
            return None
        place = next(it for it in cluster.places if it.pool == pool and not it.live)
        types = {it.name: it.worker_type for it in cluster.pools}
        is_over = place.stopped and types.get(pool) == ENDS_WITH_ITS_WORKER
        absence = Absence(is_over=is_over)
        return Suspect(flow_run=run, node=place.name, left=left, written=history, absence=absence)

    async def _is_offline(self, pool: str, worker_name: str) -> bool:
        workers = await self._worker.client.read_workers_for_work_pool(pool)
        named = [it for it in workers if it.name == worker_name]
        return bool(named) and all(it.status == "OFFLINE" for it in named)

    async def _settle(self, suspect: Suspect, lost: Lost) -> None:
        worker, run = self._worker, suspect.flow_run
        name = f"lost_{run.id.hex}_{suspect.key[1]}"
        async with lease(worker.client, name, seconds=_LEASE_SECONDS) as held:
            if not held:
                return
            now = await worker.client.read_flow_run(run.id)
            history = tuple(await read_attempts(worker.client, transitions.task_id_of(now)))
            if not transitions.has_stood_still(run, now) or history != suspect.written:
                return  # it lives, or somebody was faster
            self._logger.warning(
                "Run %s is lost with node %s: %s", run.id, suspect.node, lost.reason
            )
            await self._go_on_with(suspect, now, lost)

    async def _go_on_with(self, suspect: Suspect, run: FlowRun, lost: Lost) -> None:
        worker, left = self._worker, suspect.left
        if left.may_have_started:
            left = as_attempt(left, run)
        if left.what is Left.ATTEMPT:
            # How long this worker has looked says nothing about what ended long before.
            why = "Its processes ended with it." if suspect.absence.is_over else lost.reason
            reason = f"Node {suspect.node} {suspect.absence.of_node}. {why}"
            history = of_node(left, suspect.node)
            await worker.settle_lost(run, history, because=reason, is_elsewhere=True)
        elif left.what is Left.DECISION:
            await go_on_after(worker, transitions.task_id_of(run), run)
        else:
            message = f"Node {suspect.node} went away before the attempt was started."
            await schedule_again(worker, run, message, planned_in(left.history))
