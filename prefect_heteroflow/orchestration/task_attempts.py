"""The attempts of a flow run's tasks, from their history artifacts and from the task runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import StateType
from prefect.logging import get_logger

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.task_attempts import TaskAttempt, from_task_row
from prefect_heteroflow.orchestration.history import table_key

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import TaskRun

logger = get_logger("heteroflow.history")

_PAGE = 200

_STATUS_OF = {
    StateType.COMPLETED: AttemptStatus.COMPLETED,
    StateType.FAILED: AttemptStatus.FAILED,
    StateType.CRASHED: AttemptStatus.FAILED,
    StateType.CANCELLED: AttemptStatus.CANCELLED,
    StateType.CANCELLING: AttemptStatus.RUNNING,
    StateType.RUNNING: AttemptStatus.RUNNING,
}


async def read_task_attempts(
    client: PrefectClient, flow_run_id: UUID, *, task: str | None = None
) -> list[TaskAttempt]:
    """Every attempt of every task run of a flow run, by task run and number.

    A task run without a history of its own succeeded at once, or its attempt still runs: it has
    one row, made from the task run, which does not know the node.

    Args:
        client: A client in use.
        flow_run_id: The flow run.
        task: Only task runs of this name, with or without the suffix that Prefect appends.
    """
    runs = await _task_runs(client, flow_run_id)
    histories = await _histories(client, flow_run_id)
    found: list[TaskAttempt] = []
    for run in runs:
        if task is None or _is_named(run, task):
            rows = histories.get(str(run.id), [])
            found += rows or [_from_run(run, flow_run_id)]
            if rows and (running := _running(run, rows, flow_run_id)) is not None:
                found.append(running)
    return found


def _is_named(run: TaskRun, name: str) -> bool:
    return name in (run.name, run.name.rpartition("-")[0])


async def _task_runs(client: PrefectClient, flow_run_id: UUID) -> list[TaskRun]:
    found: list[TaskRun] = []
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    while True:
        page = await client.read_task_runs(flow_run_filter=wanted, limit=_PAGE, offset=len(found))
        found += page
        if len(page) < _PAGE:
            break
    unique = {run.id: run for run in found}
    return sorted(unique.values(), key=lambda run: str(run.id))  # ids grow with time


async def _histories(client: PrefectClient, flow_run_id: UUID) -> dict[str, list[TaskAttempt]]:
    found: dict[str, list[TaskAttempt]] = {}
    offset = 0
    while True:
        page = await client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]),
                type=ArtifactFilterType(any_=["table"]),
            ),
            limit=_PAGE,
            offset=offset,
        )
        for artifact in page:
            if artifact.task_run_id and artifact.key == table_key(artifact.task_run_id):
                found[str(artifact.task_run_id)] = _rows(artifact.data)
        offset += len(page)
        if len(page) < _PAGE:
            return found


def _rows(data: Any) -> list[TaskAttempt]:
    try:
        rows: Iterable[Any] = json.loads(data) if isinstance(data, str) else data
        return sorted((from_task_row(row) for row in rows), key=lambda found: found.row.attempt)
    except (TypeError, ValueError, AttributeError) as error:
        logger.warning("A history of attempts cannot be read: %s", error)
        return []


def _from_run(run: TaskRun, flow_run_id: UUID, *, number: int = 1) -> TaskAttempt:
    status = AttemptStatus.SCHEDULED
    if run.state is not None:
        status = _STATUS_OF.get(run.state.type, AttemptStatus.SCHEDULED)
    return TaskAttempt(
        task_run_id=str(run.id),
        name=run.name,
        row=Attempt(
            attempt=number,
            flow_run_id=str(flow_run_id),
            status=status,
            started=None if run.start_time is None else run.start_time.isoformat(),
            ended=None if run.end_time is None else run.end_time.isoformat(),
        ),
    )


def _running(run: TaskRun, rows: list[TaskAttempt], flow_run_id: UUID) -> TaskAttempt | None:
    """The attempt after the ones of the history, if there is one that has not ended yet."""
    if run.state is None or run.state.is_final() or rows[-1].row.status != AttemptStatus.FAILED:
        return None
    return _from_run(run, flow_run_id, number=rows[-1].row.attempt + 1)
