"""Polls out of turn: when something is due, once for many, and again until it was taken."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import anyio

from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.wakeups import Wakeups

LOGGER = logging.getLogger("test")


class Pool:
    """Counts polls; gives each run that is asked for once it has been refused often enough."""

    def __init__(self, *runs: UUID, refusals: int = 0) -> None:
        self.polls = 0
        self.runs = runs
        self.refusals = refusals
        self.taken = anyio.Event()

    async def poll(self) -> list[SimpleNamespace]:
        self.polls += 1
        if self.polls <= self.refusals:
            return []
        self.taken.set()
        return [SimpleNamespace(id=run) for run in self.runs]


async def until_taken(pool: Pool, wakeups: Wakeups) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(wakeups.run)
        with anyio.fail_after(10):
            await pool.taken.wait()
        group.cancel_scope.cancel()


async def test_many_runs_due_at_once_cost_one_poll() -> None:
    runs = [uuid4() for _ in range(50)]
    pool = Pool(*runs)
    wakeups = Wakeups(pool.poll, LOGGER)  # type: ignore[arg-type]
    due = utc_now()
    for run in runs:
        wakeups.wake_at(due, run)
    await until_taken(pool, wakeups)
    assert pool.polls == 1


async def test_run_that_was_not_taken_is_asked_for_again() -> None:
    run = uuid4()
    pool = Pool(run, refusals=3)
    wakeups = Wakeups(pool.poll, LOGGER)  # type: ignore[arg-type]
    wakeups.wake_at(utc_now(), run)
    await until_taken(pool, wakeups)
    assert pool.polls == 4


async def test_nothing_is_polled_before_it_is_due() -> None:
    pool = Pool()
    wakeups = Wakeups(pool.poll, LOGGER)  # type: ignore[arg-type]
    begun = utc_now()
    wakeups.wake_at(begun + timedelta(seconds=0.5), None)
    await until_taken(pool, wakeups)
    assert utc_now() - begun >= timedelta(seconds=0.5)


async def test_poll_that_fails_does_not_end_the_loop() -> None:
    taken = anyio.Event()
    polls = 0

    async def poll() -> list[SimpleNamespace]:
        nonlocal polls
        polls += 1
        if polls == 1:
            wakeups.wake_at(utc_now(), None)
            raise RuntimeError("the API is away")
        taken.set()
        return []

    wakeups = Wakeups(poll, LOGGER)  # type: ignore[arg-type]
    wakeups.wake_at(utc_now(), None)
    async with anyio.create_task_group() as group:
        group.start_soon(wakeups.run)
        with anyio.fail_after(10):
            await taken.wait()
        group.cancel_scope.cancel()
    assert polls == 2
