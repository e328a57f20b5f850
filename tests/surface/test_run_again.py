"""A running run that a person sets to an end and retries: never two attempts at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Crashed, Paused, Pending, Running, Scheduled

from prefect_heteroflow.attempts.run_again import was_scheduled_by_hand
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "run-again"


@pytest.fixture
def workers(
    request: pytest.FixtureRequest, server: PrefectServer, tmp_path: Path, api: Api
) -> Iterator[list[Worker]]:
    """On machines of their own, each with room for one run."""
    pool = f"{POOL}-{request.param}"
    api.create_pool(pool, "heteroflow-process")
    found = [
        Worker(server, tmp_path, pool=pool, node=f"{pool}-{i}", limit=1, other_machine=True)
        for i in range(request.param)
    ]
    with ExitStack() as stack:
        for worker in found:
            stack.enter_context(worker)
        yield found


def attempts_alive(workers: list[Worker]) -> int:
    return sum(
        "prefect_heteroflow.engine" in process.cmdline()
        for worker in workers
        for process in psutil.Process(worker.pid).children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
    )


@pytest.mark.parametrize("workers", [1, 2], indirect=True, ids=["one worker", "two workers"])
def test_attempt_of_a_run_that_is_retried_by_hand_is_ended_before_the_next_one_starts(
    api: Api, workers: list[Worker], tmp_path: Path
) -> None:
    flow = api.deploy("gated", workers[0].pool, name="again", job_variables={"memory_mb": 512})
    run = api.submit(flow, {"folder": str(tmp_path)})
    wait_until((tmp_path / "started-1").exists, what="attempt 1", timeout_seconds=90)
    wait_until(lambda: api.rows(run), what="its row")
    path = f"/flow_runs/{run}/set_state"
    api.post(path, {"state": {"type": "CRASHED", "message": "by a person"}, "force": True})
    api.post(path, {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})
    wait_until((tmp_path / "started-2").exists, what="attempt 2", timeout_seconds=90)
    assert attempts_alive(workers) == 1
    (tmp_path / "gate-2").touch()
    assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert (first["status"], second["status"]) == ("cancelled", "completed")
    assert "Somebody scheduled the run again while this attempt ran" in first["decision"]


def awaiting_end() -> State[None]:
    return Scheduled(name="AwaitingEnd")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([Pending, Running], False),
        ([Pending, Running, AwaitingRetry], False),
        ([Running, Crashed, AwaitingRetry, Pending], False),
        ([Running, Crashed, AwaitingRetry, Pending, Running, AwaitingRetry], False),
        ([Running, Paused, Scheduled, Pending, awaiting_end], False),
        ([Running, Crashed, AwaitingRetry], True),
        ([Running, Crashed, AwaitingRetry, Pending, awaiting_end], True),
        ([Running, Scheduled, Pending, awaiting_end], True),
    ],
    ids=[
        "runs",
        "own retry of the flow",
        "next attempt about to run",
        "own retry of the flow in a later attempt",
        "resumed before its process had ended",
        "retried by hand",
        "taken by another worker after that",
        "scheduled by hand without a last word",
    ],
)
def test_attempt_is_ended_only_when_somebody_else_scheduled_its_run(
    states: list[Callable[[], State[None]]], expected: bool
) -> None:
    made = [
        state().model_copy(
            update={"timestamp": datetime(2026, 1, 1, second=n, tzinfo=timezone.utc)}
        )
        for n, state in enumerate(states)
    ]
    assert was_scheduled_by_hand(list(reversed(made))) is expected
