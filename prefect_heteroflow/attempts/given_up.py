"""Attempts of this node that others have given up and moved, while its worker was cut off."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.core.contact import has_gone_on_without
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife
    from prefect_heteroflow.retrying_worker import RetryingWorker

# Others may be about to move a run when this worker is back: they hold a lease for two minutes.
_LOOK_FOR = timedelta(minutes=3)


class GivenUp:
    """Ends what runs here and has been moved, so that no attempt runs twice for long.

    Args:
        worker: Whose attempts they are.
        logger: For what is found.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()

    async def look(self) -> None:
        """Look at each attempt of this worker, if it was cut off lately."""
        back = self._worker.back_since
        if back is None or utc_now() - back > _LOOK_FOR:
            return
        for life in self._worker.lives:
            if life.handle is None or life.is_settled:
                continue
            with self._guard.over(
                f"Attempt {life.attempt} of '{life.flow_run.name}'", self._logger
            ):
                rows = await read_attempts(self._worker.client, life.task_id)
                if has_gone_on_without(life.attempt, rows):
                    await self._end(life)

    async def _end(self, life: AttemptLife) -> None:
        logger = self._worker.get_flow_run_logger(life.flow_run)
        logger.warning(
            "Attempt %d was given up as lost while worker '%s' was not heard of, and the run has"
            " gone on without it. What is left of it on node %s is ended.",
            life.attempt,
            self._worker.name,
            self._worker.node.name,
        )
        self._worker.end_soon(life)
