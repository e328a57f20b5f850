"""Attempts that nobody wants any more: their run, or the one that they work for, is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from prefect_heteroflow.attempts.deleted_runs import is_deleted
from prefect_heteroflow.attempts.ended_by_hand import was_set_by_hand
from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.attempts.standing import why_needless
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife
    from prefect_heteroflow.retrying_worker import RetryingWorker


class UnwantedAttempts:
    """Ends what a worker runs for runs that a person has deleted, or ended by hand.

    Args:
        worker: Whose attempts they are.
        logger: For what is found.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()

    async def look(self) -> None:
        """Look once at the runs of all attempts that run here.

        Raises:
            httpx.HTTPError: The API failed.
        """
        lives = [it for it in self._worker.lives if it.handle is not None and not it.is_settled]
        runs = await self._read({it.flow_run.id for it in lives} | {it.task_id for it in lives})
        for life in lives:
            with self._guard.over(
                f"Attempt {life.attempt} of '{life.flow_run.name}'", self._logger
            ):
                await self._look_at(life, runs)

    async def _read(self, ids: Iterable[UUID]) -> dict[UUID, FlowRun]:
        found = {}
        for part in in_parts(list(ids)):
            wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(part)))
            for run in await read_all_runs(self._worker.client, flow_run_filter=wanted):
                found[run.id] = run
        return found

    async def _look_at(self, life: AttemptLife, runs: dict[UUID, FlowRun]) -> None:
        worker, run, front = self._worker, runs.get(life.flow_run.id), runs.get(life.task_id)
        logger = worker.get_flow_run_logger(life.flow_run)
        if run is None:
            if await is_deleted(worker.client, life.flow_run.id):
                logger.warning("The run was deleted: attempt %d of it is ended.", life.attempt)
                worker.end_soon(life)
            return
        is_front = life.flow_run.id == life.task_id
        if is_front or run.state is None:
            return
        if run.state.is_final():
            # A flow may have much to do after it has reported its own end.
            if was_set_by_hand(run.state) and life.is_running and life.ended_by_hand is None:
                life.ended_by_hand = run.state
                logger.warning(
                    "The run was set to %s by hand: attempt %d is ended.",
                    run.state.name,
                    life.attempt,
                )
                worker.end_soon(life)
            return
        if front is not None and (front.state is None or not front.state.is_final()):
            return
        why = await why_needless(worker.client, life.task_id)
        if why is not None:
            logger.warning("Attempt %d is ended: %s", life.attempt, why)
            await worker.client.set_flow_run_state(run.id, Cancelling(message=why))
            worker.cancel_soon(run.id)
