"""What follows a failed attempt: `Retry` or `Stop`, as a value with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_heteroflow.core.actions import (
    Action,
    action_for,
    ending_when_spent,
    ending_without_retry,
)
from prefect_heteroflow.core.attempts import (
    COUNTED_APART,
    Attempt,
    infrastructure_retries_used,
    retries_used,
)
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, FailureGroup
from prefect_heteroflow.core.planning import plan_next
from prefect_heteroflow.core.policy import (
    UNLIMITED,
    BudgetName,
    Decision,
    Ending,
    OwnRetries,
    Retry,
    RetryPolicy,
    RetryStrategy,
    Stop,
    delay_seconds,
)
from prefect_heteroflow.core.resources import Cluster, Resources
from prefect_heteroflow.core.situation import DeadEnd, Plan, Situation


def decide(
    diagnosis: Diagnosis,
    *,
    policy: RetryPolicy,
    resources: Resources,
    pool: str,
    node: str | None,
    history: Sequence[Attempt],
    cluster: Cluster,
    jitter_fraction: float,
    never_started: bool = False,
    gpu_memory_mb: int | None = None,
    containers: bool | None = None,
    own_retries: OwnRetries | None = None,
    same_size: bool = False,
) -> Decision:
    """What follows the failed attempt.

    The checks come in this order, and the first that stops gives the message: cancelled, a rule
    of the user that stops, a permanent class, retries off (`no_retry` or `max_retries` 0), the
    memory cap or no place that is large enough, the budget. The budget comes last because a
    larger one would not help a job that fits nowhere.

    Args:
        diagnosis: Why the attempt failed.
        policy: How the task is retried.
        resources: What the failed attempt had; growth starts from it.
        pool: Pool of the failed attempt.
        node: Node of the failed attempt, `None` if unknown.
        history: The attempts before the failed one, in any order.
        cluster: Nodes and pools that are known; an empty one means that nothing is known.
        jitter_fraction: Random number from 0 to 1, drawn by the caller.
        never_started: The failed attempt's process never ran.
        gpu_memory_mb: Total memory of the GPU that the attempt used, MiB; `None` takes it from
            the figures of the diagnosis, the node, or the request.
        containers: `True` for an attempt that needs a container, `False` for a process, `None`
            if it may run anywhere.
        own_retries: Of a task that says how often it is retried at most.

        same_size: More would not help in these places: the same attempt follows in the same one.

    Raises:
        ValueError: `jitter_fraction` is not between 0 and 1.
    """
    refusal = _refusal(diagnosis, policy)
    if refusal is not None:
        return refusal
    situation = Situation(
        diagnosis=diagnosis,
        policy=policy,
        resources=resources,
        pool=pool,
        node=node,
        history=history,
        cluster=cluster,
        gpu_memory_mb=gpu_memory_mb,
        containers=containers,
    )
    action = Action.AGAIN if same_size else action_for(diagnosis, policy.retry_strategy)
    plan = plan_next(action, situation)
    if isinstance(plan, DeadEnd):
        return Stop(ending=Ending.PERMANENT_FAILURE, reason=f"{_head(diagnosis)}: {plan.reason}")
    budget = _budget(diagnosis.failure, policy, history, never_started)
    if own_retries is not None:
        budget = replace(budget, own=own_retries)
    if budget.spent:
        reason = f"{_cause(diagnosis)}; {budget.spent_text}"
        return Stop(ending=ending_when_spent(diagnosis.failure), reason=reason)
    return _retry(plan, diagnosis, policy, budget, jitter_fraction)


def without_deployment(decision: Decision, diagnosis: Diagnosis) -> Decision:
    """What becomes of a decision when the run has no deployment: it cannot be run again.

    Args:
        decision: What would follow if there were one.
        diagnosis: Why the attempt failed.
    """
    if isinstance(decision, Stop):
        return decision
    ending = Ending.CRASHED if decision.counts_as == "infrastructure" else Ending.FAILED
    return Stop(
        ending=ending,
        reason=f"{diagnosis.reason} A run without a deployment cannot be run again.",
    )


def told_with_own_retries(
    decision: Decision, diagnosis: Diagnosis, own: OwnRetries, delay: float
) -> Decision:
    """The decision with what truly follows as its reason, after an exception of a task's body.

    Prefect's engine retries it as often as the task says, whatever the policy would do.

    Args:
        decision: The policy's.
        diagnosis: Why the attempt failed.
        own: What the task says.
        delay: Seconds that the engine waits before the next retry.
    """
    if isinstance(decision, Retry):
        return decision  # it is bounded and delayed by the same figures
    follows = own.spent_text
    if own.used < own.allowed:
        follows = f"the task's own retries: {own.next_text} in {_seconds(delay)}"
    return replace(decision, reason=f"{_cause(diagnosis)}; {follows}")


def why_no_retry(
    diagnosis: Diagnosis, policy: RetryPolicy, history: Sequence[Attempt]
) -> str | None:
    """Why an exception that the user wants to be retried is not; `None` for all others.

    For a flow that ended by its own exception, of which nothing was left to decide.

    Args:
        diagnosis: Why the attempt failed.
        policy: How the task is retried.
        history: The attempts before the failed one.
    """
    if diagnosis.verdict != "retry":
        return None
    if (off := _retries_off(policy)) is not None:
        return off
    budget = _budget(diagnosis.failure, policy, history, never_started=False)
    return budget.spent_text if budget.spent else None


def _retries_off(policy: RetryPolicy) -> str | None:
    if policy.retry_strategy is RetryStrategy.NO_RETRY:
        return "retries are off (retry_strategy no_retry)"
    return "retries are off (max_retries 0)" if policy.max_retries == 0 else None


def _refusal(diagnosis: Diagnosis, policy: RetryPolicy) -> Stop | None:
    """The stop that needs no look at nodes, history and numbers."""
    failure, cause = diagnosis.failure, _cause(diagnosis)
    if failure is FailureClass.TASK_CANCELLED:
        return Stop(ending=Ending.CANCELLED, reason=f"{cause}; never retried")
    if diagnosis.verdict == "stop":
        reason = f"{cause}; not retried, as the rule wants it"
        return Stop(ending=Ending.PERMANENT_FAILURE, reason=reason)
    ending = ending_without_retry(failure)
    if failure.group is FailureGroup.PERMANENT and diagnosis.verdict is None:
        return Stop(ending=ending, reason=f"{cause}; not retried, it would fail again")
    off = _retries_off(policy)
    return None if off is None else Stop(ending=ending, reason=f"{cause}; {off}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    name: BudgetName
    used: int
    allowed: int
    """`UNLIMITED` for no end."""
    own: OwnRetries | None = None

    @property
    def spent(self) -> bool:
        if self._tighter is not None:
            return self._tighter.used >= self._tighter.allowed
        return self.allowed != UNLIMITED and self.used >= self.allowed

    @property
    def _tighter(self) -> OwnRetries | None:
        """The bound of the task itself, unless this budget leaves even less."""
        if self.own is None or self.allowed == UNLIMITED:
            return self.own
        left = self.own.allowed - self.own.used
        return self.own if left <= self.allowed - self.used else None

    @property
    def setting(self) -> str:
        return "max_retries" if self.name == "retry" else "infrastructure_retries"

    @property
    def spent_text(self) -> str:
        if self._tighter is not None:
            return self._tighter.spent_text
        if self.allowed == 1:
            return f"the only retry of {self.setting} is used"
        return f"all {self.allowed} retries of {self.setting} are used"

    @property
    def next_text(self) -> str:
        kind = "" if self.name == "retry" else "infrastructure "
        if self._tighter is not None:
            return f"{kind}{self._tighter.next_text}"
        limit = "(no limit)" if self.allowed == UNLIMITED else f"of {self.allowed}"
        return f"{kind}retry {self.used + 1} {limit}"


def _budget(
    failure: FailureClass, policy: RetryPolicy, history: Sequence[Attempt], never_started: bool
) -> _Budget:
    unlimited = policy.max_retries == UNLIMITED  # never gives up: that holds for lost nodes too
    if never_started or failure in COUNTED_APART:
        return _Budget(
            name="infrastructure",
            used=infrastructure_retries_used(history),
            allowed=UNLIMITED if unlimited else policy.infrastructure_retries,
        )
    return _Budget(name="retry", used=retries_used(history), allowed=policy.max_retries)


def _retry(
    plan: Plan,
    diagnosis: Diagnosis,
    policy: RetryPolicy,
    budget: _Budget,
    jitter_fraction: float,
) -> Retry:
    delay = delay_seconds(policy, budget.used + 1, jitter_fraction)
    if plan.escalates and policy.escalation_delay is not None:
        delay = policy.escalation_delay
    return Retry(
        resources=plan.resources,
        place=plan.place,
        delay_seconds=delay,
        reason=f"{_head(diagnosis)}: {plan.change}, {budget.next_text} in {_seconds(delay)}",
        counts_as=budget.name,
    )


def _head(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.failure.value} ({diagnosis.rule})"


def _cause(diagnosis: Diagnosis) -> str:
    return f"{_head(diagnosis)}: {diagnosis.reason.rstrip('. ')}"


def _seconds(delay: float) -> str:
    return f"{round(delay, 1):.10g} s"
