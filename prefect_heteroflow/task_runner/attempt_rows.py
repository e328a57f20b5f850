"""The history artifacts of a task run, written in the thread that runs it.

The same two as those of a run (see `orchestration.history`), on the task run's page. A task run has
one writer, so nothing has to be merged. One that succeeds at once gets none: that would cost more
than the task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, exit_status, to_markdown
from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.task_attempts import ErrorType, TaskAttempt, to_task_row
from prefect_heteroflow.orchestration.history import summary_key, table_key

if TYPE_CHECKING:
    from logging import Logger, LoggerAdapter

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import TaskRun

    from prefect_heteroflow.core.job_values import JobValueError
    from prefect_heteroflow.core.policy import Decision
    from prefect_heteroflow.core.resources import Resources
    from prefect_heteroflow.task_runner.attempts_elsewhere import TaskOutcome

TABLE_DESCRIPTION = "Every attempt of this task run. Sizes are in MB (MiB), times in UTC."
SUMMARY_DESCRIPTION = "What happened to this task run, attempt by attempt."

_REFUSED_RULE = "requirements"
_ERROR_TYPES = {
    "raised": ErrorType.TASK_EXECUTION_EXCEPTION,
    "died": ErrorType.WORKER_DIED,
    "unportable": ErrorType.TASK_NOT_PORTABLE,
    "timed_out": ErrorType.TASK_TIMED_OUT,
    "refused": ErrorType.NO_PLACE,
}


def diagnosis_of_refusal(error: JobValueError) -> Diagnosis:
    """Why a task was not run whose requirements cannot be used: no place was looked for."""
    return Diagnosis(failure=error.failure, rule=_REFUSED_RULE, reason=str(error))


def attempt_of(
    task_run: TaskRun,
    outcome: TaskOutcome,
    status: AttemptStatus,
    *,
    attempt: int,
    resources: Resources,
    diagnosis: Diagnosis | None = None,
    decision: Decision | None = None,
) -> TaskAttempt:
    """One attempt of a task run, as a value.

    Args:
        task_run: The task run.
        outcome: How the attempt ended.
        status: The same in one word.
        attempt: Its number, 1 for the first.
        resources: What it had.
        diagnosis: Why it failed, `None` if it did not.
        decision: What followed.
    """
    row = Attempt(
        attempt=attempt,
        flow_run_id=str(task_run.flow_run_id or task_run.id),
        status=status,
        pool=outcome.pool,
        node=outcome.node,
        failure=None if diagnosis is None else diagnosis.failure.value,
        rule=None if diagnosis is None else diagnosis.rule,
        reason=None if diagnosis is None else diagnosis.reason,
        decision=None if decision is None else decision.reason,
        memory_mb=resources.memory_mb,
        gpu_count=resources.gpu_count or None,
        gpu_memory_mb=outcome.gpu_memory_mb,
        peak_memory_mb=outcome.peak_memory_mb,
        exit_code=exit_status(outcome.exit_code, outcome.signal),
        started=outcome.started,
        ended=outcome.ended,
        never_started=outcome.started is None,
    )
    return TaskAttempt(
        task_run_id=str(task_run.id),
        name=task_run.name,
        row=row,
        error_type=None if diagnosis is None else _error_type(outcome, diagnosis).value,
    )


def _error_type(outcome: TaskOutcome, diagnosis: Diagnosis) -> ErrorType:
    if diagnosis.rule == _REFUSED_RULE:
        return ErrorType.TASK_REQUIREMENTS_REFUSED
    return _ERROR_TYPES[outcome.kind]


class AttemptRows:
    """Writes the attempts of one task run."""

    def __init__(self) -> None:
        self._artifacts: dict[str, UUID] = {}

    def write(
        self,
        attempts: Sequence[TaskAttempt],
        flow_run_id: UUID | None,
        logger: Logger | LoggerAdapter[Logger],
    ) -> None:
        """Write all attempts so far. A server that does not answer costs the row, not the task."""
        try:
            with get_client(sync_client=True) as client:
                self._write(client, attempts, flow_run_id)
        except httpx.HTTPError as error:
            logger.warning("The attempts of this task run could not be stored: %s", error)

    def _write(
        self, client: SyncPrefectClient, attempts: Sequence[TaskAttempt], flow_run_id: UUID | None
    ) -> None:
        task_run_id = attempts[0].task_run_id
        table = json.dumps([to_task_row(attempt) for attempt in attempts])
        summary = to_markdown(attempt.row for attempt in attempts)
        for kind, key, description, data in (
            ("table", table_key(task_run_id), TABLE_DESCRIPTION, table),
            ("markdown", summary_key(task_run_id), SUMMARY_DESCRIPTION, summary),
        ):
            known = self._artifacts.get(kind)
            if known is not None:
                client.update_artifact(known, ArtifactUpdate(data=data))
                continue
            created = client.create_artifact(
                ArtifactCreate(
                    key=key,
                    type=kind,
                    description=description,
                    data=data,
                    task_run_id=UUID(task_run_id),
                    flow_run_id=flow_run_id,
                )
            )
            self._artifacts[kind] = created.id
