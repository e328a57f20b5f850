"""What both worker types share: a node of their own, and runs that are retried where they fit."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

import anyio
import anyio.abc
import anyio.to_thread
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event
from prefect.states import AwaitingRetry
from prefect.workers.base import BaseWorkerResult

from prefect_heteroflow.attempts.backend import AttemptBackend, AttemptHandle
from prefect_heteroflow.attempts.cancelling import close_cancelled, handle_cancelling
from prefect_heteroflow.attempts.gpu_shares import GpuShares
from prefect_heteroflow.attempts.life import AttemptLife
from prefect_heteroflow.attempts.orphans import settle_orphans
from prefect_heteroflow.attempts.placement import Placements
from prefect_heteroflow.attempts.reconcile import reconcile
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Resources
from prefect_heteroflow.core.user_rules import UserRule
from prefect_heteroflow.infra.node_probe import parse_declared_gpus
from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.orchestration import run_events, transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.nodes import (
    NodeNameTaken,
    claim_node_name,
    publish_node,
    read_cluster,
)
from prefect_heteroflow.orchestration.pool_tags import refresh_pool_line
from prefect_heteroflow.orchestration.wakeups import Wakeups
from prefect_heteroflow.settings import HeteroflowSettings
from prefect_heteroflow.user_rules_file import load_user_rules

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.workers.base import BaseWorker

    class _Base(BaseWorker[Any, Any, Any], AttemptBackend):
        """What the mixin is mixed into."""
else:
    _Base = object

T = TypeVar("T")

_HEARTBEAT_SECONDS = 15.0
_RECONCILE_SECONDS = 15.0
_CLUSTER_SECONDS = 2.0
# A restarted worker whose old process died without a word waits so long for its old name.
_CLAIM_SECONDS = 20.0
_ADOPT_SECONDS = 2.0
# What core says when it could not submit a run, and how errors of the API look in it.
_NOT_SUBMITTED = "Failed to submit flow run to infrastructure:"
_PASSING = re.compile(
    r"Server error '5\d\d|'429 |ConnectError|ConnectTimeout|ReadTimeout|ReadError|PoolTimeout"
    r"|RemoteProtocolError|WriteError"
)
_SUBMIT_AGAIN_SECONDS = 5.0


class WorkerCannotStart(RuntimeError):
    """The node cannot run attempts; the text says what is missing and what to do."""


def _cannot_start(error: BaseException) -> WorkerCannotStart | None:
    """The reason in an error or in a group of errors from task groups."""
    if isinstance(error, WorkerCannotStart):
        return error
    for part in getattr(error, "exceptions", ()):
        found = _cannot_start(part)
        if found is not None:
            return found
    return None


class RetryingWorker(_Base):
    """Mixin for a Prefect worker that fills in `AttemptBackend` and `probe_node`."""

    containers: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heteroflow_settings = HeteroflowSettings()
        self._instance_id = str(uuid4())
        # Each attempt holds a thread while it runs; the default limiter, which all of Prefect
        # shares, knows no more than 250 of them.
        self._threads = anyio.CapacityLimiter(4096)
        self.file_rules: tuple[UserRule, ...] = ()
        self._node: Node | None = None
        self._lives: dict[UUID, AttemptLife] = {}
        self._gpu_shares = GpuShares()
        self._cluster: tuple[datetime, Cluster] | None = None
        self._wakeups = Wakeups(self.get_and_submit_flow_runs, self._logger)
        self._placements: Placements | None = None
        self._background = anyio.CancelScope()
        self._claim: UUID | None = None

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
        try:
            await super().start(run_once, with_healthcheck, printer)
        except Exception as error:
            reason = _cannot_start(error)
            if reason is None:
                raise
            raise SystemExit(f"The worker cannot run. {reason}") from None

    async def setup(self) -> None:
        """Probe the node, claim its name, then set up as every worker does."""
        self._read_rules_file()
        self._node = await self.probe_node()
        await self._claim_name()
        await super().setup()
        assert self._runs_task_group is not None
        self._placements = Placements(self.client, self.heteroflow_settings)
        self._background = anyio.CancelScope()
        self._runs_task_group.start_soon(self._run_background)

    async def teardown(self, *exc_info: Any) -> None:
        """Stop what runs beside the attempts, then tear down as every worker does."""
        self._background.cancel()
        if self._claim is not None and self._client is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                try:
                    await self._say_alive(stopped=True)
                except (httpx.HTTPError, WorkerCannotStart) as error:
                    self._logger.debug("The node could not be signed off: %s", error)
        await super().teardown(*exc_info)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: Any,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> Any:
        """Run one attempt and act on its end; the status code is always 0, "handled"."""
        life = AttemptLife(self, flow_run, configuration)
        self._lives[flow_run.id] = life
        try:
            identifier = await life.run(task_status or anyio.TASK_STATUS_IGNORED)
        except Exception as error:
            # Core would only log it, and the run would stay `Running` for ever.
            await self._propose_crashed_state(
                flow_run,
                f"The worker failed while it looked after attempt {life.attempt}:"
                f" {type(error).__name__}: {error}",
            )
            raise
        finally:
            self._forget(life)
        return self.attempt_result(identifier)

    async def _submit_scheduled_flow_runs(
        self, flow_run_response: list[WorkerFlowRunResponse]
    ) -> list[FlowRun]:
        # Core has no public hook between "the pool has these runs" and "this worker takes them".
        # Pinned by tests/surface/test_core_hooks.py.
        if flow_run_response and self._placements is not None:
            cluster = await self.read_cluster()
            # As it was published, and as somebody may have cordoned it since.
            node = next((n for n in cluster.nodes if n.name == self.node.name), self.node)
            flow_run_response = [
                entry
                for entry in flow_run_response
                if await self._is_for_this_node(node, entry.flow_run, cluster)
            ]
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def _is_for_this_node(self, node: Node, flow_run: FlowRun, cluster: Cluster) -> bool:
        assert self._placements is not None
        try:
            return await self._placements.is_for(
                node, flow_run, cluster, self.work_pool.base_job_template
            )
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            # Odd values of one run must not end the worker: whoever takes the run refuses them.
            self._logger.warning("Run %s cannot be placed: %r", flow_run.id, error)
            return True

    async def _propose_crashed_state(
        self, flow_run: FlowRun, message: str, client: PrefectClient | None = None
    ) -> None:
        # Core calls it for whatever keeps it from submitting a run. An API that is away for a
        # moment is no crash: nothing has run yet. Pinned by tests/surface/test_core_hooks.py.
        if message.startswith(_NOT_SUBMITTED) and _PASSING.search(message):
            due = utc_now() + timedelta(seconds=_SUBMIT_AGAIN_SECONDS)
            state: State[None] = AwaitingRetry(
                scheduled_time=due, message=f"{message} Nothing has run yet; it is tried again."
            )
            if await transitions.finish(client or self.client, flow_run.id, state):
                self.wake_at(due, flow_run.id)
                return
        await super()._propose_crashed_state(flow_run, message, client)

    async def _cancel_run(self, flow_run_id: UUID) -> None:
        # Core's own version ends only runs that never started; ours ends them all.
        # Pinned by tests/surface/test_core_hooks.py.
        try:
            await handle_cancelling(self, flow_run_id)
        except Exception as error:
            # It runs in the worker's own task group: an error would end the worker. The run stays
            # `Cancelling`, and `reconcile` comes back to it.
            self._logger.warning("Run %s could not be cancelled yet: %s", flow_run_id, error)

    def declared_gpus(self) -> tuple[int, ...] | None:
        """Memory of each GPU that the settings declare, MiB; `None` if they declare nothing.

        Raises:
            WorkerCannotStart: The declaration cannot be read.
        """
        text = self.heteroflow_settings.node_gpus
        try:
            return None if text is None else parse_declared_gpus(text)
        except ValueError as error:
            raise WorkerCannotStart(str(error)) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # A worker that stops does not wait for its attempts: the next one finds them.
        return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)

    # ---- for the lives of attempts --------------------------------------------------------------

    @property
    def node(self) -> Node:
        """This node as it was probed."""
        if self._node is None:
            raise RuntimeError("The worker has not been set up.")
        return self._node

    async def read_cluster(self, *, fresh: bool = False) -> Cluster:
        """All known nodes and pools, at most two seconds old; this node is always among them.

        Args:
            fresh: Ask again: before a run is told that it fits nowhere.
        """
        now = utc_now()
        if (
            not fresh
            and self._cluster is not None
            and (now - self._cluster[0]).total_seconds() < _CLUSTER_SECONDS
        ):
            return self._cluster[1]
        try:
            cluster = await read_cluster(
                self.client,
                now=now,
                liveness_seconds=self.heteroflow_settings.node_liveness_seconds,
            )
        except httpx.HTTPError as error:
            self._logger.warning("The nodes could not be read (%s); deciding with this one.", error)
            cluster = Cluster()
        if not any(node.name == self.node.name for node in cluster.nodes):
            cluster = Cluster(nodes=(*cluster.nodes, self.node), pools=cluster.pools)
        self._cluster = (now, cluster)
        return cluster

    async def is_live(self, node_name: str | None) -> bool:
        """Whether that node's worker was heard of lately."""
        cluster = await self.read_cluster()
        return any(node.name == node_name and node.live for node in cluster.nodes)

    def take_gpus(self, owner: str, resources: Resources) -> tuple[Gpu, ...]:
        """GPUs of this node for one attempt: the least used ones that are large enough."""
        return self._gpu_shares.take(owner, self.node.gpus, resources)

    def wake_at(self, due: datetime, flow_run_id: UUID) -> None:
        """Poll when that run is due."""
        self._wakeups.wake_at(due, flow_run_id)

    def has_life(self, flow_run_id: UUID) -> bool:
        """Whether that run's attempt runs here."""
        return flow_run_id in self._lives

    async def cancel_life(self, flow_run_id: UUID) -> bool:
        """Cancel the attempt of that run if it runs here."""
        life = self._lives.get(flow_run_id)
        if life is None or life.is_settled:
            return False
        await life.request_cancel()
        return True

    def _forget(self, life: AttemptLife) -> None:
        # The next attempt of the run may have begun while this one was cleaned up.
        flow_run_id = life.flow_run.id
        if self._lives.get(flow_run_id) is life:
            del self._lives[flow_run_id]
            self._gpu_shares.give_back(str(flow_run_id))

    # ---- beside the attempts ---------------------------------------------------------------------

    def _read_rules_file(self) -> None:
        path = self.heteroflow_settings.rules_file
        if path is None:
            return
        try:
            self.file_rules = load_user_rules(path)
        except ValueError as error:
            raise WorkerCannotStart(str(error)) from error

    @property
    def raw_file_rules(self) -> tuple[dict[str, object], ...]:
        """The rules of the file in the form of `retry_on`, for the engine entry."""
        return tuple(rule.as_mapping() for rule in self.file_rules)

    async def _claim_name(self) -> None:
        try:
            async with get_client() as client:
                self._claim = await claim_node_name(
                    client,
                    self.node,
                    worker_instance_id=self._instance_id,
                    now=utc_now(),
                    liveness_seconds=self.heteroflow_settings.node_liveness_seconds,
                    wait_seconds=_CLAIM_SECONDS,
                )
        except NodeNameTaken as error:
            raise WorkerCannotStart(str(error)) from error
        except httpx.HTTPError as error:
            self._logger.warning(
                "The Prefect API does not answer (%s); this node is published as soon as it does.",
                type(error).__name__,
            )

    async def _run_background(self) -> None:
        with self._background:
            async with anyio.create_task_group() as group:
                group.start_soon(self._wakeups.run)
                group.start_soon(run_events.listen, self._on_event, self._logger)
                group.start_soon(self._every, _HEARTBEAT_SECONDS, self._publish)
                group.start_soon(self._every, _RECONCILE_SECONDS, self._reconcile)
                group.start_soon(self._adopt_left_attempts, group)

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except httpx.HTTPError as error:
                self._logger.warning("The Prefect API does not answer: %s", error)
            except WorkerCannotStart:
                raise
            except Exception:
                self._logger.exception("A step beside the runs failed; it is tried again.")
            await anyio.sleep(seconds * (0.85 + 0.3 * random.random()))

    async def _publish(self) -> None:
        if self._claim is None:
            await self._claim_name()
        self._node = await self.probe_node()
        if self._claim is not None:
            await self._say_alive()
        if self._work_pool is not None:
            await refresh_pool_line(
                self.client, self.node.pool, await self.read_cluster(), known=self._work_pool
            )

    async def _say_alive(self, *, stopped: bool = False) -> None:
        try:
            self._claim = await publish_node(
                self.client,
                self.node,
                worker_instance_id=self._instance_id,
                heartbeat_at=utc_now(),
                stopped=stopped,
                claim=self._claim,
            )
        except NodeNameTaken as error:
            raise WorkerCannotStart(str(error)) from error

    async def _reconcile(self) -> None:
        if self._work_pool is not None:
            await reconcile(self)

    async def _on_event(self, event: Event) -> None:
        flow_run_id = run_events.flow_run_id_of(event)
        if flow_run_id is None or self._work_pool is None:
            return
        if event.event in run_events.DUE:
            if run_events.concerns_pool(event, self._work_pool.id):
                # The state may lie in the future; the poll finds only what is due.
                self._wakeups.wake_at(utc_now() + timedelta(milliseconds=20), None)
            return
        if event.event == run_events.CANCELLING:
            # Ending a process takes its grace time; the next event must not wait for it.
            assert self._runs_task_group is not None
            self._runs_task_group.start_soon(self._cancel_run, flow_run_id)
        elif event.event == run_events.CANCELLED:
            await self._cancel_front_of(flow_run_id)

    async def _cancel_front_of(self, flow_run_id: UUID) -> None:
        """An attempt run that was cancelled before it started ends its front run."""
        run = await self.client.read_flow_run(flow_run_id)
        if transitions.is_attempt_run(run) and not self.has_life(run.id):
            await close_cancelled(
                self.client,
                transitions.task_id_of(run),
                f"Its attempt on pool {run.work_pool_name} was cancelled by a user.",
            )

    async def _adopt_left_attempts(self, group: anyio.abc.TaskGroup) -> None:
        while True:
            try:
                if self._work_pool is not None:
                    await self._adopt_now(group)
                    await settle_orphans(self)
                    return
            except Exception as error:
                self._logger.warning("Left attempts cannot be looked for yet: %s", error)
            await anyio.sleep(_ADOPT_SECONDS)

    async def _adopt_now(self, group: anyio.abc.TaskGroup) -> None:
        for handle, configuration in await self.find_left_attempts():
            flow_run = handle.plan.flow_run
            known = self._lives.get(flow_run.id)
            if known is not None:
                if known.attempt != handle.plan.attempt:
                    await self.discard_attempt(handle)
                continue
            life = AttemptLife(self, flow_run, configuration)
            self._lives[flow_run.id] = life
            group.start_soon(self._resume, life, handle)

    async def settle_lost(self, flow_run: FlowRun, history: tuple[Attempt, ...]) -> None:
        """Settle an attempt of this node whose process is gone, as a lost node's."""
        await self.end_left_attempt(flow_run.id)
        configuration = await self.job_configuration.resolve_for_flow_run(
            flow_run,
            client=self.client,
            work_pool=self.work_pool,
            worker_name=self.name,
            worker_id=self.backend_id,
        )
        await AttemptLife(self, flow_run, configuration).settle_lost(history)

    async def _resume(self, life: AttemptLife, handle: AttemptHandle) -> None:
        flow_run_id = life.flow_run.id
        try:
            await life.resume(handle)
        except Exception:
            self._logger.exception("Run %s could not be watched again.", flow_run_id)
        finally:
            self._forget(life)
