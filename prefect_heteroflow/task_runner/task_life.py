"""One task run from its first attempt to its last: what Prefect's engine calls as its body."""

from __future__ import annotations

import asyncio
import functools
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.loggers import get_run_logger, task_run_logger
from prefect.states import Cancelled
from prefect.task_engine import TaskRunTimeoutError
from prefect.transactions import get_transaction
from prefect.utilities.callables import call_with_parameters
from prefect.utilities.timeout import timeout, timeout_async

from prefect_heteroflow.core.attempts import AttemptStatus
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.policy import (
    Decision,
    Place,
    Retry,
)
from prefect_heteroflow.core.ranges import MAX_MEMORY_MB
from prefect_heteroflow.core.routing import NoRoute, Route, fits, route
from prefect_heteroflow.core.task_attempts import TaskAttempt
from prefect_heteroflow.core.task_places import (
    asks_text,
    has_text,
    is_at_home,
)
from prefect_heteroflow.task_runner.attempt_rows import (
    AttemptRows,
    attempt_of,
    diagnosis_of_refusal,
)
from prefect_heteroflow.task_runner.attempts_elsewhere import (
    TaskCall,
    TaskOutcome,
    no_remote,
)
from prefect_heteroflow.task_runner.bodies_sent import BodyNotPortable
from prefect_heteroflow.task_runner.engine_task import engine_copy
from prefect_heteroflow.task_runner.failures_raised import error_of
from prefect_heteroflow.task_runner.granted_retries import (
    WITHOUT_END,
    DecidedFailure,
    GrantedRetries,
)
from prefect_heteroflow.task_runner.home import LOCAL_POOL
from prefect_heteroflow.task_runner.left_by_body import end_what_is_left
from prefect_heteroflow.task_runner.lost_results import Producer, run_again
from prefect_heteroflow.task_runner.next_attempt import NextAttempt, Places, is_of_body

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

    from prefect_heteroflow.core.job_values import JobValueError
    from prefect_heteroflow.core.task_requirements import Requirements
    from prefect_heteroflow.task_runner.retry_rules import RetryRules


