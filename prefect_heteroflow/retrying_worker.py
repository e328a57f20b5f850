"""What both worker types share: a node of their own, and runs that are retried where they fit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import anyio
import anyio.abc
import anyio.to_thread
from prefect.client.schemas.objects import FlowRun
from prefect.workers.base import BaseWorkerResult
from pydantic import ValidationError

from prefect_heteroflow.attempts.backend import AttemptHandle, WorkerCannotStart, reason_in
from prefect_heteroflow.attempts.cordon_notice import CordonNotice
from prefect_heteroflow.attempts.giving_back import give_back_after
from prefect_heteroflow.attempts.gpu_shares import GpuShares
from prefect_heteroflow.attempts.in_place import run_what_follows
from prefect_heteroflow.attempts.kept_ends import KeptEnd, KeptEnds
from prefect_heteroflow.attempts.life import AttemptLife
from prefect_heteroflow.attempts.lives import Lives
from prefect_heteroflow.attempts.placement import Placements
from prefect_heteroflow.attempts.retry_cleanup import RetryCleanup
from prefect_heteroflow.attempts.start_checks import (
    check_pool_type,
    check_pool_type_of,
    rules_of_file,
)
from prefect_heteroflow.attempts.stopping import say_what_it_leaves
from prefect_heteroflow.attempts.upkeep import Upkeep
from prefect_heteroflow.attempts.worker_errors import close_after_error, text_of
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Resources
from prefect_heteroflow.core.routing import STARTS_CONTAINERS
from prefect_heteroflow.core.user_rules import UserRule
from prefect_heteroflow.infra.scratch import ScratchFolders
from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.node_presence import NodePresence
from prefect_heteroflow.orchestration.nodes import NodeNameTaken
from prefect_heteroflow.orchestration.wakeups import Wakeups
from prefect_heteroflow.prefect_hooks import PrefectHooks
from prefect_heteroflow.setting_names import unknown_settings
from prefect_heteroflow.settings import HeteroflowSettings, settings_problem

T = TypeVar("T")


class RetryingWorker(PrefectHooks):
    """Mixin for a Prefect worker that fills in `AttemptBackend` and `probe_node`."""

    containers: bool
    scratch_folders: ScratchFolders | None = None
    """Of tasks, where they outlast the attempts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self.heteroflow_settings = HeteroflowSettings()
        except ValidationError as error:
            raise SystemExit(f"The worker cannot run. {settings_problem(error)}") from None
        # Each attempt holds a thread while it runs; the default limiter, which all of Prefect
        # shares, knows no more than 250 of them.
        self._threads = anyio.CapacityLimiter(4096)
        self.file_rules: tuple[UserRule, ...] = ()
        self._presence: NodePresence | None = None
        self._gpu_shares = GpuShares()
        self.retry_cleanup = RetryCleanup(self._gpu_shares)
        self.kept_ends = KeptEnds(None, self._logger)
        self._wakeups = Wakeups(self.poll_out_of_turn, self._logger)
        self.lives = Lives(
            lambda: self._submitting_flow_run_ids,
            ask_pool=lambda: self._wakeups.wake_at(utc_now(), None),
        )
        self._placements: Placements | None = None
        self._upkeep: Upkeep | None = None

    # ---- what a worker type adds --------------------------------------------------------------

    async def probe_node(self) -> Node:
        """Look at this node.

        Raises:
            WorkerCannotStart: Nothing can run here.
        """
        raise NotImplementedError

    def check_configuration(self, configuration: RetryConfiguration) -> None:
        """Refuse what only this worker type can judge (an image reference, for example).

        Raises:
            JobValueError: A value cannot be used.
        """

    def attempt_result(self, identifier: str) -> BaseWorkerResult:
        """The result that core takes as "handled"."""
        raise NotImplementedError

    async def end_left_attempt(self, flow_run_id: UUID) -> None:
        """Make sure that nothing of that run's attempt runs on this node any more."""

    async def end_all_left(self) -> None:
        """Called once, when the node's name is ours: end what nobody can watch again."""

    async def end_with_worker(self, handles: Sequence[AttemptHandle]) -> None:
        """Called when the worker has stopped: remove what nobody needs of what still ran."""

    async def find_left_attempts(self) -> Sequence[tuple[AttemptHandle, RetryConfiguration]]:
        """Attempts that an earlier process of this worker has started and that are still here."""
        return ()

    # ---- Prefect's interface -------------------------------------------------------------------

    async def start(
        self,
        run_once: bool = False,
        with_healthcheck: bool = False,
        printer: Callable[..., None] = print,
    ) -> None:
        """Start as every worker does; what keeps it from starting is said in one sentence."""
        self.runs_once = run_once
        try:
            await super().start(run_once, with_healthcheck, printer)
        except Exception as error:
            reason = reason_in(error)
            if reason is None:
                raise
            raise SystemExit(f"The worker cannot run. {reason}") from None

    async def setup(self) -> None:
        """Probe the node, claim its name, then set up as every worker does."""
        for problem in unknown_settings():
            self._logger.warning("%s", problem)
        self.file_rules = rules_of_file(self.heteroflow_settings)
        await check_pool_type_of(self._work_pool_name, self.type)
        self._presence = NodePresence(
            await self.probe_node(),
            liveness_seconds=self.heteroflow_settings.node_liveness_seconds,
            client=lambda: self.client,
            logger=self._logger,
        )
        try:
            await self._presence.claim_name()
        except NodeNameTaken as error:
            raise WorkerCannotStart(str(error)) from error
        await self.end_all_left()
        await super().setup()
        assert self._runs_task_group is not None
        notice = CordonNotice(self._logger, self.get_flow_run_logger)
        self._placements = Placements(self.client, self.heteroflow_settings, notice)
        self._upkeep = Upkeep(self, self._wakeups, self._logger)
        self._runs_task_group.start_soon(self._upkeep.run)

    async def teardown(self, *exc_info: Any) -> None:
        """Stop what runs beside the attempts, then tear down as every worker does.

        With `--run-once` the attempts end first: others start again what a stopped worker leaves.
        """
        try:
            if self.runs_once and not any(exc_info):
                await self.lives.all_gone()
        except BaseException:
            exc_info = sys.exc_info()
            raise
        finally:
            if self._upkeep is not None:
                self._upkeep.stop()
            say_what_it_leaves(self.lives, self._logger, containers=self.containers)
            left = [life.handle for life in self.lives if life.handle is not None]
            if self._presence is not None and self._client is not None:
                await self._presence.sign_off()
            try:
                await super().teardown(*exc_info)
            finally:
                await self.end_with_worker(left)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: Any,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> Any:
        """Run one attempt and act on its end; the status code is always 0, "handled"."""
        life = AttemptLife(self, flow_run, configuration)
        self.lives.add(life)
        if self.lives.was_cancelled_early(flow_run.id):
            await life.request_cancel()
        try:
            identifier = await life.run(task_status or anyio.TASK_STATUS_IGNORED)
            await run_what_follows(self, life, self._logger)
        except Exception as error:
            newest = self.lives.of(flow_run.id) or life
            if await give_back_after(error, self, newest):
                return self.attempt_result("")
            # Core would only log it, and the run would stay `Running` for ever.
            await self._crash(newest, error)
            raise
        finally:
            self._forget(flow_run.id)
        return self.attempt_result(identifier)

    async def _crash(self, life: AttemptLife, error: Exception) -> None:
        message = (
            f"The worker failed while it looked after attempt {life.attempt}: {text_of(error)}"
        )
        await close_after_error(self, life, message)
        await self._propose_crashed_state(life.flow_run, message)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # A worker that stops does not wait for its attempts: the next one finds them.
        return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)

    # ---- for the lives of attempts --------------------------------------------------------------

    @property
    def node(self) -> Node:
        """This node as it was probed."""
        return self._known_presence.node

    @property
    def is_set_up(self) -> bool:
        """The pool is known; before that nothing can be done for its runs."""
        return self._work_pool is not None

    @property
    def _known_presence(self) -> NodePresence:
        if self._presence is None:
            raise RuntimeError("The worker has not been set up.")
        return self._presence

    async def read_cluster(self, *, fresh: bool = False) -> Cluster:
        """All known nodes and pools (see `NodePresence.read_cluster`)."""
        return await self._known_presence.read_cluster(fresh=fresh)

    @property
    def pools_looked_after(self) -> tuple[str, ...]:
        """This worker's pool, and those in which earlier workers of its node were."""
        return (self.node.pool, *self.node.former_pools)

    async def is_looked_after(self, node_name: str | None, pool: str | None) -> bool:
        """Whether a live worker looks after what that node runs, or ran, for a pool."""
        return await self._known_presence.looks_after(node_name, pool)

    def starts_containers(self, flow_run: FlowRun) -> bool | None:
        """Whether attempts of that run need containers; `None` if nobody knows."""
        pool = flow_run.work_pool_name
        if pool in (None, self.work_pool.name):
            return self.containers
        return STARTS_CONTAINERS.get(self._known_presence.worker_type_of(pool) or "")

    async def configuration_for(self, flow_run: FlowRun) -> RetryConfiguration:
        """What core would give to `run` for that run, read anew; the run may be of any pool."""
        kind: type[RetryConfiguration] = self.job_configuration
        work_pool = self.work_pool
        if flow_run.work_pool_name not in (None, work_pool.name):
            work_pool = await self.client.read_work_pool(flow_run.work_pool_name)
            if work_pool.type != self.type:
                kind = RetryConfiguration
        return await kind.resolve_for_flow_run(
            flow_run,
            client=self.client,
            work_pool=work_pool,
            worker_name=self.name,
            worker_id=self.backend_id,
        )

    def holds_slot(self, flow_run_id: UUID) -> bool:
        """Whether that run has one of the worker's own slots (`--limit`), if there is a limit.

        An attempt that was left by an earlier process may have none.
        """
        limiter = self._limiter
        return limiter is None or flow_run_id in limiter.statistics().borrowers

    def take_gpus(self, owner: str, resources: Resources) -> tuple[Gpu, ...]:
        """GPUs of this node for one attempt: the least used ones that are large enough."""
        return self._gpu_shares.take(owner, self.node.gpus, resources)

    def wake_at(self, due: datetime, flow_run_id: UUID) -> None:
        """Poll when that run is due."""
        self._wakeups.wake_at(due, flow_run_id)

    @property
    def back_since(self) -> datetime | None:
        """See `NodePresence.back_since`."""
        return self._known_presence.back_since

    def _forget(self, flow_run_id: UUID) -> None:
        self._gpu_shares.give_back(str(flow_run_id))
        self.lives.forget(flow_run_id)

    # ---- beside the attempts ---------------------------------------------------------------------

    @property
    def raw_file_rules(self) -> tuple[dict[str, object], ...]:
        """The rules of the file in the form of `retry_on`, for the engine entry."""
        return tuple(rule.as_mapping() for rule in self.file_rules)

    async def publish(self) -> None:
        """Probe the node and say that it is alive.

        Raises:
            WorkerCannotStart: Another worker has taken its name over, or the pool is for workers
                of another type.
        """
        if self._work_pool is not None:
            check_pool_type(self._work_pool, self.type)
        try:
            await self._known_presence.publish(await self.probe_node(), self._work_pool)
        except NodeNameTaken as error:
            raise WorkerCannotStart(str(error)) from error

    def cancel_soon(self, flow_run_id: UUID) -> None:
        """Cancel a run; ending its process takes a grace time, which nobody waits for."""
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._cancel_run, flow_run_id)

    def end_soon(self, life: AttemptLife) -> None:
        """End what runs of an attempt; nobody waits for its grace time."""
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._end, life)

    async def _end(self, life: AttemptLife) -> None:
        try:
            await life.end()
        except Exception as error:
            # It runs in the worker's own task group: an error would end the worker.
            self._logger.warning(
                "Attempt %d of run %s could not be ended yet: %s",
                life.attempt,
                life.flow_run.id,
                error,
            )

    async def adopt(self, handle: AttemptHandle, configuration: RetryConfiguration) -> None:
        """Watch an attempt again that an earlier process of this worker has started."""
        flow_run = handle.plan.flow_run
        known = self.lives.of(flow_run.id)
        if known is None:
            life = AttemptLife(self, flow_run, configuration)
            self.lives.add(life)
            if self._limiter is not None:
                # It takes one of the slots if one is free; it runs in any case.
                with contextlib.suppress(anyio.WouldBlock, RuntimeError):
                    self._limiter.acquire_on_behalf_of_nowait(flow_run.id)
            assert self._runs_task_group is not None
            self._runs_task_group.start_soon(self._resume, life, handle)
        elif known.attempt != handle.plan.attempt:
            await self.discard_attempt(handle)

    async def settle_lost(
        self,
        flow_run: FlowRun,
        history: tuple[Attempt, ...],
        *,
        because: str | None = None,
        is_elsewhere: bool = False,
        kept: KeptEnd | None = None,
    ) -> None:
        """Settle an attempt whose process is gone, or whose node is, as a lost one.

        Args:
            flow_run: The attempt's run, of any pool.
            history: All attempts of the task, that one last.
            because: How it is known, if there is more to say than that.
            is_elsewhere: It was one of another node: here is nothing left of it.
            kept: Its end, if an earlier process of this worker saw it.
        """
        if not is_elsewhere:
            await self.end_left_attempt(flow_run.id)
        life = AttemptLife(self, flow_run, await self.configuration_for(flow_run))
        self.lives.add(life)
        try:
            await life.settle_lost(history, because, kept)
        except BaseException:
            self._forget(flow_run.id)
            raise
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._go_on_with, life)

    async def _resume(self, life: AttemptLife, handle: AttemptHandle) -> None:
        try:
            await self._resume_in_slot(life, handle)
        finally:
            if self.holds_slot(life.flow_run.id):
                self._release_limit_slot(life.flow_run.id)

    async def _resume_in_slot(self, life: AttemptLife, handle: AttemptHandle) -> None:
        try:
            await life.resume(handle)
        except Exception:
            self._logger.exception("Run %s could not be watched again.", life.flow_run.id)
            self._forget(life.flow_run.id)
        else:
            await self._go_on_with(life)

    async def _go_on_with(self, life: AttemptLife) -> None:
        flow_run = life.flow_run
        try:
            await run_what_follows(self, life, self._logger)
        except Exception as error:
            newest = self.lives.of(flow_run.id) or life
            if await give_back_after(error, self, newest):
                return
            self._logger.exception("Run %s could not go on.", flow_run.id)
            await self._crash(newest, error)
        finally:
            self._forget(flow_run.id)
