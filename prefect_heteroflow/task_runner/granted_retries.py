"""The retries that one task run is granted: what Prefect's engine is told after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.core.decide import told_with_own_retries
from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.policy import UNLIMITED, Decision, OwnRetries, Retry, RetryPolicy
from prefect_heteroflow.core.task_retries import policy_of_next

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

WITHOUT_END = 1_000_000
"""`retries` of the engine's copy while our own condition decides."""


@dataclass(slots=True, kw_only=True)
class DecidedFailure:
    """How the last attempt failed, as far as its retry depends on it."""

    decision: Decision
    of_body: bool
    """An exception of the body, in which the task's own `retries` have their say."""


class GrantedRetries:
    """Counts them: the task's own `retries` for failures of its body, the policy's for others.

    Args:
        task: The user's task, with its own `retries`, delays and condition.
        policy: Of the runner, or what `requires` says.
    """

    def __init__(self, task: Task[..., Any], policy: RetryPolicy) -> None:
        self._task = task
        self._policy = policy
        self._granted = 0
        self._counted = 0
        """Those that count against `max_retries`, or against the task's own."""

    def start_over(self) -> None:
        """The task runs again from the start: none has been granted."""
        self._granted = self._counted = 0

    def own(self) -> OwnRetries | None:
        """What the task's own `retries` allow and how many were used; `None` if it has none."""
        allowed = self._task.retries
        return OwnRetries(allowed=allowed, used=self._granted) if allowed > 0 else None

    def told(self, decision: Decision, diagnosis: Diagnosis) -> Decision:
        """The decision for people about an exception: the task's own `retries` decide, if any."""
        own = self.own()
        if own is None:
            return decision
        delay = self.policy_of_next(of_body=True).retry_delay
        return told_with_own_retries(decision, diagnosis, own, delay)

    def policy_of_next(self, *, of_body: bool) -> RetryPolicy:
        """The policy that decides about the next failure."""
        task: Any = self._task
        return policy_of_next(
            self._policy,
            retries=task.retries,
            delays_seconds=task.retry_delay_seconds,
            granted=self._granted,
            of_body=of_body,
        )

    def grants(self, failure: DecidedFailure | None) -> bool:
        """Whether there is a retry to be had after that failure, before the task's own condition.

        Args:
            failure: Of the last attempt; `None` if the body ran in the flow's own process.
        """
        if self._is_theirs(failure):
            return self._granted < self._task.retries
        return failure is not None and isinstance(failure.decision, Retry)

    def _is_theirs(self, failure: DecidedFailure | None) -> bool:
        return failure is None or (failure.of_body and self._task.retries > 0)

    def answer(
        self,
        failure: DecidedFailure | None,
        engine_task: Task[..., Any],
        task_run: TaskRun,
        state: State[Any],
    ) -> Any:
        """What the engine's retry condition says after a failure.

        Args:
            failure: Of the last attempt; `None` if the body ran in the flow's own process.
            engine_task: The copy that the engine runs: its delay and its number of retries are set.
            task_run: For the task's own condition, as is `state`.
            state: The one that the engine would end with.
        """
        said = self._task.retries > 0
        decision = failure.decision if failure is not None else None
        delay: Any = self._task.retry_delay_seconds
        jitter = self._task.retry_jitter_factor
        theirs, granted = self._is_theirs(failure), self.grants(failure)
        if not theirs and isinstance(decision, Retry) and not (said and delay):
            delay, jitter = decision.delay_seconds, None
        condition = self._task.retry_condition_fn
        answer: Any = granted and (condition is None or condition(self._task, task_run, state))
        if not answer:
            # The engine says that retries are exhausted, or that there were none.
            engine_task.retries = self._granted
            return False
        if isinstance(delay, list):
            delay = delay[min(self._granted, len(delay) - 1)] if delay else 0
        engine_task.timeout_seconds = None
        engine_task.retry_delay_seconds = delay
        engine_task.retry_jitter_factor = jitter
        counts = theirs or (isinstance(decision, Retry) and decision.counts_as == "retry")
        self._granted += 1
        self._counted += counts
        engine_task.retries = self._shown_retries(counts=counts)
        return answer

    def _shown_retries(self, *, counts: bool) -> int:
        """What the engine's log shows as the number of retries."""
        if self._task.retries > 0:
            return self._task.retries
        policy = self._policy
        allowed = policy.max_retries if counts else policy.infrastructure_retries
        if UNLIMITED in (policy.max_retries, allowed):
            return WITHOUT_END
        used_apart = self._granted - self._counted
        return allowed + (used_apart if counts else self._counted)
