"""What becomes of a run whose worker fails while it looks after it: no row and no remains stay."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx

from prefect_heteroflow.core.attempts import AttemptStatus
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife
    from prefect_heteroflow.retrying_worker import RetryingWorker

_OPEN = (AttemptStatus.RUNNING, AttemptStatus.SCHEDULED)
_NOTHING_FOLLOWS = "The run ends as Crashed; its log and the worker's tell more."


def text_of(error: BaseException) -> str:
    """Type and text of an error; of a group, those of all that are in it."""
    return "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    inner = getattr(error, "exceptions", None)
    if not isinstance(inner, tuple):
        yield error
        return
    for each in inner:
        yield from _leaves(each)


async def close_after_error(worker: RetryingWorker, life: AttemptLife, message: str) -> None:
    """End what still runs of the attempt, remove its remains, and close its row."""
    handle = life.handle
    logger = worker.get_flow_run_logger(life.flow_run)
    if handle is not None:
        try:
            await worker.terminate_attempt(handle, worker.heteroflow_settings.cancel_grace_seconds)
            await worker.discard_attempt(handle)
        except Exception as error:
            # Something is broken already; the row and the run's end must be told all the same.
            logger.warning("What is left of the attempt was not removed: %s", text_of(error))
    with contextlib.suppress(httpx.HTTPError):
        rows = await read_attempts(worker.client, life.task_id)
        last = rows[-1] if rows and rows[-1].attempt >= life.attempt else life.row
        if last.status not in _OPEN:
            return
        closed = dataclasses.replace(
            last,
            flow_run_id=last.flow_run_id or str(life.flow_run.id),
            status=AttemptStatus.FAILED,
            failure=FailureClass.UNKNOWN_ERROR.value,
            rule="worker-error",
            reason=message,
            decision=_NOTHING_FOLLOWS,
            ended=utc_now().isoformat(),
            ended_task=True,
        )
        await write_attempts(worker.client, life.task_id, [closed], summary=True)
