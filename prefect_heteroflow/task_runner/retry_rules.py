"""How the tasks of one runner are retried: settings, options of the runner, and `requires`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.job_values import parse_job_values
from prefect_heteroflow.core.policy import RetryPolicy
from prefect_heteroflow.core.ranges import MIN_MEMORY_MB
from prefect_heteroflow.core.resources import DEFAULT_MEMORY_MB, Resources
from prefect_heteroflow.core.task_requirements import Requirements
from prefect_heteroflow.core.user_rules import UserRule, combine_user_rules

_WAY_OUT = "Correct what the task says (`requires`, `retries`), or the settings, and run it again."


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
            evidence,
            user_rules=self.user_rules,
            retry_exceptions=self.retry_exceptions,
            trusts_messages=False,
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
    home_memory_mb: int,
) -> RetryRules:
    """The rules of one task run.

    Args:
        requirements: What is said about the task.
        defaults: The settings, by name.
        file_rules: Rules of the user from a file.
        task_retries: `retries` of the task itself; if it has some, they count as `max_retries`.
        home_memory_mb: What the flow run may use, MiB; a task that asks for nothing gets no more.

    Raises:
        JobValueError: A value cannot be used; the text names it.
    """
    values = requirements.job_values()
    if task_retries > 0:
        values["max_retries"] = task_retries
    if requirements.memory_mb is None:
        values["memory_mb"] = max(MIN_MEMORY_MB, min(DEFAULT_MEMORY_MB, home_memory_mb))
    parsed = parse_job_values(values, defaults, way_out=_WAY_OUT)
    return RetryRules(
        policy=parsed.policy,
        resources=parsed.resources,
        user_rules=combine_user_rules(parsed.retry_on, parsed.stop_on, file_rules),
        retry_exceptions=parsed.retry_exceptions,
    )
