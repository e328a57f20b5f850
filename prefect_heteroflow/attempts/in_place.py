"""Attempts that follow at once on the node of the one before, without the detour over the pool."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx
from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.policy import Retry
from prefect_heteroflow.orchestration.clock import utc_now

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife
    from prefect_heteroflow.retrying_worker import RetryingWorker

# A longer delay must neither hold one of the worker's slots nor be lost with the worker.
_IN_PLACE_SECONDS = 2.0


async def goes_on_here(
    worker: RetryingWorker, flow_run: FlowRun, row: Attempt, decision: Retry
) -> bool:
    """Whether this worker goes on at once with a run that was scheduled again on its pool.

    Args:
        worker: Whose node it is.
        flow_run: The run.
        row: The failed attempt.
        decision: What follows.

    Raises:
        httpx.HTTPError: The API failed.
    """
    place, node = decision.place, worker.node.name
    return (
        row.node == node
        and flow_run.work_pool_name in (None, worker.node.pool)
        and decision.delay_seconds <= _IN_PLACE_SECONDS
        and place.node in (None, node)
        and place.waits_for is None
        and node not in place.avoid_nodes
        and await _needs_no_place(worker, flow_run)
    )


async def _needs_no_place(worker: RetryingWorker, flow_run: FlowRun) -> bool:
    """Whether its next attempt may follow here without asking the pool for a place.

    Not so when pool or queue is paused or has a concurrency limit: another run may be next.
    Nor when it holds none of the worker's own slots (`--limit`), as an attempt that was left by
    an earlier process.
    """
    if not worker.holds_slot(flow_run.id) or not worker.is_set_up:
        return False
    pool = worker.work_pool
    if pool.is_paused or pool.concurrency_limit is not None:
        return False
    if flow_run.work_queue_id is None:
        return True
    queue = await worker.client.read_work_queue(flow_run.work_queue_id)
    return not queue.is_paused and queue.concurrency_limit is None


async def run_what_follows(
    worker: RetryingWorker,
    life: AttemptLife,
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> None:
    """Run the attempts that follow here at once, one after the other.

    Args:
        worker: Looks after each of them.
        life: The attempt that has ended.
        logger: The worker's.
    """
    while True:
        try:
            following = await life.following()
        except httpx.HTTPError as error:
            # The run is scheduled: its pool has it, whatever becomes of us.
            logger.warning("Run %s goes the way over its pool: %s", life.flow_run.id, error)
            worker.wake_at(utc_now(), life.flow_run.id)
            return
        if following is None:
            return
        life = following
        worker.lives.add(life)
        await life.go_on()
