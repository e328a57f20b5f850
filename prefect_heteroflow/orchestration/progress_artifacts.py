"""Progress artifacts: what an attempt's own says, and the one of the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import Artifact
from prefect.client.schemas.sorting import ArtifactSort

from prefect_heteroflow.core.progress import Progress, progress_of_percent, shown_percent

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient


def progress_key(task_id: UUID | str) -> str:
    """Key of the run's progress artifact."""
    return f"heteroflow-progress-{task_id}"


async def read_progress_artifact(client: PrefectClient, flow_run_id: UUID) -> Progress | None:
    """What the newest progress artifact of the attempt's own says; `None` if it made none.

    Raises:
        httpx.HTTPError: The API failed.
    """
    found = await client.read_artifacts(
        artifact_filter=ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]),
            type=ArtifactFilterType(any_=["progress"]),
        ),
        sort=ArtifactSort.UPDATED_DESC,
        limit=20,
    )
    for artifact in found:
        own = not (artifact.key or "").startswith(progress_key(""))
        if own and isinstance(artifact.data, (int, float)):
            return progress_of_percent(float(artifact.data))
    return None


async def write_progress(
    client: PrefectClient, task_id: UUID, percent: float, *, succeeded: bool = False
) -> float:
    """Show the run's progress on the front run's page: at most 98 % before it has succeeded.

    Returns:
        What is shown.

    Raises:
        httpx.HTTPError: The API failed.
    """
    shown = shown_percent(percent, succeeded=succeeded)
    known = await _read_own(client, task_id)
    if known is not None:
        await client.update_artifact(known.id, ArtifactUpdate(data=shown))
        return shown
    await client.create_artifact(
        ArtifactCreate(
            key=progress_key(task_id),
            type="progress",
            description="Progress of the run over all of its attempts.",
            data=shown,
            flow_run_id=task_id,
        )
    )
    return shown


async def _read_own(client: PrefectClient, task_id: UUID) -> Artifact | None:
    found = await client.read_artifacts(
        artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[progress_key(task_id)])),
        limit=1,
    )
    return found[0] if found else None
