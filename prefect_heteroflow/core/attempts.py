"""One row per attempt, and what the rows of a task say about its budgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from prefect_heteroflow.core.endings import what_followed
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.valid_text import storable

COUNTED_APART: frozenset[FailureClass] = frozenset({FailureClass.NODE_LOST, FailureClass.PREEMPTED})
"""Classes that use up `infrastructure_retries`, as attempts that never started do."""


class AttemptStatus(str, Enum):
    """How one attempt stands."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    """The flow paused itself; not a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of the attempt history. Times are ISO 8601 in UTC; sizes are MiB."""

    attempt: int
    """1 for the first."""
    flow_run_id: str
    """The flow run that carried this attempt: the front run or an attempt run.

    Empty while it is planned on another pool and its run does not exist yet.
    """
    status: AttemptStatus
    pool: str | None = None
    node: str | None = None
    failure: str | None = None
    """A `FailureClass` value, or `None` while it runs and after success."""
    rule: str | None = None
    reason: str | None = None
    """Why it failed, one sentence."""
    decision: str | None = None
    """What was decided and why, one sentence."""
    memory_mb: int | None = None
    shm_mb: int | None = None
    gpu_count: int | None = None
    gpu_memory_mb: int | None = None
    peak_memory_mb: int | None = None
    exit_code: int | None = None
    """As `exit_status` gives it."""
    started: str | None = None
    ended: str | None = None
    log: str | None = None
    """Where its output can be found."""
    progress: str | None = None
    """Where it was when it ended, as it said itself (`core.progress`)."""
    cleanup: str | None = None
    """What was cleaned up on its node before it started, as a sentence (`core.cleanup`)."""
    ending: str | None = None
    """Name of the state in which the task was to end with this attempt (`core.policy.Ending`)."""
    ended_task: bool = False
    """The task ended with this attempt; a later row means that a person ran it again."""
    never_started: bool = False
    """The attempt's process never ran (an engine error at start, a node lost before it)."""


_OF_SIGNALS = 128
_LARGEST_SIGNAL = 64

# The first fourteen are what a person looks for; the order is the order on the run's page.
COLUMNS: tuple[str, ...] = (
    *("attempt", "pool", "node", "status", "failure", "reason", "decision"),
    *("memory_mb", "gpu_memory_mb", "peak_memory_mb", "exit_code", "started", "ended", "log"),
    *("flow_run_id", "rule", "shm_mb", "gpu_count", "never_started", "ended_task", "ending"),
    *("progress", "cleanup"),
)

ERROR_TITLES: MappingProxyType[str, str] = MappingProxyType(
    {
        FailureClass.CPU_OUT_OF_MEMORY.value: "OOM Killed",
        FailureClass.GPU_OUT_OF_MEMORY.value: "CUDA Out of Memory",
        FailureClass.SHARED_MEMORY_EXHAUSTED.value: "Shared Memory Exhausted",
        FailureClass.NETWORK_TIMEOUT.value: "Network Timeout",
        FailureClass.TRANSIENT_ERROR.value: "Transient Error",
        FailureClass.CONTAINER_RUNTIME_ERROR.value: "Container Runtime Error",
        FailureClass.DISK_PRESSURE.value: "Disk Full",
        FailureClass.NODE_LOST.value: "Node Lost",
        FailureClass.PREEMPTED.value: "Preempted",
        FailureClass.GPU_HARDWARE_ERROR.value: "GPU Hardware Error",
        FailureClass.PROCESS_CRASHED.value: "Process Crashed",
        FailureClass.DISTRIBUTED_PEER_LOST.value: "Distributed Peer Lost",
        FailureClass.IMAGE_NOT_FOUND.value: "Image Not Found",
        FailureClass.IMAGE_PULL_BACK_OFF.value: "Image Pull Refused",
        FailureClass.PERMISSION_DENIED.value: "Permission Denied",
        FailureClass.INVALID_CONFIG.value: "Invalid Configuration",
        FailureClass.RESOURCE_LIMIT_EXCEEDED.value: "Resource Limit Exceeded",
        FailureClass.TASK_CANCELLED.value: "Cancelled",
        FailureClass.APPLICATION_ERROR.value: "Application Error",
        FailureClass.UNKNOWN_ERROR.value: "Unknown Error",
    }
)
"""Short names for people; the stable name is the class itself."""


def exit_status(exit_code: int | None, signal: int | None) -> int | None:
    """How a process ended, as one number: its exit code, or 128 and the signal that ended it.

    So do shells (POSIX, "Exit Status for Commands") and Docker; a row of a child process then reads
    like one of a container.
    """
    return exit_code if signal is None else _OF_SIGNALS + signal


