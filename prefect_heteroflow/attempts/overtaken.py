"""Whether others have gone on with a run while this worker was paused or cut off.

A worker that is stopped (SIGSTOP, a suspended machine) or cut off from the API between two steps
does not know how long that was. Others may have given its run up meanwhile and started another
attempt: the next step would be made over theirs. So each step asks before, if some time has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts
from prefect_heteroflow.orchestration.transitions import task_id_of

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

SHORTEST_SILENCE = timedelta(seconds=10)
"""Nobody gives up a run sooner than after so long."""
_CLOCKS_AGREE_WITHIN = timedelta(seconds=5)
_NOT_BY_US = (StateType.SCHEDULED, StateType.RUNNING)


class Overtaken:
    """Watches over one attempt from the moment its run is taken until it has started.

    Args:
        worker: Who takes it.
        flow_run: The run.
        taken: The moment before it was taken; now, if it is not told.
    """

    def __init__(
        self, worker: RetryingWorker, flow_run: FlowRun, taken: datetime | None = None
    ) -> None:
        self._worker = worker
        self._flow_run = flow_run
        self._taken = self._asked = taken or utc_now()

    def waited(self, seconds: float) -> None:
        """The worker has waited on purpose: for the due time."""
        self._asked += timedelta(seconds=seconds)

    async def has_happened(self, attempt: int) -> bool:
        """Whether the run is no longer this worker's; asks only if it may be.

        Args:
            attempt: Number of the attempt that is to be started.

        Raises:
            httpx.HTTPError: The API failed.
        """
        if utc_now() - self._asked < SHORTEST_SILENCE:
            return False
        self._asked = utc_now()
        worker, client = self._worker, self._worker.client
        states = await client.read_flow_run_states(self._flow_run.id)
        rows = await read_attempts(client, task_id_of(self._flow_run))
        node = worker.node.name
        if not was_overtaken(states, rows, attempt=attempt, node=node, taken=self._taken):
            return False
        worker.get_flow_run_logger(self._flow_run).warning(
            "Worker '%s' was paused or cut off before it could start the run, and others have gone"
            " on with it: it starts nothing.",
            worker.name,
        )
        return True


def was_overtaken(
    states: Sequence[State],
    rows: Sequence[Attempt],
    *,
    attempt: int,
    node: str,
    taken: datetime,
) -> bool:
    """Whether states or rows show that others have gone on with a run that was not started yet.

    Its own worker has set nothing but `Pending` and `Submitting` since it took the run.

    Args:
        states: All states of the run.
        rows: The rows of its task now.
        attempt: Number of the attempt that is to be started.
        node: The node on which.
        taken: The moment before its worker took the run.
    """
    if any(row.attempt > attempt for row in rows):
        return True
    own = next((row for row in rows if row.attempt == attempt), None)
    if own is not None and own.status is not AttemptStatus.SCHEDULED and own.node != node:
        return True
    since = taken + _CLOCKS_AGREE_WITHIN
    return any(state.timestamp > since and state.type in _NOT_BY_US for state in states)
