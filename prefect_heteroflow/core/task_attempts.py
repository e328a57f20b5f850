"""The attempts of one task run inside a flow, as rows of its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from prefect_heteroflow.core.attempts import Attempt, from_row, to_row


class ErrorType(str, Enum):
    """Who failed: the body of the task, or what it ran on. The values are never renamed."""

    TASK_EXECUTION_EXCEPTION = "TASK_EXECUTION_EXCEPTION"
    WORKER_DIED = "WORKER_DIED"
    TASK_NOT_PORTABLE = "TASK_NOT_PORTABLE"
    """Arguments, value or body could not be sent between processes."""
    TASK_TIMED_OUT = "TASK_TIMED_OUT"
    TASK_REQUIREMENTS_REFUSED = "TASK_REQUIREMENTS_REFUSED"
    """What the task requires cannot be used: a value of `requires` is above a limit."""
    NO_PLACE = "NO_PLACE"
    """No node has what the task requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One attempt of a task run."""

    task_run_id: str
    name: str
    """Name of the task run."""
    row: Attempt
    error_type: str | None = None
    """An `ErrorType` value; `None` while it runs and after success."""


def to_task_row(attempt: TaskAttempt) -> dict[str, object]:
    """The attempt as one row of its history table: that of a run, and three columns more."""
    return {
        **to_row(attempt.row),
        "error_type": attempt.error_type,
        "name": attempt.name,
        "task_run_id": attempt.task_run_id,
    }


def from_task_row(row: Mapping[str, object]) -> TaskAttempt:
    """The attempt that `to_task_row` wrote.

    Raises:
        ValueError: It is no such row; the text names what is wrong.
    """
    texts = {name: row.get(name) for name in ("task_run_id", "name", "error_type")}
    for name, value in texts.items():
        if not isinstance(value, str) and not (name == "error_type" and value is None):
            raise ValueError(f"{name} {value!r}: allowed is text")
    error_type = texts["error_type"]
    return TaskAttempt(
        task_run_id=str(texts["task_run_id"]),
        name=str(texts["name"]),
        row=from_row(row),
        error_type=None if error_type is None else str(error_type),
    )


def attempts_report(flow_run_id: str, attempts: Iterable[TaskAttempt]) -> dict[str, object]:
    """What `heteroflow attempts FLOW_RUN --json` prints."""
    return {"flow_run_id": flow_run_id, "attempts": [_entry(attempt) for attempt in attempts]}


def _entry(attempt: TaskAttempt) -> dict[str, object]:
    row = attempt.row
    return {
        "task_run_id": attempt.task_run_id,
        "attempt": row.attempt,
        "name": attempt.name,
        "state": row.status.value,
        "node": row.node,
        "error_type": attempt.error_type,
        "failure": row.failure,
        "reason": row.reason,
        "decision": row.decision,
        "memory_mb": row.memory_mb,
        "started": row.started,
        "ended": row.ended,
    }