def signal_in(status: int | None) -> int | None:
    """The signal that an `exit_status` stands for; `None` if it is an exit code or not known."""
    if status is None or not _OF_SIGNALS < status <= _OF_SIGNALS + _LARGEST_SIGNAL:
        return None
    return status - _OF_SIGNALS


def infrastructure_retries_used(history: Iterable[Attempt]) -> int:
    """How many of the failed attempts count against `infrastructure_retries`."""
    return sum(_failed(row) and _is_infrastructure(row) for row in history)


def retries_used(history: Iterable[Attempt]) -> int:
    """How many of the failed attempts count against `max_retries`."""
    return sum(_failed(row) and not _is_infrastructure(row) for row in history)


def _failed(row: Attempt) -> bool:
    return row.status is AttemptStatus.FAILED


def _is_infrastructure(row: Attempt) -> bool:
    return row.never_started or row.failure in {failure.value for failure in COUNTED_APART}


def to_row(attempt: Attempt) -> dict[str, object]:
    """The attempt as one row of the history table, in the order of its columns."""
    return {name: _plain(getattr(attempt, name)) for name in COLUMNS}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return storable(value) if isinstance(value, str) else value


def from_row(row: Mapping[str, object]) -> Attempt:
    """The attempt of one row of the history table.

    Keys that are unknown are ignored and missing ones are `None`, so that rows of an older and
    of a newer version can be read.

    Raises:
        ValueError: The row has no `attempt`, `flow_run_id` or `status`, or a value of the wrong
            kind; the text names it.
    """
    try:
        status = AttemptStatus(row.get("status"))
    except ValueError:
        allowed = ", ".join(status.value for status in AttemptStatus)
        raise ValueError(f"status {row.get('status')!r}: allowed is one of {allowed}") from None
    number, flow_run_id = _whole(row, "attempt"), _text(row, "flow_run_id")
    if number is None or number < 1:
        raise ValueError(f"attempt {number!r}: allowed is a whole number, 1 or more")
    if flow_run_id is None or (not flow_run_id and status is not AttemptStatus.SCHEDULED):
        raise ValueError(f"flow_run_id {flow_run_id!r}: a row needs one")
    claims = {name: row.get(name) for name in ("never_started", "ended_task")}
    for name, claim in claims.items():
        if claim not in (True, False, None):
            raise ValueError(f"{name} {claim!r}: allowed is true or false")
    return Attempt(
        attempt=number,
        flow_run_id=flow_run_id,
        status=status,
        pool=_text(row, "pool"),
        node=_text(row, "node"),
        failure=_text(row, "failure"),
        rule=_text(row, "rule"),
        reason=_text(row, "reason"),
        decision=_text(row, "decision"),
        memory_mb=_whole(row, "memory_mb"),
        shm_mb=_whole(row, "shm_mb"),
        gpu_count=_whole(row, "gpu_count"),
        gpu_memory_mb=_whole(row, "gpu_memory_mb"),
        peak_memory_mb=_whole(row, "peak_memory_mb"),
        exit_code=_whole(row, "exit_code"),
        started=_text(row, "started"),
        ended=_text(row, "ended"),
        log=_text(row, "log"),
        never_started=bool(claims["never_started"]),
        progress=_text(row, "progress"),
        cleanup=_text(row, "cleanup"),
        ended_task=bool(claims["ended_task"]),
        ending=_text(row, "ending"),
    )


def _whole(row: Mapping[str, object], name: str) -> int | None:
    value = row.get(name)
    if isinstance(value, float) and value.is_integer():  # JSON of other writers: 4096.0
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} {value!r}: allowed is a whole number or nothing")


def _text(row: Mapping[str, object], name: str) -> str | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return storable(value)
    raise ValueError(f"{name} {value!r}: allowed is text or nothing")


def error_title(failure: str | None) -> str | None:
    """A short name of the failure for people; a class that is not known is its own name."""
    return None if failure is None else ERROR_TITLES.get(failure, failure)


def retries_report(task_id: str, attempts: Iterable[Attempt]) -> dict[str, object]:
    """What `heteroflow retries RUN --json` prints: every attempt, the first one first."""
    return {"task_id": task_id, "retries": [_report_entry(row) for row in in_order(attempts)]}


