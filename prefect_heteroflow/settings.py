"""Settings of prefect-heteroflow, read the way Prefect reads its own.

Each setting is an environment variable `PREFECT_INTEGRATIONS_HETEROFLOW_<NAME>`, or a key of
`[integrations.heteroflow]` in `prefect.toml` (`[tool.prefect.integrations.heteroflow]` in
`pyproject.toml`). `prefect config set` does not know the settings of integrations.
"""

from __future__ import annotations

import json
from typing import Any

from prefect.settings.base import PrefectBaseSettings, build_settings_config
from pydantic import Field, ValidationError, ValidationInfo, field_validator

from prefect_heteroflow.core.breaker import MAX_RESTARTS, UNLIMITED, BreakerPolicy
from prefect_heteroflow.core.job_values import POLICY_NAMES, default_problem
from prefect_heteroflow.core.ranges import MAX_ATTEMPTS, MAX_DELAY_SECONDS, MAX_MEMORY_MB


class HeteroflowSettings(PrefectBaseSettings):
    """Defaults of the retry policy and what a worker says of its node.

    Retry settings are defaults: a deployment or a run overrides each by the job variable of the
    same name.
    """

    model_config = build_settings_config(("integrations", "heteroflow"))

    retry_strategy: str = Field(
        default="retry_new_node",
        description="Where a retry may run: retry_new_node, retry_same_node or no_retry.",
    )
    max_retries: int = Field(
        default=3, description="Retries after the first attempt; -1 never gives up, 0 is off."
    )
    infrastructure_retries: int = Field(
        default=3,
        description=(
            "Separate budget for attempts that never started and for lost or preempted nodes."
        ),
    )
    retry_delay: float = Field(default=30.0, description="Seconds before the first retry.")
    backoff_multiplier: float = Field(
        default=2.0, description="Factor from one delay to the next, at least 1."
    )
    max_retry_delay: float = Field(default=300.0, description="Largest delay in seconds.")
    retry_jitter: float = Field(default=5.0, description="Largest random addition in seconds.")
    escalation_delay: float | None = Field(
        default=None,
        description=(
            "Seconds before a retry with more memory or a bigger GPU; unset means the delay of"
            " any other retry."
        ),
    )
    oom_memory_limit: int = Field(
        default=16384, description="Largest memory_mb that growth may reach, in MB (MiB)."
    )
    retry_on: list[Any] | str | None = Field(
        default=None,
        description="Rules of your own that make a failure retryable: literals or /regex/.",
    )
    stop_on: list[Any] | str | None = Field(
        default=None, description="Rules of your own that stop a run: literals or /regex/."
    )
    retry_exceptions: bool | list[str] | str = Field(
        default=False,
        description="Whether application exceptions are retried: false, true, or type names.",
    )
    cleanup_patterns: list[Any] | str | None = Field(
        default=None,
        description=(
            "Files of an attempt's scratch folder that go before a retry on the same node. Unset"
            " means `*.lock`, `*.lck`, `lock` and `nccl-*`; an empty text means none."
        ),
    )
    cleanup_hook: str | None = Field(
        default=None,
        description=(
            "Command, or package.module.function, that runs before a retry on the same node. Empty"
            " means none."
        ),
    )
    cleanup_hook_timeout: float = Field(
        default=60.0,
        gt=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="Seconds after which a cleanup hook is ended; the retry starts all the same.",
    )
    rules_file: str | None = Field(
        default=None, description="Path of a YAML file with rules of your own."
    )
    node_name: str | None = Field(
        default=None, description="Name of this node; unset means the host's name."
    )
    node_memory_mb: int | None = Field(
        default=None,
        le=MAX_MEMORY_MB,
        description="Memory of this node in MB (MiB), instead of what is probed.",
    )
    node_gpus: str | None = Field(
        default=None,
        description=(
            "GPUs of this node in MB (MiB) of memory each, instead of what NVML says:"
            " '8192', '24576,24576', '2x24576', or 'none'."
        ),
    )
    node_liveness_seconds: float = Field(
        default=90.0,
        gt=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="A node whose worker was not heard of for so many seconds is not routed to.",
    )

    placement_grace_seconds: float = Field(
        default=30.0,
        ge=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description=(
            "Seconds for which the other nodes of a pool leave a retry to the node that it prefers."
        ),
    )
    cancel_grace_seconds: float = Field(
        default=30.0,
        ge=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="Seconds between SIGTERM and SIGKILL when a run is cancelled.",
    )
    breaker_max_restarts: int = Field(
        default=2,
        ge=UNLIMITED,
        le=MAX_RESTARTS,
        description=(
            "Restarts of one deployment for one failure class within breaker_window; one more"
            " opens its circuit breaker. -1 is off."
        ),
    )
    breaker_window: float = Field(
        default=600.0,
        gt=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="Seconds over which restarts are counted.",
    )
    breaker_cooldown: float = Field(
        default=300.0,
        ge=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="Seconds after which an open breaker lets one run through as a trial.",
    )
    breaker_trial_timeout: float = Field(
        default=600.0,
        gt=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description="Seconds after which a trial that has not ended gives way to another.",
    )

    lost_contact_timeout: float = Field(
        default=600.0,
        gt=0,
        le=MAX_DELAY_SECONDS,
        allow_inf_nan=False,
        description=(
            "Seconds of unbroken silence after which an attempt counts as NodeLost. An outage of"
            " the Prefect API or of the way to the Docker engine does not count."
        ),
    )

    no_progress_limit: int = Field(
        default=3,
        ge=0,
        le=MAX_ATTEMPTS,
        description=(
            "Attempts in a row that may end at the same point of their progress before the run is"
            " stopped; 0 is off."
        ),
    )

    @field_validator(*POLICY_NAMES)
    @classmethod
    def _is_allowed(cls, value: Any, info: ValidationInfo) -> Any:
        """Refused here, for else every run of a worker would be refused one by one."""
        problem = default_problem(str(info.field_name), value)
        if problem is not None:
            raise ValueError(problem)
        return value

    def as_environment(self) -> dict[str, str]:
        """What was set, wherever it was set, as the environment variables of another process."""
        given = self.model_dump(mode="json", include=self.model_fields_set, exclude_none=True)
        return {
            f"PREFECT_INTEGRATIONS_HETEROFLOW_{name.upper()}": (
                value if isinstance(value, str) else json.dumps(value)
            )
            for name, value in given.items()
        }

    @property
    def breaker_policy(self) -> BreakerPolicy:
        """The breaker's settings as `core` takes them."""
        return BreakerPolicy(
            max_restarts=self.breaker_max_restarts,
            window_seconds=self.breaker_window,
            cooldown_seconds=self.breaker_cooldown,
            trial_timeout_seconds=self.breaker_trial_timeout,
        )


def settings_problem(error: ValidationError) -> str:
    """What is wrong with a setting: its variable, the value, and what is allowed."""
    problems = []
    for found in error.errors():
        name = str(found["loc"][0]).upper() if found["loc"] else "?"
        problems.append(
            f"PREFECT_INTEGRATIONS_HETEROFLOW_{name} is {found['input']!r}:"
            f" {found['msg'].removeprefix('Value error, ')}."
        )
    return f"{' '.join(problems)} Correct it in the environment or in prefect.toml."
