"""What a body whose process is gone had started, and that nobody else ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from prefect.client.orchestration import get_client
from prefect.logging.loggers import get_run_logger
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.orchestration.loose_ends import close_runs_of_body

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.context import TaskRunContext

    from prefect_heteroflow.task_runner.attempts_elsewhere import TaskOutcome

_ENDED_BECAUSE = {
    "died": "The process in which the body of its task ran has ended.",
    "timed_out": "The body of its task ran out of time.",
    "cancelled": "Its task was cancelled.",
}


def end_what_is_left(context: TaskRunContext, outcome: TaskOutcome) -> None:
    """End tasks and flows that the body had started and that still seem to run.

    The task goes on if the API is away: its own end counts for more than theirs.

    Args:
        context: The task run's.
        outcome: How its attempt ended: not by the body's own return or exception.
    """
    task_run = context.task_run
    if task_run.flow_run_id is None:
        return
    why = _ENDED_BECAUSE[outcome.kind]
    try:
        run_coro_as_sync(_close(task_run.id, task_run.flow_run_id, why))
    except httpx.HTTPError as error:
        text = "Runs that its body had started may stay as if they still ran: %s"
        get_run_logger(context).warning(text, error)


async def _close(task_run_id: UUID, flow_run_id: UUID, why: str) -> None:
    async with get_client() as client:
        await close_runs_of_body(client, task_run_id, flow_run_id, why)
