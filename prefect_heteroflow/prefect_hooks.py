"""What we override of Prefect's own worker, because it has no public hook for it.

Each override is pinned by `tests/surface/test_core_hooks.py`, which fails when Prefect changes.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry

from prefect_heteroflow.attempts.cancelling import handle_cancelling
from prefect_heteroflow.attempts.placement import Placements
from prefect_heteroflow.core.resources import Cluster, Node
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.insisting import insist, is_passing

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.workers.base import BaseWorker

    from prefect_heteroflow.attempts.backend import AttemptBackend
    from prefect_heteroflow.attempts.lives import Lives
    from prefect_heteroflow.retrying_worker import RetryingWorker

    class _Base(BaseWorker[Any, Any, Any], AttemptBackend):
        """What the mixin is mixed into, and what its upper half has."""

        @property
        def node(self) -> Node:
            """This node as it was probed."""
            raise NotImplementedError

        async def read_cluster(self, *, fresh: bool = False) -> Cluster:
            """All known nodes and pools."""
            raise NotImplementedError

        def wake_at(self, due: datetime, flow_run_id: UUID) -> None:
            """Poll when that run is due."""
            raise NotImplementedError
else:
    _Base = object

# What core says when it could not submit a run, and how errors of the API look in it.
_NOT_SUBMITTED = "Failed to submit flow run to infrastructure:"
_PASSING = re.compile(
    r"Server error '5\d\d|'429 |ConnectError|ConnectTimeout|ReadTimeout|ReadError|PoolTimeout"
    r"|RemoteProtocolError|WriteError"
)
_SUBMIT_AGAIN_SECONDS = 5.0


class PrefectHooks(_Base):
    """The lower half of `RetryingWorker`: where core's polls, submissions and cancels pass."""

    _placements: Placements | None
    lives: Lives
    runs_once = False
    """It polls once, and stops when what it took has ended."""

    # ---- polls ----------------------------------------------------------------------------------

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Poll once. While the API is away there are no runs; core would end the worker for it.

        It does so after some eight minutes of failures, and at the first 429, and the attempts of
        the worker would end with it or be left alone.
        """
        try:
            return await super().get_and_submit_flow_runs()
        except httpx.HTTPError as error:
            self._wait_out(error)
            return []

    async def poll_out_of_turn(self) -> list[FlowRun]:
        """Poll because something is due, unless this worker is to poll once only."""
        return [] if self.runs_once else await self.get_and_submit_flow_runs()

    async def sync_with_backend(self) -> None:
        """Tell core's heartbeat and read the pool; an outage is waited out, as in a poll."""
        try:
            await super().sync_with_backend()
        except httpx.HTTPError as error:
            self._wait_out(error)

    def _wait_out(self, error: httpx.HTTPError) -> None:
        if not is_passing(error):
            raise error
        self._logger.debug("The Prefect API does not answer: %s", error)

    async def _submit_scheduled_flow_runs(
        self, flow_run_response: list[WorkerFlowRunResponse]
    ) -> list[FlowRun]:
        # Core has no public hook between "the pool has these runs" and "this worker takes them".
        # Pinned by tests/surface/test_core_hooks.py.
        if flow_run_response and self._placements is not None:
            cluster = await self.read_cluster()
            # As it was published, and as somebody may have cordoned it since.
            node = next((n for n in cluster.nodes if n.name == self.node.name), self.node)
            flow_run_response = [
                entry
                for entry in flow_run_response
                if not self.lives.asked_for(entry.flow_run.id)
                and await self._is_for_this_node(node, entry.flow_run, cluster)
            ]
        # What a cancel of the time before it was scheduled again has left.
        self.lives.about_to_take({entry.flow_run.id for entry in flow_run_response}, utc_now())
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def _is_for_this_node(self, node: Node, flow_run: FlowRun, cluster: Cluster) -> bool:
        assert self._placements is not None
        try:
            return await self._placements.is_for(
                node, flow_run, cluster, self.work_pool.base_job_template
            )
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            # Odd values of one run must not end the worker: whoever takes the run refuses them.
            self._logger.warning("Run %s cannot be placed: %r", flow_run.id, error)
            return True

    async def _cancel_run(self, flow_run_id: UUID) -> None:
        # Core's own version ends only runs that never started; ours ends them all.
        # Pinned by tests/surface/test_core_hooks.py.
        try:
            await handle_cancelling(cast("RetryingWorker", self), flow_run_id)
        except Exception as error:
            # It runs in the worker's own task group: an error would end the worker. The run stays
            # `Cancelling`, and `reconcile` comes back to it.
            self._logger.warning("Run %s could not be cancelled yet: %s", flow_run_id, error)

    async def _propose_crashed_state(
        self, flow_run: FlowRun, message: str, client: PrefectClient | None = None
    ) -> None:
        # Core calls it for whatever keeps it from submitting a run. An API that is away for a
        # moment is no crash: nothing has run yet. Pinned by tests/surface/test_core_hooks.py.
        message = storable(message)
        if message.startswith(_NOT_SUBMITTED) and _PASSING.search(message):
            due = utc_now() + timedelta(seconds=_SUBMIT_AGAIN_SECONDS)
            state: State[None] = AwaitingRetry(
                scheduled_time=due, message=f"{message} Nothing has run yet; it is tried again."
            )
            if await transitions.finish(client or self.client, flow_run.id, state):
                self.wake_at(due, flow_run.id)
                return
        await super()._propose_crashed_state(flow_run, message, client)

    async def _give_worker_labels_to_flow_run(self, flow_run_id: UUID) -> None:
        # The node's name goes with core's labels: several workers may have one name.
        # Core crashes a run whose labels cannot be stored, and on a busy SQLite they often cannot:
        # the server reads before it writes, and says 503 when anybody else wrote in between. Of
        # 200 runs submitted at once 18 ended that way before they began (measured).
        # Pinned by tests/surface/test_core_hooks.py.
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._label_quietly, flow_run_id)

    async def _label_quietly(self, flow_run_id: UUID) -> None:
        give = partial(self.client.update_flow_run_labels, flow_run_id, self._labels_of_taken())
        try:
            await insist(give, self._logger, "the name of the run's worker")
        except Exception as error:
            self._logger.debug("Run %s keeps its labels: %s", flow_run_id, error)

    def _labels_of_taken(self) -> dict[str, Any]:
        labels = {
            "prefect.worker.name": self.name,
            "prefect.worker.type": self.type,
            transitions.NODE_LABEL: self.node.name,
        }
        if self._work_pool is not None:
            labels["prefect.work-pool.name"] = self._work_pool.name
            labels["prefect.work-pool.id"] = str(self._work_pool.id)
        return labels
