"""How the tasks of one runner are retried: settings, options of the runner, and `requires`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.job_values import parse_job_values
from prefect_heteroflow.core.policy import Decision, Ending, Retry, RetryPolicy, Stop
from prefect_heteroflow.core.ranges import MIN_MEMORY_MB
from prefect_heteroflow.core.resources import DEFAULT_MEMORY_MB, Resources
from prefect_heteroflow.core.task_requirements import Requirements
from prefect_heteroflow.core.user_rules import UserRule, combine_user_rules

if TYPE_CHECKING:
    from prefect import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """What counts for one task run."""

    policy: RetryPolicy
    resources: Resources
    """Of the first attempt."""
    user_rules: tuple[UserRule, ...]
    retry_exceptions: bool | tuple[str, ...]

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        """Why an attempt failed that is known to have failed."""
        found = diagnose(
            evidence, user_rules=self.user_rules, retry_exceptions=self.retry_exceptions
        )
        if found is not None:
            return found
        return Diagnosis(
            failure=FailureClass.UNKNOWN_ERROR,
            rule="left-without-answer",
            reason=f"The child process left with exit code {evidence.exit_code} before the body"
            " was done.",
            confidence=0.5,
        )


def retry_rules(
    requirements: Requirements,
    defaults: Mapping[str, Any],
    file_rules: Sequence[UserRule],
    *,
    task_retries: int,
    node_memory_mb: int,
) -> RetryRules:
    """The rules of one task run.

    Args:
        requirements: What is said about the task.
        defaults: The settings, by name.
        file_rules: Rules of the user from a file.
        task_retries: `retries` of the task itself; if it has some, they count as `max_retries`.
        node_memory_mb: What this node has, MiB; a task that asks for nothing gets no more.

    Raises:
        JobValueError: A value cannot be used; the text names it.
    """
    values = requirements.job_values()
    if task_retries > 0:
        values["max_retries"] = task_retries
    if requirements.memory_mb is None:
        values["memory_mb"] = max(MIN_MEMORY_MB, min(DEFAULT_MEMORY_MB, node_memory_mb))
    parsed = parse_job_values(values, defaults)
    return RetryRules(
        policy=parsed.policy,
        resources=parsed.resources,
        user_rules=combine_user_rules(parsed.retry_on, parsed.stop_on, file_rules),
        retry_exceptions=parsed.retry_exceptions,
    )


def policy_of_next(policy: RetryPolicy, task: Task[..., Any], granted: int) -> RetryPolicy:
    """The policy with the delay of the task itself, `retry_delay_seconds`, if it has one.

    Args:
        policy: That of the rules.
        task: The user's task.
        granted: Retries that it has had.
    """
    delays: Any = task.retry_delay_seconds
    if task.retries <= 0 or not delays:
        return policy
    if isinstance(delays, list):
        delays = delays[min(granted, len(delays) - 1)]
    return replace(
        policy,
        retry_delay=float(delays),
        max_retry_delay=max(float(delays), policy.max_retry_delay),
        backoff_multiplier=1.0,
        retry_jitter=0.0,  # the engine adds the task's own
        escalation_delay=None,
    )


def within_retries(
    decision: Decision, diagnosis: Diagnosis, task: Task[..., Any], granted: int
) -> Decision:
    """`retries` of the task itself bounds all of them, whatever budget they come from.

    Args:
        decision: What the policy would have.
        diagnosis: Why the attempt failed.
        task: The user's task.
        granted: Retries that it has had.
    """
    if task.retries <= 0 or granted < task.retries or not isinstance(decision, Retry):
        return decision
    return Stop(
        ending=Ending.CRASHED if decision.counts_as == "infrastructure" else Ending.FAILED,
        reason=f"{diagnosis.reason}; all {task.retries} retries of the task are used",
    )


def is_cramped(decision: Decision, resources: Resources, policy: RetryPolicy) -> bool:
    """Whether another node may give more than what this one alone could: it is worth asking.

    Args:
        decision: What follows if this node is all there is.
        resources: Of the attempt that failed for want of more.
        policy: That of the rules.
    """
    if isinstance(decision, Stop):
        return decision.ending is Ending.PERMANENT_FAILURE
    wanted_mb = min(2 * resources.memory_mb, policy.oom_memory_limit)
    return resources.memory_mb < decision.resources.memory_mb < wanted_mb
