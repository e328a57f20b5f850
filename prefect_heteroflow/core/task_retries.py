"""What a task says itself (`retries`, `retry_delay_seconds`) over what the policy decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefect_heteroflow.core.policy import Decision, Ending, RetryPolicy, Stop
from prefect_heteroflow.core.resources import Resources


def policy_of_next(
    policy: RetryPolicy,
    *,
    retries: int,
    delays_seconds: float | Sequence[float] | None,
    granted: int,
    of_body: bool = False,
) -> RetryPolicy:
    """The policy with the task's own delay before the next retry, if it has one.

    Args:
        policy: That of the rules.
        retries: `retries` of the task; 0 says nothing, and then its delays say nothing either.
        delays_seconds: `retry_delay_seconds` of the task: one for all retries, or one for each, the
            last of them for all that follow.
        granted: Retries that it has had.
        of_body: An exception of the body failed, which Prefect's engine retries: without a delay of
            the task it does so at once.
    """
    if retries <= 0 or not (delays_seconds or of_body):
        return policy
    if not delays_seconds:
        delays_seconds = 0.0
    elif isinstance(delays_seconds, Sequence):
        delays_seconds = delays_seconds[min(granted, len(delays_seconds) - 1)]
    return replace(
        policy,
        retry_delay=float(delays_seconds),
        max_retry_delay=max(float(delays_seconds), policy.max_retry_delay),
        backoff_multiplier=1.0,
        retry_jitter=0.0,  # Prefect's engine adds the task's own
        escalation_delay=None,
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
