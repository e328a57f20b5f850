"""Bodies that cannot be sent to a child: they run in the flow's process, with their limits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from prefect import Task, flow, task

from prefect_heteroflow import HeteroTaskRunner
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

LONG_SECONDS = 30.0


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    with flows_run_here(server):
        yield


def _task_of(kind: str, lock: threading.Lock) -> Task[[], None]:
    @task(timeout_seconds=1)
    def waits() -> None:
        over = time.monotonic() + LONG_SECONDS
        while time.monotonic() < over and not lock.locked():
            time.sleep(0.01)

    @task(timeout_seconds=1)
    async def awaits() -> None:
        assert not lock.locked()
        await asyncio.sleep(LONG_SECONDS)

    return waits if kind == "sync" else awaits  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_body_that_cannot_be_pickled_keeps_its_time_limit(kind: str) -> None:
    """As with threads: a lock beside the task must not take its `timeout_seconds` away."""
    limited = _task_of(kind, threading.Lock())

    @flow(task_runner=HeteroTaskRunner(max_retries=0))
    def one() -> tuple[str, str | None]:
        future = limited.submit()
        future.wait()
        return future.state.name, future.state.message

    assert one() == ("TimedOut", "Task run exceeded timeout of 1.0 second(s)")