def in_order(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The attempts by number."""
    return sorted(attempts, key=lambda row: row.attempt)


def _report_entry(row: Attempt) -> dict[str, object]:
    return {
        "attempt": row.attempt,
        "node_id": row.node,
        "error": error_title(row.failure),
        "memory_mb": row.memory_mb,
        "status": row.status.value,
        "timestamp": row.ended or row.started,
        "failure": row.failure,
        "reason": row.reason,
        "decision": row.decision,
    }


# --- a short page for a person -----------------------------------------------------------------

_STANDING: MappingProxyType[AttemptStatus, str] = MappingProxyType(
    {
        AttemptStatus.SCHEDULED: "waits for its turn",
        AttemptStatus.RUNNING: "is running",
        AttemptStatus.COMPLETED: "completed",
        AttemptStatus.FAILED: "failed",
        AttemptStatus.CANCELLED: "was cancelled",
        AttemptStatus.SUSPENDED: "is suspended: the flow paused itself",
    }
)

_COLUMNS: tuple[tuple[str, Callable[[Attempt], str]], ...] = (
    ("#", lambda row: str(row.attempt)),
    ("where", lambda row: _where(row)),
    ("memory", lambda row: _memory(row)),
    ("GPU memory", lambda row: _mb(row.gpu_memory_mb)),
    ("before it started", lambda row: row.cleanup or ""),
    ("what happened", lambda row: _what(row)),
    ("then", lambda row: what_followed(row) or ""),
)

_SPECIAL = re.compile(r"([\\`*_\[\]<|])")


def to_markdown(attempts: Iterable[Attempt], facts: Mapping[str, str] | None = None) -> str:
    """A headline that says how it stands, the facts, and a table with one row per attempt.

    Args:
        attempts: The attempts of one task, in any order.
        facts: More about the task, label to value, for example `{"Deployment": "train/nightly"}`.
            Values are text, not Markdown.
    """
    rows = in_order(attempts)
    parts = [f"**{_headline(rows)}**"]
    if facts:
        parts.append("\n".join(f"- {_escape(k)}: {_escape(v)}" for k, v in facts.items()))
    if rows:
        parts.append(_table(rows))
    return "\n\n".join(parts) + "\n"


def _headline(rows: list[Attempt]) -> str:
    if not rows:
        return "No attempt has started yet."
    last = rows[-1]
    sentence = f"Attempt {last.attempt} {_STANDING[last.status]} {_escape(_where(last))}".rstrip()
    before = _escape(", ".join(_causes(rows[:-1])))
    if last.status is not AttemptStatus.FAILED:
        return f"{sentence}, after {before}." if before else f"{sentence}."
    title = error_title(last.failure)
    sentence = f"{sentence}: {_escape(title)}." if title else f"{sentence}."
    return f"{sentence} Before: {before}." if before else sentence


def _causes(rows: list[Attempt]) -> list[str]:
    """The failures one after the other, equal neighbours as one: `OOM Killed (2x)`."""
    runs: list[tuple[str, int]] = []
    for row in rows:
        title = error_title(row.failure)
        if title is None:
            continue
        if runs and runs[-1][0] == title:
            runs[-1] = (title, runs[-1][1] + 1)
        else:
            runs.append((title, 1))
    return [title if count == 1 else f"{title} ({count}x)" for title, count in runs]


def _table(rows: list[Attempt]) -> str:
    # A column that says nothing in any row only takes room.
    columns = [(head, cell) for head, cell in _COLUMNS if any(cell(row) for row in rows)]
    lines = [
        "| " + " | ".join(head for head, _ in columns) + " |",
        "|" + " --- |" * len(columns),
    ]
    lines += ["| " + " | ".join(_escape(cell(row)) for _, cell in columns) + " |" for row in rows]
    return "\n".join(lines)


def _where(row: Attempt) -> str:
    if row.node and row.pool:
        return f"on {row.node} (pool {row.pool})"
    if row.node:
        return f"on {row.node}"
    return f"in pool {row.pool}" if row.pool else ""


def _memory(row: Attempt) -> str:
    peak = "" if row.peak_memory_mb is None else f"peak {_mb(row.peak_memory_mb)}"
    return ", ".join(text for text in (_mb(row.memory_mb), peak) if text)


def _mb(size: int | None) -> str:
    return "" if size is None else f"{size} MB"


def _what(row: Attempt) -> str:
    title = error_title(row.failure)
    if title is None:
        return row.status.value
    return f"{title}: {row.reason}" if row.reason else title


def _escape(text: str) -> str:
    """`text` as plain words on one line, whatever marks it holds."""
    return _SPECIAL.sub(r"\\\1", storable(" ".join(text.split())))


def ending_row(history: Sequence[Attempt]) -> Attempt | None:
    """The row of the attempt with which a task has ended; `None` if it has not.

    It is not always the last: an attempt may come to its end when the next one was planned already,
    which is then closed without an ending of its own.
    """
    if not history or not history[-1].ended_task:
        return None
    last, before = history[-1], history[-2] if len(history) > 1 else None
    if last.never_started and last.ending is None and before is not None and before.ended_task:
        return before
    return last


def current_series(history: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts since the task was last begun: what counts for budgets.

    A run that had ended and that a person runs again has all of its retries again.
    """
    begins = [index + 1 for index, row in enumerate(history) if row.ended_task]
    return history[begins[-1] :] if begins else history
