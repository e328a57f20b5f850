"""Polls the pool when something is due, instead of waiting for the next regular poll."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import anyio
from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.orchestration.clock import utc_now

# A run that this worker has just rescheduled is still marked as being submitted until core has
# stored its infrastructure's identifier; it is asked for again until it is taken.
_FIRST_RETRY = timedelta(seconds=0.05)
_TRIES = 8


class Wakeups:
    """Due times of runs, and one loop that polls when the first of them has come.

    Many runs that are due at once cost one poll, not one each.

    Args:
        poll: Takes what is due from the pool (`BaseWorker.get_and_submit_flow_runs`).
        logger: For polls that fail; the regular poll takes over then.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[Sequence[FlowRun]]],
        logger: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._poll = poll
        self._logger = logger
        self._due: list[tuple[datetime, int, int, UUID | None]] = []
        # `None` and equal times do not compare: a number keeps the entries in order.
        self._numbers = itertools.count()
        self._changed = anyio.Event()

    def wake_at(self, due: datetime, flow_run_id: UUID | None, *, tries: int = 0) -> None:
        """Poll at `due`; with a run's id, again a few times until that run was taken."""
        heapq.heappush(self._due, (due, next(self._numbers), tries, flow_run_id))
        self._changed.set()

    async def run(self) -> None:
        """Poll whenever something is due, until cancelled."""
        while True:
            await self._wait_for_next()
            now = utc_now()
            asked: dict[UUID, int] = {}
            while self._due and self._due[0][0] <= now:
                _, _, tries, flow_run_id = heapq.heappop(self._due)
                if flow_run_id is not None:
                    asked[flow_run_id] = tries
            try:
                taken = {run.id for run in await self._poll()}
            except Exception:
                self._logger.debug("A poll out of turn failed; the regular one follows.")
                continue
            for flow_run_id, tries in asked.items():
                if flow_run_id not in taken and tries < _TRIES:
                    later = utc_now() + _FIRST_RETRY * (2**tries)
                    self.wake_at(later, flow_run_id, tries=tries + 1)

    async def _wait_for_next(self) -> None:
        while True:
            self._changed = anyio.Event()
            if not self._due:
                await self._changed.wait()
                continue
            seconds = (self._due[0][0] - utc_now()).total_seconds()
            if seconds <= 0:
                return
            with anyio.move_on_after(seconds):
                await self._changed.wait()
