"""What a worker tells an attempt, and what the attempt's engine entry tells back.

Environment variables tell the user's code what it has. A context file tells the engine entry
what it needs for its own decision, and the entry leaves a report file. Both files are JSON, so
that they can be written into a container and read out of a dead one.

Standard library and `core` only: this module is copied into containers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prefect_heteroflow.core.attempts import Attempt, from_row, to_row
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, MemoryFigures
from prefect_heteroflow.core.policy import RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Resources

TASK_ID = "HETEROFLOW_TASK_ID"
ATTEMPT = "HETEROFLOW_ATTEMPT"
NODE = "HETEROFLOW_NODE"
MEMORY_MB = "HETEROFLOW_MEMORY_MB"
GPU_MEMORY_MB = "HETEROFLOW_GPU_MEMORY_MB"
PREVIOUS_FAILURE = "HETEROFLOW_PREVIOUS_FAILURE"
SCRATCH = "HETEROFLOW_SCRATCH"
CONTEXT_FILE = "HETEROFLOW_CONTEXT_FILE"
REPORT_FILE = "HETEROFLOW_REPORT_FILE"


def attempt_variables(
    *,
    task_id: str,
    attempt: int,
    node: str,
    resources: Resources,
    gpu_memory_mb: int | None,
    previous_failure: str | None,
    scratch: str | None = None,
) -> dict[str, str]:
    """Environment variables of one attempt; what is not known is left out."""
    values: dict[str, str | None] = {
        TASK_ID: task_id,
        ATTEMPT: str(attempt),
        NODE: node,
        MEMORY_MB: str(resources.memory_mb),
        GPU_MEMORY_MB: None if gpu_memory_mb is None else str(gpu_memory_mb),
        PREVIOUS_FAILURE: previous_failure,
        SCRATCH: scratch,
    }
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What the decision about an attempt depends on, besides its diagnosis and the cluster."""

    policy: RetryPolicy
    resources: Resources
    pool: str
    node: str
    history: tuple[Attempt, ...] = ()
    """The earlier attempts of the task."""
    gpu_memory_mb: int | None = None
    """Memory of the GPU that the attempt was given, MiB."""
    containers: bool = True
    retry_on: tuple[Any, ...] = ()
    stop_on: tuple[Any, ...] = ()
    retry_exceptions: bool | tuple[str, ...] = False
    liveness_seconds: float = 90.0
    given_delays: Mapping[str, float] = field(default_factory=dict)
    """The `DELAY_NAMES` that job variables of the run gave: they hold for its tasks too."""

    def to_json(self) -> str:
        """The context as JSON text."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["policy"] = asdict(self.policy)
        values["resources"] = asdict(self.resources)
        values["history"] = [to_row(attempt) for attempt in self.history]
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> AttemptContext:
        """The context that `to_json` wrote."""
        values = json.loads(text)
        policy = values.pop("policy")
        policy["retry_strategy"] = RetryStrategy(policy["retry_strategy"])
        exceptions = values.pop("retry_exceptions")
        return cls(
            policy=RetryPolicy(**policy),
            resources=Resources(**values.pop("resources")),
            history=tuple(from_row(row) for row in values.pop("history")),
            retry_on=tuple(values.pop("retry_on")),
            stop_on=tuple(values.pop("stop_on")),
            retry_exceptions=exceptions if isinstance(exceptions, bool) else tuple(exceptions),
            **values,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What the engine entry saw before its process ended."""

    diagnosis: Diagnosis | None = None
    """Of the exception that the flow raised."""
    aborted: bool = False
    """The entry left the run `Running`, for the worker to retry it."""
    signal: int | None = None
    """The entry was asked to end by this signal."""
    phase: str | None = None
    """`load` when the flow could not be loaded."""
    state_message: str | None = field(default=None)
    """The message that Prefect itself would have put on the failed state."""


def report_to_json(report: EngineReport) -> str:
    """The report as JSON text."""
    return json.dumps(asdict(report))


def report_from_json(text: str) -> EngineReport:
    """The report that `report_to_json` wrote.

    Raises:
        ValueError: The text is not such a report.
    """
    try:
        values = json.loads(text)
        diagnosis = values.pop("diagnosis", None)
        return EngineReport(
            diagnosis=None if diagnosis is None else _diagnosis(diagnosis), **values
        )
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not an engine report: {error}") from error


def _diagnosis(values: Mapping[str, Any]) -> Diagnosis:
    known = {name: values[name] for name in Diagnosis.__dataclass_fields__ if name in values}
    known["failure"] = FailureClass(known["failure"])
    if known.get("figures") is not None:
        known["figures"] = MemoryFigures(**known["figures"])
    if known.get("runner_up") is not None:
        known["runner_up"] = FailureClass(known["runner_up"])
    return Diagnosis(**{name: _tupled(value) for name, value in known.items()})


def _tupled(value: Any) -> Any:
    """JSON knows no tuples; the frozen values hold nothing but tuples."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | tuple)
    return tuple(value) if is_list else value
