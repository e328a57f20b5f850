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

from prefect_heteroflow.orchestration.clock import utc_now

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

SHORTEST_SILENCE = timedelta(seconds=10)
"""Nobody gives up a run sooner than after so long."""
_CLOCKS_AGREE_WITHIN = timedelta(seconds=5)
_OF_ITS_WORKER = (StateType.PENDING, StateType.CANCELLING, StateType.CANCELLED)


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

    async def has_happened(self) -> bool:
        """Whether the run is no longer this worker's; asks only if it may be.

        Raises:
            httpx.HTTPError: The API failed.
        """
        if utc_now() - self._asked < SHORTEST_SILENCE:
            return False
        self._asked = utc_now()
        worker = self._worker
        states = await worker.client.read_flow_run_states(self._flow_run.id)
        if not was_overtaken(states, taken=self._taken):
            return False
        worker.get_flow_run_logger(self._flow_run).warning(
            "Worker '%s' was paused or cut off before it could start the run, and others have gone"
            " on with it: it starts nothing.",
            worker.name,
        )
        return True


def was_overtaken(states: Sequence[State], *, taken: datetime) -> bool:
    """Whether its states show that others have gone on with a run that was not started yet.

    Its own worker has set nothing but `Pending` and `Submitting` since it took the run, and cancels
    are heard by whoever has it.

    Args:
        states: All states of the run.
        taken: The moment before its worker took the run.
    """
    since = taken + _CLOCKS_AGREE_WITHIN
    return any(state.timestamp > since and state.type not in _OF_ITS_WORKER for state in states)
