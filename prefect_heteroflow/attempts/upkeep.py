"""What a worker does beside its attempts: heartbeats, events, and what others left half-way."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.abc
import httpx
from prefect.events import Event
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.backend import WorkerCannotStart
from prefect_heteroflow.attempts.cancelling import close_cancelled
from prefect_heteroflow.attempts.detached_runs import DetachedRuns
from prefect_heteroflow.attempts.given_up import GivenUp
from prefect_heteroflow.attempts.gpu_faults import watch_gpu_faults
from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.held import close_refused, release_held
from prefect_heteroflow.attempts.lost_contact import LostContact
from prefect_heteroflow.attempts.orphans import LOOK_SECONDS, Orphans
from prefect_heteroflow.attempts.reconcile import finish_cancelling, go_on_with_escalated
from prefect_heteroflow.attempts.retry_cleanup import remove_scratch_of_ended
from prefect_heteroflow.attempts.run_again import RunAgain
from prefect_heteroflow.attempts.stranded import Stranded
from prefect_heteroflow.attempts.unwanted_attempts import UnwantedAttempts
from prefect_heteroflow.attempts.unwanted_bodies import UnwantedBodies
from prefect_heteroflow.core.breaker import UNLIMITED
from prefect_heteroflow.orchestration import run_events, transitions
from prefect_heteroflow.orchestration.breaker_store import BreakerBusy
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.insisting import is_passing
from prefect_heteroflow.orchestration.leases import remove_left_leases
from prefect_heteroflow.orchestration.wakeups import Wakeups

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_HEARTBEAT_SECONDS = 15.0
_LEASES_SECONDS = 300.0
_ADOPT_SECONDS = 2.0


class Upkeep:
    """Runs beside the attempts of one worker, until it is stopped."""

    def __init__(self, worker: RetryingWorker, wakeups: Wakeups, logger: Any) -> None:
        self._worker = worker
        self._wakeups = wakeups
        self._logger = logger
        self._guard = Guard()
        self._lost_contact = LostContact(worker, logger)
        self._given_up = GivenUp(worker, logger)
        self._orphans = Orphans(worker)
        self._detached_runs = DetachedRuns(worker, logger)
        self._run_again = RunAgain(worker)
        self._stranded = Stranded(worker, logger)
        self._unwanted_attempts = UnwantedAttempts(worker, logger)
        self._unwanted_bodies = UnwantedBodies(worker, logger)
        self._has_adopted = False
        self._refused_seen_until: datetime | None = None
        self._scope = anyio.CancelScope()

    def stop(self) -> None:
        """End it; `run` returns."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until stopped.

        Raises:
            WorkerCannotStart: Another worker has taken this node's name.
        """
        with self._scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._wakeups.run)
                group.start_soon(run_events.listen, self._on_event, self._logger)
                group.start_soon(self._every, _HEARTBEAT_SECONDS, self._worker.publish)
                group.start_soon(self._every, LOOK_SECONDS, self._reconcile)
                group.start_soon(self._every, _LEASES_SECONDS, self._remove_left_leases)
                group.start_soon(self._adopt_left_attempts)
                group.start_soon(self._hear_xids)

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except httpx.HTTPError as error:
                does = "does not answer" if is_passing(error) else "refuses a request"
                self._logger.warning("The Prefect API %s: %s", does, error)
            except WorkerCannotStart:
                raise
            except Exception:
                self._logger.exception("A step beside the runs failed; it is tried again.")
            await anyio.sleep(seconds * (0.85 + 0.3 * random.random()))

    async def _reconcile(self) -> None:
        worker, guard = self._worker, self._guard
        if not worker.is_set_up:
            return
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "cancelled runs": partial(finish_cancelling, worker, guard),
            "attempts that run here": self._unwanted_attempts.look,
            "attempts on other pools": partial(go_on_with_escalated, worker, guard),
            "attempts that others have moved": self._given_up.look,
            "runs of nodes that are away": self._lost_contact.look,
            "bodies of tasks": self._unwanted_bodies.look,
            "runs that this node has left": partial(self._once_adopted, self._orphans.look),
            "runs that were started again by hand": partial(
                self._once_adopted, self._run_again.look
            ),
            "runs that wait for nodes": self._stranded.look,
            "runs that wait in no queue": self._detached_runs.look,
            "runs that wait for approval": self._release_held,
            "runs that were cancelled while they waited": self._close_refused,
            "scratch folders": partial(remove_scratch_of_ended, worker, self._logger),
        }
        for what, step in steps.items():
            with guard.over(f"The look at {what}", self._logger):
                await step()

    async def _once_adopted(self, look: Callable[[], Awaitable[None]]) -> None:
        if self._has_adopted:
            await look()

    async def _remove_left_leases(self) -> None:
        if self._worker.is_set_up:
            await remove_left_leases(self._worker.client)

    async def _release_held(self) -> None:
        """Runs that wait for approval go on when their breaker lets them."""
        client, policy = self._worker.client, self._worker.heteroflow_settings.breaker_policy
        pool = self._worker.node.pool if policy.max_restarts == UNLIMITED else None
        try:
            await release_held(client, policy=policy, now=utc_now(), pool=pool, guard=self._guard)
        except BreakerBusy as error:
            self._logger.debug("%s", error)

    async def _close_refused(self) -> None:
        now = utc_now()
        try:
            await close_refused(
                self._worker.client,
                now=now,
                seen_until=self._refused_seen_until,
                guard=self._guard,
            )
            self._refused_seen_until = now
        except BreakerBusy as error:
            self._logger.debug("%s", error)

    async def _on_event(self, event: Event) -> None:
        worker = self._worker
        flow_run_id = run_events.flow_run_id_of(event)
        if flow_run_id is None or not worker.is_set_up:
            return
        if event.event in run_events.DUE:
            if worker.lives.asked_for(flow_run_id):
                await self._run_again.look_at(flow_run_id)
            elif run_events.concerns_pool(event, worker.work_pool.id):
                # The state may lie in the future; the poll finds only what is due.
                self._wakeups.wake_at(utc_now() + timedelta(milliseconds=20), None)
        elif event.event == run_events.AWAITING_END:
            await self._run_again.look_at(flow_run_id)
        elif event.event == run_events.CANCELLING:
            worker.cancel_soon(flow_run_id)
        elif event.event == run_events.CANCELLED:
            await self._cancel_front_of(flow_run_id)

    async def _cancel_front_of(self, flow_run_id: UUID) -> None:
        """An attempt run that was cancelled before it started ends its front run."""
        client = self._worker.client
        run = await client.read_flow_run(flow_run_id)
        if transitions.is_attempt_run(run) and run.id not in self._worker.lives:
            said = run.state.message if run.state is not None else None
            where = "" if run.work_pool_name is None else f" on pool {run.work_pool_name}"
            how = f"was cancelled: {said}" if said else "was cancelled by a user."
            with suppress(ObjectNotFound):  # the front run was deleted
                await close_cancelled(
                    client, transitions.task_id_of(run), f"Its attempt{where} {how}"
                )

    async def _hear_xids(self) -> None:
        node = self._worker.node
        await watch_gpu_faults(
            self._worker.client, node.name, has_gpus=bool(node.gpus), logger=self._logger
        )

    async def _adopt_left_attempts(self) -> None:
        """Once: attempts of an earlier process of this worker."""
        while True:
            try:
                if self._worker.is_set_up:
                    await self._worker.kept_ends.settle_all(self._worker)
                    for handle, configuration in await self._worker.find_left_attempts():
                        await self._worker.adopt(handle, configuration)
                    await self._orphans.look()
                    self._has_adopted = True
                    return
            except Exception as error:
                self._logger.warning("Left attempts cannot be looked for yet: %s", error)
            await anyio.sleep(_ADOPT_SECONDS)
