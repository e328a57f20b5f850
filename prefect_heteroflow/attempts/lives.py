"""The attempts that one worker looks after, by the run of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import anyio

if TYPE_CHECKING:
    from prefect_heteroflow.attempts.life import AttemptLife

_ASK_SECONDS = 0.1  # as core does that waits for its slots


class Lives:
    """One life per run: what follows in place takes the place of what was before.

    Args:
        on_their_way: Runs that the worker has taken and whose life has not begun.
        ask_pool: Called when a run has left that was due again in the meantime.
    """

    def __init__(
        self, on_their_way: Callable[[], Collection[UUID]], ask_pool: Callable[[], None]
    ) -> None:
        self._on_their_way = on_their_way
        self._ask_pool = ask_pool
        self._lives: dict[UUID, AttemptLife] = {}
        self._asked_for: set[UUID] = set()
        self._cancelled_early: set[UUID] = set()
        """Runs that were cancelled between the moment they were taken and their life here."""
        self._taken_at: dict[UUID, datetime] = {}

    def __iter__(self) -> Iterator[AttemptLife]:
        """What is looked after now; it may change meanwhile."""
        return iter(tuple(self._lives.values()))

    def __contains__(self, flow_run_id: UUID) -> bool:
        """Whether that run's attempt is here."""
        return flow_run_id in self._lives

    def of(self, flow_run_id: UUID) -> AttemptLife | None:
        """The attempt of that run, if it is here."""
        return self._lives.get(flow_run_id)

    def add(self, life: AttemptLife) -> None:
        """Look after it, in the place of the attempt of the same run that was here before."""
        flow_run_id = life.flow_run.id
        self._lives[flow_run_id] = life
        self._asked_for.discard(flow_run_id)

    def forget(self, flow_run_id: UUID) -> None:
        """It is not looked after any more."""
        self._lives.pop(flow_run_id, None)
        if flow_run_id in self._asked_for:
            self._asked_for.discard(flow_run_id)
            self._ask_pool()

    async def all_gone(self) -> None:
        """Return when nothing is looked after and nothing is on its way."""
        while self._lives or self._on_their_way():  # noqa: ASYNC110 - core keeps half of it
            await anyio.sleep(_ASK_SECONDS)

    def has_task(self, task_id: UUID) -> bool:
        """Whether an attempt of that task is here."""
        return any(life.task_id == task_id for life in self)

    def is_busy_with(self, flow_run_id: UUID) -> bool:
        """Whether that run's attempt is here, or on its way to."""
        return flow_run_id in self._lives or flow_run_id in self._on_their_way()

    def asked_for(self, flow_run_id: UUID) -> bool:
        """A run is due. Whether an attempt of it is still here: the pool is asked when it left."""
        if flow_run_id not in self._lives:
            return False
        self._asked_for.add(flow_run_id)
        return True

    async def cancel(self, flow_run_id: UUID) -> bool:
        """Cancel the attempt of that run if it is here, or as soon as it is."""
        life = self._lives.get(flow_run_id)
        if life is None and flow_run_id in self._on_their_way():
            self._cancelled_early.add(flow_run_id)
            return True
        if life is None or life.is_settled:
            return False
        await life.request_cancel()
        return True

    def was_cancelled_early(self, flow_run_id: UUID) -> bool:
        """Whether it was cancelled on its way here."""
        return flow_run_id in self._cancelled_early

    def about_to_take(self, flow_run_ids: Collection[UUID], now: datetime) -> None:
        """Those runs are being taken; cancels of a time before they were scheduled are over."""
        self._cancelled_early.difference_update(flow_run_ids)
        # What did not become a life soon was refused.
        self._taken_at = {
            known: at for known, at in self._taken_at.items() if known in self._on_their_way()
        }
        for flow_run_id in flow_run_ids:  # a poll may tell again of one that is on its way
            self._taken_at.setdefault(flow_run_id, now)

    def taken_at(self, flow_run_id: UUID) -> datetime | None:
        """The moment before that run was taken; told once."""
        return self._taken_at.pop(flow_run_id, None)