class TaskLife:
    """All attempts of one task run.

    Prefect's engine keeps the states, the retries and everything else. It is given a copy of the
    task (`engine_task`) whose body runs an attempt in a child, and whose retry condition answers
    what was decided about the last one.

    Args:
        task: The user's task.
        rules: How it is retried, and its first resources.
        requirements: What is said about it.
        places: Where attempts can run.
        number: Its place in the order of submission.
        refusal: Why the task must not run at all: what it asks for cannot be used.
    """

    def __init__(
        self,
        task: Task[..., Any],
        rules: RetryRules,
        requirements: Requirements,
        places: Places,
        number: int,
        refusal: JobValueError | None = None,
    ) -> None:
        self._task = task
        self._number = number
        self._refusal = refusal
        self._rules = rules
        self._requirements = requirements
        self._places = places
        self._resources = rules.resources
        if refusal is not None and requirements.memory_mb:
            asked_mb = min(requirements.memory_mb, MAX_MEMORY_MB)  # for the row alone
            self._resources = replace(rules.resources, memory_mb=asked_mb)
        self._attempts: list[TaskAttempt] = []
        self._rows = AttemptRows()
        self._retries = GrantedRetries(task, rules.policy)
        self._next = NextAttempt(
            self._retries, rules.policy, places, promised_mb=requirements.memory_mb or 0
        )
        self._failure: DecidedFailure | None = None
        self._is_beside = False
        """The newest attempt ran as a run of its own."""
        self._submitted_in = copy_context()
        self.engine_task = self._for_engine()

    def _for_engine(self) -> Task[..., Any]:
        changed = engine_copy(self._task)

        @functools.wraps(self._task.fn)
        def body(*arguments: Any, **keywords: Any) -> Any:
            return self._run()

        @functools.wraps(self._task.fn)
        async def async_body(*arguments: Any, **keywords: Any) -> Any:
            return await self._run_async()

        changed.fn = async_body if self._task.isasync else body
        changed.retry_condition_fn = self._should_retry
        # Its time counts from the start of the body, not from the wait for a child.
        changed.timeout_seconds = None
        return changed

    # ---- an attempt --------------------------------------------------------------------------

    def _run(self) -> Any:
        try:
            return self._settle(self._attempt())
        except BodyNotPortable as reason:
            self._say_at_home(reason)
        with timeout(self._limit_at_home(), TaskRunTimeoutError):
            return call_with_parameters(self._task.fn, self._context().parameters)

    async def _run_async(self) -> Any:
        try:
            outcome = await asyncio.to_thread(self._attempt)
            return await asyncio.to_thread(self._settle, outcome)
        except BodyNotPortable as reason:
            self._say_at_home(reason)
        with timeout_async(self._limit_at_home(), TaskRunTimeoutError):
            coroutine: Any = call_with_parameters(self._task.fn, self._context().parameters)
            return await coroutine

    def _limit_at_home(self) -> float | None:
        """Seconds that the body may take in the flow's process: the engine does not count them."""
        seconds = self._task.timeout_seconds
        self.engine_task.timeout_seconds = seconds  # the engine's message names it
        return seconds

    def _context(self) -> TaskRunContext:
        context = TaskRunContext.get()
        assert context is not None  # the engine calls the body within it
        return context

    def _say_at_home(self, reason: BodyNotPortable) -> None:
        text = (
            f"its body cannot be sent to a child process ({reason}), so it runs in the flow's own"
        )
        if self._task.timeout_seconds is not None and not self._task.isasync:
            text += "; its `timeout_seconds` ends no call that blocks there"
        self._places.say_once(self._task.name, text)

    def _attempt(self) -> TaskOutcome:
        planned = self._failure.decision if self._failure is not None else None
        self._failure = None
        self.engine_task.retries = WITHOUT_END
        self.engine_task.timeout_seconds = None
        call = self._call()
        if self._refusal is not None:
            refused = self._refused(str(self._refusal))
            return replace(refused, diagnosis=diagnosis_of_refusal(self._refusal))
        self._is_beside = False
        if (
            isinstance(planned, Retry)
            and planned.place.pool != LOCAL_POOL
            and not is_at_home(planned.place, call.resources, self._next.home)
        ):
            return self._beside(call, planned)
        if fits(call.resources, self._next.home):
            return self._places.local.run(call)
        return self._elsewhere(call)

    def _beside(self, call: TaskCall, decision: Retry) -> TaskOutcome:
        assert self._places.remote is not None  # it was asked for before
        self._is_beside = True
        return self._places.remote.run(call, decision)

    def _call(self) -> TaskCall:
        last = self._attempts[-1].row if self._attempts else None
        return TaskCall(
            task=self._task,
            context=self._context(),
            flow_context=FlowRunContext.get(),
            attempt=len(self._attempts) + 1,
            resources=self._resources,
            number=self._number,
            timeout_seconds=self._task.timeout_seconds,
            # More than there is would be waited for without end.
            reserved_mb=min(self._next.reserved_mb, self._places.room.memory_mb),
            shares_gpu=bool(self._requirements.shares_gpu),
            max_calls=self._requirements.max_calls,
            previous_failure=None if last is None else last.failure,
        )

    def _elsewhere(self, call: TaskCall) -> TaskOutcome:
        """An attempt that is too large for its flow run from the start."""
        home = self._places.home
        found = route(
            call.resources, self._next.cluster(), current_pool=home.pool, current_node=home.name
        )
        wanted, has = asks_text(call.resources), has_text(home, self._places.room)
        if isinstance(found, Route) and self._places.remote is not None:
            self._places.local.expect_no_more(self._number)
            place = Place(pool=found.pool, node=found.node)
            reason = f"It requires {wanted}; {has}: it runs on pool {found.pool} ({found.reason})."
            moved = Retry(resources=call.resources, place=place, delay_seconds=0.0, reason=reason)
            return self._beside(call, moved)
        if fits(call.resources, home):  # it may need less than it asks for
            self._next.home = home
            return self._places.local.run(call)
        self._places.local.expect_no_more(self._number)
        if isinstance(found, NoRoute):
            text = f"it requires {wanted}, which no node has: {found.reason}; {has}"
        else:
            text = f"it requires {wanted}; {has}. {no_remote(found.pool)}"
        return self._refused(text)

    def _refused(self, text: str) -> TaskOutcome:
        evidence = Evidence(phase="start", engine_error=text)
        pool = self._places.home.pool
        return TaskOutcome(kind="refused", text=text, evidence=evidence, pool=pool, node=None)

    # ---- what follows ------------------------------------------------------------------------

    def _settle(self, outcome: TaskOutcome) -> Any:
        """The value of the attempt; raises what the engine is to see of a failure."""
        if outcome.kind == "returned":
            if self._attempts:
                self._record(outcome, AttemptStatus.COMPLETED)
            self._remember(outcome)
            return outcome.value
        if outcome.kind in ("died", "timed_out", "cancelled"):
            end_what_is_left(self._context(), outcome)
        if outcome.kind == "cancelled":
            return self._cancelled(outcome)
        diagnosis = self._diagnose(outcome)
        decision = self._next.decide(
            outcome,
            diagnosis,
            resources=self._resources,
            rows=[attempt.row for attempt in self._attempts],
            is_beside=self._is_beside,
        )
        of_body = is_of_body(outcome)
        self._failure = DecidedFailure(decision=decision, of_body=of_body)
        told = decision
        # The engine retries no other exceptions.
        if of_body and isinstance(outcome.exception, Exception | None):
            told = self._retries.told(decision, diagnosis)
        self._record(outcome, AttemptStatus.FAILED, diagnosis, told)
        if isinstance(decision, Retry):
            self._resources = decision.resources
            if decision.resources.memory_mb > self._rules.resources.memory_mb:
                self._next.reserved_mb = decision.resources.memory_mb
        if outcome.kind == "timed_out":  # the engine's message names it
            self.engine_task.timeout_seconds = self._task.timeout_seconds
        if outcome.kind == "raised" and outcome.exception is None:
            text = "%s: the exception itself cannot be sent between processes"
            get_run_logger(self._context()).warning(text, outcome.text)
        raise error_of(
            outcome, self._task, attempt=len(self._attempts), diagnosis=diagnosis, decision=decision
        )

    def _remember(self, outcome: TaskOutcome) -> None:
        """That the task can run again, if its result is stored and may be lost."""
        context = self._context()
        if not context.persist_result or outcome.sent_bytes is None:
            return
        ended = replace(outcome, value=None)
        producer = Producer(
            task_run_id=context.task_run.id,
            size_bytes=outcome.sent_bytes,
            run_again=lambda why: self._run_again(ended, context, why),
        )
        self._places.producers.remember(producer)

    def _run_again(self, ended: TaskOutcome, context: TaskRunContext, why: str) -> State[Any]:
        if not self._attempts:
            self._record(ended, AttemptStatus.COMPLETED, context=context)
        last = self._attempts[-1]
        decision = f"{why}. The task runs again."
        row = replace(last.row, decision=decision)
        self._attempts[-1] = replace(last, row=row)
        self._say_decision(context, row.attempt, decision)
        self._failure = None
        self._retries.start_over()
        self.engine_task.retries = self._task.retries
        self.engine_task.refresh_cache = True
        return run_again(self.engine_task, context, self._submitted_in)

    def _cancelled(self, outcome: TaskOutcome) -> State[Any]:
        if self._attempts:
            self._record(outcome, AttemptStatus.CANCELLED)
        transaction = get_transaction()
        if transaction is not None:
            # It ends without a value: nothing to cache, nothing that a hook could commit.
            transaction.write_on_commit = False
        self.engine_task.on_commit_hooks = []
        return Cancelled(message="The flow run was cancelled while this task ran.")

    def _diagnose(self, outcome: TaskOutcome) -> Diagnosis:
        if outcome.diagnosis is not None:
            return outcome.diagnosis
        if outcome.kind in ("refused", "unportable"):
            refused = outcome.kind == "refused"
            return Diagnosis(
                failure=FailureClass.RESOURCE_LIMIT_EXCEEDED
                if refused
                else FailureClass.INVALID_CONFIG,
                rule="no-node-fits" if refused else "not-portable",
                reason=outcome.text,
            )
        return self._rules.diagnose(outcome.evidence or Evidence())

    def _should_retry(self, task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> Any:
        """The retry condition that the engine asks after a failure."""
        failure = self._failure
        answer: Any = self._retries.answer(failure, self.engine_task, task_run, state)
        if not answer and failure is not None and self._retries.grants(failure):
            self._tell_refusal(task_run)
        return answer

    def _tell_refusal(self, task_run: TaskRun) -> None:
        """The newest row says a retry that the task's own condition does not want."""
        last = self._attempts[-1]
        why = f"{last.row.failure} ({last.row.rule}): {(last.row.reason or '').rstrip('. ')}"
        row = replace(last.row, decision=f"{why}; the task's `retry_condition_fn` wants no retry")
        self._attempts[-1] = replace(last, row=row)
        logger = task_run_logger(task_run, self._task)
        self._rows.write(self._attempts, task_run.flow_run_id, logger)

    # ---- what users see ----------------------------------------------------------------------

    def _record(
        self,
        outcome: TaskOutcome,
        status: AttemptStatus,
        diagnosis: Diagnosis | None = None,
        decision: Decision | None = None,
        context: TaskRunContext | None = None,
    ) -> None:
        context = context or self._context()
        attempt = attempt_of(
            context.task_run,
            outcome,
            status,
            attempt=len(self._attempts) + 1,
            resources=self._resources,
            diagnosis=diagnosis,
            decision=decision,
        )
        self._attempts.append(attempt)
        logger = get_run_logger(context)
        if diagnosis is not None and decision is not None and outcome.kind != "raised":
            self._say_decision(context, attempt.row.attempt, decision.reason)
        self._rows.write(self._attempts, context.task_run.flow_run_id, logger)

    def _say_decision(self, context: TaskRunContext, attempt: int, text: str) -> None:
        # With the name: `prefect flow-run logs` does not tell whose line it is.
        name = context.task_run.name
        get_run_logger(context).warning("Task run %r, attempt %s: %s", name, attempt, text)
