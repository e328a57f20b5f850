"""A run whose attempt an outage of the API kept from starting goes back to its pool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import httpx

from prefect_heteroflow.attempts.orphans import schedule_again
from prefect_heteroflow.orchestration.insisting import insist, is_passing

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife
    from prefect_heteroflow.retrying_worker import RetryingWorker


async def give_back_after(error: Exception, worker: RetryingWorker, life: AttemptLife) -> bool:
    """Whether the API went away and nothing of the attempt has run: that is no crash of the run.

    Then the run is given back, as soon as the API answers.
    """
    is_outage = isinstance(error, httpx.HTTPError) and is_passing(error)
    if not is_outage or life.handle is not None:
        return False
    message = (
        f"The Prefect API failed ({type(error).__name__}) before attempt {life.attempt} was"
        " started. Nothing of it has run yet; it is tried again."
    )
    logger = worker.get_flow_run_logger(life.flow_run)
    step = partial(_give_back, worker, life, message)
    await insist(step, logger, f"the start of attempt {life.attempt}")
    return True


async def _give_back(worker: RetryingWorker, life: AttemptLife, message: str) -> None:
    if not await life.is_overtaken():
        await schedule_again(worker, life.flow_run, message)
