"""The life of one attempt: started, watched, diagnosed, and what follows from its end.

The order is what makes it safe: evidence is read before the container is removed, the row is
written before anything is acted on, and the run's state changes last.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.admission import described, find_place, first_resources
from prefect_heteroflow.attempts.backend import (
    AttemptEnd,
    AttemptHandle,
    AttemptNotStarted,
    AttemptPlan,
)
from prefect_heteroflow.attempts.cancelling import close_cancelled, handle_cancelling
from prefect_heteroflow.attempts.next_attempt import NextAttempt
from prefect_heteroflow.attempts.orphans import go_on_after
from prefect_heteroflow.attempts.overtaken import Overtaken
from prefect_heteroflow.attempts.preparing import (
    new_row,
    plan_attempt,
    rules_of,
    smallest_gpu_mb,
    with_resources,
)
from prefect_heteroflow.attempts.remains import discard, read_progress, read_report
from prefect_heteroflow.attempts.restarts import job_digest, note_resumed
from prefect_heteroflow.attempts.run_again import may_start_beside
from prefect_heteroflow.attempts.settling import AttemptSettling
from prefect_heteroflow.attempts.standing import read_standing, split_planned
from prefect_heteroflow.attempts.starting import (
    say_command_runs,
    start_unless_cancelled,
    store_identifier,
    tell_start,
)
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.job_values import JobValueError, parse_job_values
from prefect_heteroflow.core.resources import Gpu, Resources
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.fast_literals import fast_finder
from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.deployment_slot import keep_deployment_slot
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from prefect_heteroflow.orchestration.run_output import RunOutput

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.kept_ends import KeptEnd
    from prefect_heteroflow.retrying_worker import RetryingWorker


class AttemptLife:
    """One attempt of one flow run on this worker."""

    def __init__(
        self, worker: RetryingWorker, flow_run: FlowRun, configuration: RetryConfiguration
    ) -> None:
        self._worker = worker
        self._client = worker.client
        self.flow_run = flow_run
        self._configuration = configuration
        self.task_id = transitions.task_id_of(flow_run)
        self._logger: logging.LoggerAdapter[Any] = worker.get_flow_run_logger(flow_run)
        self._history: tuple[Attempt, ...] = ()
        self._row = self._new_row(1)
        self._values = parse_job_values({})
        self._resources = Resources()
        self._gpus: tuple[Gpu, ...] = ()
        self.handle: AttemptHandle | None = None
        self._scanner = FailureScanner(fast_finder())
        self._output = RunOutput(self._logger)
        self._reported_start = False
        self.is_settled = False
        """Its end was acted on: a cancel concerns what follows, not this attempt."""
        self._process_ended = False
        self.run_again: str | None = None
        """Why it is ended, if that is because its run was scheduled again by somebody."""
        self.ended_by_hand: State | None = None
        """The end of its run because of which it is ended, if a person has set one."""
        self._following: NextAttempt | None = None
        self._terminating = False
        self.cancel_requested = False
        self._cancelled = anyio.Event()
        self._overtaken = Overtaken(worker, flow_run, worker.lives.taken_at(flow_run.id))

    # ---- from start to end -------------------------------------------------------------------

    async def run(self, task_status: anyio.abc.TaskStatus[Any]) -> str:
        """Run the attempt to its end and act on it. Gives the infrastructure's identifier."""
        try:
            if not await self._is_due() or not await self._take_up():
                return ""
            handle = await self._start()
            if handle is None:
                return ""
            self._reported_start = True
            task_status.started(handle.identifier)
            await self._watch(handle)
            return handle.identifier
        finally:
            if not self._reported_start:
                # Core wants a word from every run; `None` is the one that keeps no identifier.
                task_status.started(None)

    async def following(self) -> AttemptLife | None:
        """The life of the attempt that this worker goes on with at once, ready for `go_on`."""
        if self._following is None:
            return None
        run = self._following.flow_run
        life = AttemptLife(self._worker, run, await self._worker.configuration_for(run))
        life._history = self._following.history
        life._row = life._new_row(life._history[-1].attempt + 1)
        if self.cancel_requested:
            await life.request_cancel()
        return life

    async def go_on(self) -> None:
        """Run the attempt in the place of the one before it, without the detour over the pool."""
        if not await self._is_due():
            return
        self._overtaken = Overtaken(self._worker, self.flow_run)
        if not await transitions.propose_pending(self._client, self.flow_run.id):
            # No slot, or no longer ours: the pool gives it to whoever may run it, when it may.
            self._worker.wake_at(utc_now(), self.flow_run.id)
            return
        if not await self._accept_values():
            return
        handle = await self._start()
        if handle is None:
            return
        await store_identifier(self._client, self.flow_run.id, handle.identifier, self._logger)
        await self._watch(handle)

    async def resume(self, handle: AttemptHandle) -> None:
        """Watch an attempt that an earlier process of this worker has started."""
        self._history = tuple(await read_attempts(self._client, self.task_id))
        number = handle.plan.attempt
        known = [row for row in self._history if row.attempt == number]
        self._history = tuple(row for row in self._history if row.attempt < number)
        unwritten = with_resources(self._new_row(number), handle.plan.resources)
        self._row = known[0] if known else unwritten
        if self._row.status not in (AttemptStatus.RUNNING, AttemptStatus.SCHEDULED):
            self._logger.info("Attempt %d was settled before; its remains are removed.", number)
            await go_on_after(self._worker, self.task_id, self.flow_run)
            await self._worker.discard_attempt(handle)
            return
        self._read_values_of_running()
        self._resources = handle.plan.resources
        self._gpus = handle.plan.gpus
        self.handle = handle
        handle.plan = dataclasses.replace(handle.plan, on_output=self._on_output)
        self._logger.info(
            "Worker '%s' watches attempt %d again, which it had started before it was restarted.",
            self._worker.name,
            number,
        )
        if self._cancelled.is_set():
            await self._terminate(handle)
        await self._watch(handle, was_running=True)

    @property
    def attempt(self) -> int:
        """Number of the attempt, 1 for the first."""
        return self._row.attempt

    @property
    def is_running(self) -> bool:
        """Its process or container was started and has not ended yet."""
        return self.handle is not None and not self._process_ended

    @property
    def row(self) -> Attempt:
        """What is to be written down about the attempt so far."""
        return self._row

    async def settle_lost(
        self, history: tuple[Attempt, ...], because: str | None, kept: KeptEnd | None
    ) -> None:
        """Decide about an attempt whose process is gone and whose end nobody saw, unless kept.

        Args:
            history: All attempts of the task, that one last.
            because: How it is known, if there is more to say than that.
            kept: The end, if an earlier process of this worker saw it.
        """
        *earlier, self._row = history
        self._history = tuple(earlier)
        self._read_values_of_running()
        self._resources = dataclasses.replace(
            self._values.resources,
            memory_mb=self._row.memory_mb or self._values.resources.memory_mb,
        )
        settling, end = self._settling(), AttemptEnd(lost=True, lost_because=because)
        if kept is not None:
            end = kept.restore(settling)
        self._following = await settling.ended(end, None if kept is None else kept.report)

    def _read_values_of_running(self) -> None:
        try:
            self._values = self._configuration.job_values(self._worker.heteroflow_settings)
            self._scanner.look_for(rules_of(self._worker, self._values))
        except JobValueError as error:
            self._logger.warning("%s The defaults decide about its end.", error)

    async def is_overtaken(self) -> bool:
        """Whether others have gone on with the run, which this worker has not started yet."""
        return await self._overtaken.has_happened()

    async def request_cancel(self) -> None:
        """End the attempt, now or as soon as it has started."""
        self.cancel_requested = True
        self._cancelled.set()
        await self.end()

    async def end(self) -> None:
        """End what runs of the attempt, unless that is under way."""
        if self.handle is not None and not self._terminating:
            await self._terminate(self.handle)

    async def _is_due(self) -> bool:
        """Wait for the due time: workers are given runs ahead of it. `False` if cancelled."""
        state = self.flow_run.state
        due = None if state is None else state.state_details.scheduled_time
        seconds = 0.0 if due is None else (due - utc_now()).total_seconds()
        if seconds > 0:
            self._overtaken.waited(seconds)
            with anyio.move_on_after(seconds):
                await self._cancelled.wait()
        if self.cancel_requested:
            message = "Cancelled by a user; nothing is retried."
            await close_cancelled(self._client, self.task_id, message, self.flow_run.id)
        return not self.cancel_requested

    async def _take_up(self) -> bool:
        """Read what is known of the task; `False` when this run is not to be started here."""
        await note_resumed(self._worker, self.flow_run)
        standing = await read_standing(
            self._client,
            self.task_id,
            self.flow_run,
            self._worker.node.pool,
            is_overtaken=self.is_overtaken,
            may_start_beside=partial(may_start_beside, self._worker, self.flow_run),
            is_looked_after=self._worker.is_looked_after,
        )
        if standing is None:
            return False
        if isinstance(standing, str):
            await transitions.escalate(self._client, self.flow_run.id, standing)
            return False
        self._history, planned = split_planned(standing)
        for doubt in self._configuration.doubts if not self._history else ():
            self._logger.warning("%s", doubt)  # once, with the first attempt
        self._row = self._new_row(self._history[-1].attempt + 1 if self._history else 1)
        return await self._accept_values(planned)

    async def _accept_values(self, planned: Attempt | None = None) -> bool:
        configuration = self._configuration
        try:
            if configuration.refusal is not None:
                raise JobValueError(configuration.refusal, failure=FailureClass.INVALID_CONFIG)
            self._values = configuration.job_values(self._worker.heteroflow_settings)
            self._scanner.look_for(rules_of(self._worker, self._values))
            self._worker.check_configuration(configuration)
        except JobValueError as error:
            await self._refuse(error.failure, "job-variables", str(error))
            return False
        if transitions.carries_job_variables(self.flow_run):
            planned = None  # they are in the configuration, with a person's edits
        self._resources = first_resources(configuration, self._values, self._logger, planned)
        self._row = with_resources(self._row, self._resources)
        return await self._accept_place()

    async def _accept_place(self) -> bool:
        """Move the run, or refuse it, when it is larger than this node."""
        found = await find_place(self._worker, self._resources, self._values.policy)
        if found is None:
            return True
        if isinstance(found, str):
            await self._refuse(FailureClass.RESOURCE_LIMIT_EXCEEDED, "no-node-fits", found)
        else:
            await self._settling().ending().move_before_start(found, described(self._resources))
        return False

    async def _refuse(self, failure: FailureClass, rule: str, text: str) -> None:
        self._following = await self._settling().refused(failure, rule, text)

    async def _start(self) -> AttemptHandle | None:
        """`None` if it could not be started, and that was settled."""
        plan, worker = self._planned(), self._worker
        cleaned = await worker.retry_cleanup.before(
            worker, plan, self._history, self._values, lambda: self.cancel_requested
        )
        self._row = dataclasses.replace(self._row, cleanup=cleaned)
        if self.cancel_requested:
            await self._settling().ending().cancelled()
            return None
        if await self.is_overtaken():
            return None
        try:
            handle = await start_unless_cancelled(worker, plan, self._cancelled)
        except AttemptNotStarted as error:
            self._following = await self._settling().not_started(error)
            return None
        if handle is None:
            await self._settling().ending().cancelled()
            return None
        self.handle = handle
        if self._cancelled.is_set():
            await self._terminate(handle)
        return handle

    def _planned(self) -> AttemptPlan:
        self._gpus = self._worker.take_gpus(str(self.flow_run.id), self._resources)
        gpu_memory_mb = smallest_gpu_mb(self._gpus) or self._resources.gpu_memory_mb
        self._row = dataclasses.replace(self._row, gpu_memory_mb=gpu_memory_mb)
        return plan_attempt(
            self._worker,
            self.flow_run,
            self._configuration,
            attempt=self._row.attempt,
            history=self._history,
            values=self._values,
            resources=self._resources,
            gpus=self._gpus,
            on_output=self._on_output,
            logger=self._logger,
        )

    def _on_output(self, chunk: bytes, *, is_old: bool = False) -> None:
        self._scanner.feed(chunk)
        if self._configuration.is_plain_job and not is_old:
            self._output.feed(chunk)

    async def _accompany(self, ended: anyio.Event, was_running: bool) -> None:
        if not was_running:
            now = utc_now().isoformat()
            self._row = dataclasses.replace(self._row, status=AttemptStatus.RUNNING, started=now)
            await tell_start(self._tell_running, self._logger, ended)
        if self._configuration.is_plain_job:
            await keep_deployment_slot(self._client, self.flow_run.id, self._logger, ended=ended)

    async def _tell_running(self) -> None:
        if self._configuration.is_plain_job and not self.cancel_requested:
            message = f"Attempt {self._row.attempt}: the command runs."
            if not await say_command_runs(self._client, self.flow_run.id, message):
                await self.request_cancel()
                return
        await write_attempts(self._client, self.task_id, [self._row], summary=False)

    async def _terminate(self, handle: AttemptHandle) -> None:
        grace_seconds = self._worker.heteroflow_settings.cancel_grace_seconds
        # Once: a second SIGTERM would interrupt what the first one has set going.
        self._terminating = True
        try:
            await self._worker.terminate_attempt(handle, grace_seconds)
        except BaseException:
            self._terminating = False
            raise

    async def _watch(self, handle: AttemptHandle, *, was_running: bool = False) -> None:
        ended = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._accompany, ended, was_running)
            end = await self._worker.wait_attempt(handle)
            self._process_ended = True
            ended.set()
        self._output.close()
        report = await read_report(self._worker, handle, self._logger)
        settling = self._settling()
        settling.run_again, settling.ended_by_hand = self.run_again, self.ended_by_hand
        settling.progress = await read_progress(self._worker, handle, self._logger)
        try:
            async with self._worker.kept_ends.keep(settling, end, report):
                self._following = await settling.ended(end, report)
        except ObjectNotFound:
            self._logger.warning("The run was deleted; what is left of its attempt is removed.")
        finally:
            self.is_settled = True
            await discard(self._worker, handle, self._logger)
        if self.cancel_requested and self._following is None:
            # A cancel that came while the end was acted on.
            await handle_cancelling(self._worker, self.flow_run.id)

    def _settling(self) -> AttemptSettling:
        return AttemptSettling(
            worker=self._worker,
            flow_run=self.flow_run,
            task_id=self.task_id,
            history=self._history,
            row=self._row,
            values=self._values,
            resources=self._resources,
            gpu_memory_mb=smallest_gpu_mb(self._gpus),
            is_plain_job=self._configuration.is_plain_job,
            job=job_digest(self._configuration),
            gpu_uuids=tuple(gpu.uuid for gpu in self._gpus),
            containers=self._worker.starts_containers(self.flow_run),
            scanner=self._scanner,
            logger=self._logger,
            was_cancelled=lambda: self.cancel_requested,
        )

    def _new_row(self, attempt: int) -> Attempt:
        return new_row(self.flow_run, self._worker.node, attempt)
