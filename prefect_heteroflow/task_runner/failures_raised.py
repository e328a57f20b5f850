"""What the engine of a task is to see of a failed attempt: the exception that is raised for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.logging.loggers import get_run_logger
from prefect.task_engine import TaskRunTimeoutError

from prefect_heteroflow.core.policy import Decision, Stop
from prefect_heteroflow.task_runner.causes import chain_of
from prefect_heteroflow.task_runner.errors import (
    HeteroTaskError,
    Origin,
    TaskNotPortableError,
    WorkerDiedError,
    as_task_error,
    with_origin,
)
from prefect_heteroflow.task_runner.exceptions_sent import left_out_of

if TYPE_CHECKING:
    from prefect import Task

    from prefect_heteroflow.core.failures import Diagnosis
    from prefect_heteroflow.task_runner.attempts_elsewhere import TaskOutcome


class _RemoteTraceback(Exception):
    """The traceback of the child process, to be shown as the cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"\n{self._text}"


def error_of(
    outcome: TaskOutcome,
    task: Task[..., Any],
    *,
    attempt: int,
    diagnosis: Diagnosis,
    decision: Decision,
) -> BaseException:
    """The exception for a failed attempt.

    Args:
        outcome: How it ended; neither returned nor cancelled.
        task: The task.
        attempt: Its number, 1 for the first.
        diagnosis: Why it failed.
        decision: What follows.
    """
    info = outcome.evidence.exception if outcome.evidence is not None else None
    origin = Origin(
        node=outcome.node,
        attempt=attempt,
        remote_traceback=None if info is None else info.traceback,
    )
    if outcome.kind == "timed_out":
        return TaskRunTimeoutError(
            f"The body ran longer than {task.timeout_seconds:g} s and was ended."
        )
    if outcome.kind == "refused":
        text = f"Task {task.name!r} cannot run: {outcome.text}"
        return with_origin(HeteroTaskError(text), origin)
    if outcome.kind == "unportable":
        text = f"Task {task.name!r} cannot run in another process: {outcome.text}"
        return with_origin(TaskNotPortableError(text), origin)
    if outcome.kind == "died":
        why = decision.reason if isinstance(decision, Stop) else diagnosis.reason
        died = WorkerDiedError(
            f"Task {task.name!r}: {outcome.text}. {why}",
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            diagnosis=diagnosis,
        )
        return with_origin(died, origin)
    if outcome.exception is None:
        return with_origin(HeteroTaskError(outcome.text), origin)
    missing = left_out_of(outcome.exception)
    if missing:
        text = "What cannot be sent between processes is missing in the exception: %s"
        get_run_logger().warning(text, ", ".join(missing))
    error = as_task_error(outcome.exception, origin)
    if type(error) is HeteroTaskError and error is not outcome.exception:
        kind = type(outcome.exception)
        get_run_logger().warning(
            "%s.%s cannot be subclassed, so it is raised as a HeteroTaskError, with it as `cause`",
            kind.__module__,
            kind.__qualname__,
        )
    if origin.remote_traceback:
        _show_before(error, origin.remote_traceback)
    return error


def _show_before(error: BaseException, traceback: str) -> None:
    """Let the traceback of the child stand before all that Python shows of the error."""
    first = error
    for is_cause, before in chain_of(error):
        if not is_cause:
            break
        first = before
    first.__cause__ = _RemoteTraceback(traceback)
