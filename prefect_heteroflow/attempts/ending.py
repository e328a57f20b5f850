"""Acts on the end of an attempt: the row first, then the run's state, then whatever comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry

from prefect_heteroflow.attempts import held
from prefect_heteroflow.attempts.cancelling import close_cancelled
from prefect_heteroflow.attempts.in_place import goes_on_here
from prefect_heteroflow.attempts.next_attempt import (
    NextAttempt,
    never_started_row,
    next_job_variables,
    planned_row,
)
from prefect_heteroflow.attempts.outcome import left_to_prefect_text
from prefect_heteroflow.attempts.restarts import ask_breakers, tell_breakers
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, current_series
from prefect_heteroflow.core.breaker import Verdict
from prefect_heteroflow.core.decide import why_no_retry
from prefect_heteroflow.core.endings import message_with_line
from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.policy import (
    Decision,
    Ending,
    Place,
    Retry,
    RetryPolicy,
    Stop,
)
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.routing import Route
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.attempt_events import emit_attempt_event
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from prefect_heteroflow.orchestration.task_bodies import TASK_RUN_LABEL

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """One ended attempt of one flow run."""

    worker: RetryingWorker
    flow_run: FlowRun
    task_id: UUID
    history: tuple[Attempt, ...]
    row: Attempt
    resources: Resources
    policy: RetryPolicy
    is_plain_job: bool
    job: str | None
    """Tells it apart from other jobs of its deployment."""
    was_cancelled: Callable[[], bool]
    has_gone_on: Callable[[Decision], Awaitable[bool]]
    """Whether others have done what was decided, while this worker was paused."""

    @property
    def _is_front(self) -> bool:
        return self.task_id == self.flow_run.id

    @property
    def _pool(self) -> str:
        """Where it ran: another worker's pool if that one is lost."""
        return self.row.pool or self.worker.node.pool

    async def completed(self) -> None:
        """It succeeded, and with it the task."""
        await self._write(
            dataclasses.replace(self.row, status=AttemptStatus.COMPLETED, ended_task=True)
        )
        if self.is_plain_job:
            await self._finish_once(
                transitions.completed_state(f"Attempt {self.row.attempt} ended with exit code 0.")
            )
        await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.SUCCEEDED)
        await self._hand_over()

    async def cancelled(self) -> None:
        """A user cancelled the run: nothing follows."""
        row = dataclasses.replace(
            self.row,
            status=AttemptStatus.CANCELLED,
            failure="TaskCancelled",
            ended_task=True,
            decision="Cancelled by a user; nothing is retried.",
            ended=self.row.ended or utc_now().isoformat(),
        )
        await self._write(row)
        await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.NONE)
        await transitions.cancel_for_good(
            self.worker.client, self.flow_run.id, "Cancelled by a user; nothing is retried."
        )
        if not self._is_front:
            await transitions.cancel_for_good(
                self.worker.client,
                self.task_id,
                f"Attempt {self.row.attempt} on pool {self.row.pool} was cancelled by a user.",
            )

    async def ended_by_hand(self, why: str) -> None:
        """A person has set its run to an end while it ran: the task ends so."""
        row = dataclasses.replace(
            self.row,
            status=AttemptStatus.CANCELLED,
            failure="TaskCancelled",
            ended_task=True,
            decision=why,
            ended=self.row.ended or utc_now().isoformat(),
        )
        await self._write(row)
        await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.NONE)
        await self._hand_over()

    async def left_to_prefect(self) -> None:
        """The flow paused itself, or Prefect runs it again: not an end of the task."""
        decision = left_to_prefect_text(self.flow_run)
        await self._write(
            dataclasses.replace(self.row, status=AttemptStatus.SUSPENDED, decision=decision)
        )
        await transitions.let_workers_take(self.worker.client, self.flow_run)

    async def ended_in_pause(self) -> None:
        """Its process is gone, which waited for Resume: that is to start the next attempt."""
        message = "Its process ended while the flow was paused: Resume starts the next attempt."
        row = dataclasses.replace(self.row, status=AttemptStatus.SUSPENDED, decision=message)
        await self._write(row)
        self.worker.get_flow_run_logger(self.flow_run).warning("%s", message)
        await transitions.let_workers_take(self.worker.client, self.flow_run)
        await transitions.suspend_paused(self.worker.client, self.flow_run, message=message)

    async def ended_by_itself(self, diagnosis: Diagnosis) -> None:
        """The flow reported its own failure: its state stands."""
        state = self.flow_run.state
        decision = f"Stopped: {None if state is None else state.message}"
        why = why_no_retry(diagnosis, self.policy, current_series(self.history))
        if why is not None:
            decision = f"{decision.rstrip('. ')}; {why}"
        await self._write(self._last_row(diagnosis, decision), failed=True)
        self._emit(diagnosis, "stop")
        await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.FAILED)
        await self._hand_over()

    async def decided(self, diagnosis: Diagnosis, decision: Decision) -> NextAttempt | None:
        """Write down why it failed and what follows, then do it.

        Returns:
            The next attempt if this worker is to go on with it at once, without the detour over
            the pool.
        """
        if await self.has_gone_on(decision):
            return None
        self._log(diagnosis, decision)
        if isinstance(decision, Stop):
            row = self._last_row(diagnosis, decision.reason)
            row = dataclasses.replace(row, ending=decision.ending.value)
            await self._write(row, failed=True)
            self._emit(diagnosis, "stop")
            await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.FAILED)
            message = message_with_line(decision.reason, diagnosis)
            if await self.has_gone_on(decision):
                return None
            await self._stop(Stop(ending=decision.ending, reason=message))
            return None
        failed = self._failed_row(diagnosis, decision.reason)
        await self._write(failed, self._next_row(decision))
        self._emit(diagnosis, "retry")
        await tell_breakers(self.worker, self.task_id, self.row.attempt, Verdict.FAILED)
        if await self.has_gone_on(decision) or await self._is_held(diagnosis, decision):
            return None
        scheduled = await self._retry(decision)
        if scheduled is None:
            return None
        if await goes_on_here(self.worker, self.flow_run, self.row, decision):
            return NextAttempt(flow_run=scheduled, history=(*self.history, failed))
        self.worker.wake_at(_due(scheduled), self.flow_run.id)
        return None

    async def move_before_start(self, found: Route, asked: str) -> None:
        """Send a run that is larger than this node to where it fits, before any attempt."""
        reason = f"The run asks for {asked}, more than node {self.row.node} has: {found.reason}."
        decision = Retry(
            resources=self.resources,
            place=Place(pool=found.pool, node=found.node, waits_for=found.waits_for),
            delay_seconds=0.0,
            reason=reason,
        )
        self.worker.get_flow_run_logger(self.flow_run).info("%s", reason)
        planned = dataclasses.replace(self._next_row(decision), attempt=self.row.attempt)
        await self._write(planned)
        scheduled = await self._retry(decision, attempt=self.row.attempt)
        if scheduled is not None:
            self.worker.wake_at(_due(scheduled), self.flow_run.id)

    # ---- what follows ------------------------------------------------------------------------

    async def _retry(self, decision: Retry, *, attempt: int | None = None) -> FlowRun | None:
        """The run as it was scheduled again; `None` if it was moved to another pool or ended."""
        number = self.row.attempt + 1 if attempt is None else attempt
        due = utc_now() + timedelta(seconds=decision.delay_seconds)
        variables = self._next_variables(decision)
        if decision.place.pool != self._pool:
            await self._move(decision, number, variables)
            return None
        accepted = await transitions.await_retry(
            self.worker.client,
            self.flow_run,
            due=due,
            message=decision.reason,
            job_variables=variables,
        )
        if not accepted or self.was_cancelled():
            await self._give_up_planned()
            return None
        if decision.resources != self.resources:
            await transitions.show_job_variables(self.worker.client, self.flow_run.id, variables)
        state: State[Any] = AwaitingRetry(scheduled_time=due)
        return self.flow_run.model_copy(update={"job_variables": variables, "state": state})

    async def _is_held(self, diagnosis: Diagnosis, decision: Retry) -> bool:
        """Whether a circuit breaker is open: then the run waits for a person, or for its trial."""
        waiting = await ask_breakers(
            self.worker,
            flow_run=self.flow_run,
            task_id=self.task_id,
            row=self.row,
            resources=self.resources,
            diagnosis=diagnosis,
            decision=decision,
            job=self.job,
        )
        if waiting is None:
            return False
        self.worker.get_flow_run_logger(self.flow_run).warning("%s", waiting.message)
        waits = await held.hold_back(
            self.worker.client,
            self.flow_run,
            self.task_id,
            waiting.hold,
            message=waiting.message,
            reason=waiting.reason,
            job_variables=self._next_variables(decision),
            moves=decision.place.pool != self._pool,
            was_cancelled=self.was_cancelled,
        )
        if not waits:
            await self._give_up_planned()
        return True

    async def _move(self, decision: Retry, attempt: int, variables: dict[str, Any]) -> None:
        client = self.worker.client
        due = utc_now() + timedelta(seconds=decision.delay_seconds)
        front = await client.read_flow_run(self.task_id)
        # First the parked front run, then the new one: a deployment's concurrency slot is free by
        # then. If we die in between, `reconcile` finds the planned row and creates the run.
        if self.was_cancelled() or _is_cancelled(front):
            await self._give_up_planned()
            return
        if self._is_front:
            await transitions.escalate(client, front.id, decision.reason)
        await transitions.create_attempt_run(
            client,
            front,
            attempt=attempt,
            pool=decision.place.pool,
            job_variables=variables,
            due=due,
            message=decision.reason,
        )
        if not self._is_front:
            await transitions.finish(
                client,
                self.flow_run.id,
                transitions.ended_state(transitions.ATTEMPT_FAILED, decision.reason),
                force=True,
            )

    async def _give_up_planned(self) -> None:
        """The next attempt was written down, and then the run was cancelled or cannot go on."""
        client = self.worker.client
        run = await client.read_flow_run(self.flow_run.id)
        front = run if self._is_front else await client.read_flow_run(self.task_id)
        if self.was_cancelled() or _is_cancelled(run) or _is_cancelled(front):
            message = "Cancelled by a user; nothing is retried."
            await close_cancelled(client, self.task_id, message, self.flow_run.id)
            return
        message = "The server does not let the run be scheduled again; is its deployment gone?"
        await self._write(
            dataclasses.replace(self.row, status=AttemptStatus.FAILED, decision=message),
            dataclasses.replace(
                self.row,
                attempt=self.row.attempt + 1,
                status=AttemptStatus.CANCELLED,
                decision=message,
                ended_task=True,
            ),
        )
        await self._stop(Stop(ending=Ending.FAILED, reason=message))

    def _next_variables(self, decision: Retry) -> dict[str, Any]:
        return next_job_variables(
            self.flow_run.job_variables or {}, decision, self.policy.retry_strategy, now=utc_now()
        )

    async def _stop(self, decision: Stop) -> None:
        state = transitions.ended_state(decision.ending.value, decision.reason)
        if decision.ending.value == "Cancelled":
            await self.cancelled()
            return
        await self._finish_once(state, force=True)
        if not self._is_front:
            await transitions.take_over(self.worker.client, self.task_id, state)

    async def _finish_once(self, state: State[Any], *, force: bool = False) -> None:
        """End the run, unless it has this very end: the answer to the request may have been lost.

        The run is read anew whenever a step is told again.
        """
        known = self.flow_run.state
        if known is not None and (known.type, known.name, known.message) == (
            state.type,
            state.name,
            state.message,
        ):
            return
        await transitions.finish(self.worker.client, self.flow_run.id, state, force=force)

    async def _hand_over(self) -> None:
        """Give the end of an attempt run to its front run, result and all."""
        if self._is_front:
            return
        run = await self.worker.client.read_flow_run(self.flow_run.id)
        state: State[Any] | None = run.state
        if state is not None and state.is_final():
            await transitions.take_over(self.worker.client, self.task_id, state)

    # ---- what is written down ----------------------------------------------------------------

    def _failed_row(self, diagnosis: Diagnosis, decision: str) -> Attempt:
        return dataclasses.replace(
            self.row,
            status=AttemptStatus.FAILED,
            failure=diagnosis.failure.value,
            rule=diagnosis.rule,
            reason=diagnosis.reason,
            decision=decision,
            ended=self.row.ended or utc_now().isoformat(),
        )

    def _last_row(self, diagnosis: Diagnosis, decision: str) -> Attempt:
        return dataclasses.replace(self._failed_row(diagnosis, decision), ended_task=True)

    def _next_row(self, decision: Retry) -> Attempt:
        stays = decision.place.pool == self._pool
        return planned_row(
            decision, self.row.attempt + 1, flow_run_id=self.flow_run.id if stays else None
        )

    async def _write(self, *rows: Attempt, failed: bool = False) -> None:
        summary = failed or bool(self.history) or len(rows) > 1
        client, task = self.worker.client, self.task_id
        stored = await write_attempts(client, task, list(rows), summary=summary)
        if rows[-1].ended_task and stored[-1].status is AttemptStatus.SCHEDULED:
            # Others had given this attempt up and planned one more, when it came to its own end.
            why = f"Not started: attempt {rows[-1].attempt} came to its end after all."
            needless = never_started_row(
                stored[-1], why, flow_run_id=task, now=utc_now(), ended_task=True
            )
            await write_attempts(client, task, [needless], summary=True)

    def _log(self, diagnosis: Diagnosis, decision: Decision) -> None:
        retries = self.policy.max_retries
        total = "∞" if retries < 0 else str(1 + retries)
        logger = self.worker.get_flow_run_logger(self.flow_run)
        number = len(current_series(self.history)) + 1
        # The name tells runs apart on the worker's console.
        name = self.flow_run.name
        logger.warning("Run '%s', attempt %d/%s: %s", name, number, total, decision.reason)
        if diagnosis.line:
            logger.warning("It shows in this line: %s", diagnosis.line)

    def _emit(self, diagnosis: Diagnosis, verdict: str) -> None:
        if TASK_RUN_LABEL in self.flow_run.labels:
            verdict = "runner"  # the flow whose task it is decides what follows
        emit_attempt_event(
            self.flow_run,
            task_id=self.task_id,
            attempt=self.row.attempt,
            failure=diagnosis.failure.value,
            rule=diagnosis.rule,
            verdict=verdict,
            node=self.row.node or self.worker.node.name,
            pool=self._pool,
        )


def _is_cancelled(run: FlowRun) -> bool:
    return run.state is not None and run.state.type in (StateType.CANCELLING, StateType.CANCELLED)


def _due(flow_run: FlowRun) -> datetime:
    due = None if flow_run.state is None else flow_run.state.state_details.scheduled_time
    return utc_now() if due is None else due
