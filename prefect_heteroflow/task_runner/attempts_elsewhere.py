"""One attempt of a task, how it ended, and the seam for attempts on another pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from prefect import Task
    from prefect.context import FlowRunContext, TaskRunContext

    from prefect_heteroflow.core.failures import Diagnosis, Evidence
    from prefect_heteroflow.core.policy import Retry
    from prefect_heteroflow.core.resources import Resources

OutcomeKind = Literal[
    "returned", "raised", "unportable", "died", "cancelled", "timed_out", "refused"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """One attempt to run."""

    task: Task[..., Any]
    """The user's task; its body is `task.fn`."""
    context: TaskRunContext
    """Of the task run; holds its resolved parameters and its result store."""
    flow_context: FlowRunContext | None
    attempt: int
    """1 for the first."""
    resources: Resources
    number: int = 0
    """Of the task in the order of submission, the same for all of its attempts."""
    timeout_seconds: float | None = None
    """How long the body may run; the wait for a place does not count."""
    reserved_mb: int = 0
    """Memory that was asked for, or that an earlier attempt was shown to need, MiB."""
    shares_gpu: bool = False
    max_calls: int | None = None
    previous_failure: str | None = None
    """Failure class of the attempt before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """How an attempt ended."""

    kind: OutcomeKind
    pool: str | None = None
    node: str | None = None
    value: Any = None
    exception: BaseException | None = None
    """What the body raised, as the object that it was; `None` if it could not be sent."""
    text: str = ""
    """The exception in words, or what could not be sent, or why nothing was started."""
    evidence: Evidence | None = None
    """What was observed of the end, for the diagnosis; `None` after success."""
    diagnosis: Diagnosis | None = None
    """Why it failed, where that was found out elsewhere."""
    gpu_memory_mb: int | None = None
    """Total memory of the smallest GPU that the attempt had, MiB."""
    peak_memory_mb: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started: str | None = None
    """ISO 8601 in UTC, `None` if it never started."""
    ended: str | None = None
    sent_bytes: int | None = None
    """Size of what was sent for it (arguments, contexts), pickled."""


class RemoteAttempts(Protocol):
    """Runs attempts on other pools than the flow's own node."""

    def run(self, call: TaskCall, decision: Retry) -> TaskOutcome:
        """Run the attempt where `decision.place` says, and wait for its end.

        It is called in the thread of the task run. It never raises for a failure of the attempt:
        that is a `TaskOutcome` with its evidence.
        """

    def cancel(self) -> None:
        """End every attempt that runs; each gives a `cancelled` outcome."""


def no_remote(pool: str) -> str:
    """Why a runner without `RemoteAttempts` stops where a pool could run the attempt."""
    return (
        f"Pool {pool} could run it, but this runner does not move tasks to other pools;"
        " run the flow itself on that pool, or ask for less"
    )
