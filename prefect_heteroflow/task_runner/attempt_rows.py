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

from prefect_heteroflow.core.attempts import to_markdown
from prefect_heteroflow.core.task_attempts import TaskAttempt, to_task_row
from prefect_heteroflow.orchestration.history import summary_key, table_key

if TYPE_CHECKING:
    from logging import Logger, LoggerAdapter

    from prefect.client.orchestration import SyncPrefectClient

TABLE_DESCRIPTION = "Every attempt of this task run. Sizes are in MB (MiB), times in UTC."
SUMMARY_DESCRIPTION = "What happened to this task run, attempt by attempt."


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
