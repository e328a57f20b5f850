"""Keeps an attempt that others have given up from reporting its end.

A node that was cut off comes back while the next attempt runs elsewhere. The server would take the
old flow's `Completed` or `Failed` as the end of the run, so the flow itself looks first.
"""

from __future__ import annotations

import os
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort
from prefect.logging.loggers import flow_run_logger
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow import environment
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration.history import read_attempts


def stop_if_given_up(flow_run: FlowRun) -> None:
    """Return if the end of this process's attempt may be reported.

    It may not when its row says `NodeLost` and the run has gone on. While the run still waits to
    be started again, the end counts: the server lets only one of both happen. When the API does
    not answer, the engine's own report will meet the same silence.

    Args:
        flow_run: The run of this process.

    Raises:
        prefect.exceptions.Abort: Another attempt has taken over.
    """
    task_id, attempt = os.environ.get(environment.TASK_ID), os.environ.get(environment.ATTEMPT)
    if task_id is None or attempt is None:
        return
    logger = flow_run_logger(flow_run)
    try:
        given_up = run_coro_as_sync(_is_given_up(flow_run.id, task_id, int(attempt)))
    except Exception:  # whatever it is, work that is done must not be lost for it
        logger.warning("The attempts of this run could not be read.", exc_info=True)
        return
    if given_up:
        text = (
            f"Attempt {attempt} was given up while it was not heard of, and the run has gone on"
            " without it: its end is not reported."
        )
        logger.warning("%s", text)
        raise Abort(text)


async def _is_given_up(flow_run_id: UUID, task_id: str, attempt: int) -> bool:
    async with get_client() as client:
        rows = await read_attempts(client, task_id)
        own = next((row for row in rows if row.attempt == attempt), None)
        if own is None or own.failure != FailureClass.NODE_LOST.value:
            return False
        run = await client.read_flow_run(flow_run_id)
        return run.state is None or not run.state.is_scheduled()
