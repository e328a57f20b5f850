"""SIGTERM, SIGKILL and cancel while the body of a flow does not run: in a hook, between retries."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prefect_heteroflow.environment import TASK_ID
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "termination"


@pytest.fixture(scope="module")
def worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    api.create_pool(POOL, "heteroflow-process")
    root = tmp_path_factory.mktemp("termination")
    with Worker(server, root, pool=POOL, node="termination", memory_mb=4096) as running:
        yield running


def submit(api: Api, flow: str, **parameters: str) -> str:
    deployed = api.deploy(flow, POOL, name="termination", job_variables={"memory_mb": 512})
    return api.submit(deployed, parameters)


def waiting(api: Api, flow: str, tmp_path: Path) -> str:
    """A run whose process waits for a retry of the flow's own; it would succeed."""
    run = submit(api, flow, marker=str(tmp_path / "marker"))
    api.wait_state(run, "AwaitingRetry", timeout_seconds=60)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    return run


def in_its_hook(api: Api, tmp_path: Path) -> str:
    notes = tmp_path / "notes"
    run = submit(api, "stays_in_its_hook", notes=str(notes))
    wait_until(notes.exists, what="start of the hook", timeout_seconds=60)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    return run


def send(number: signal.Signals, worker: Worker, run: str) -> None:
    (process,) = (
        child
        for child in psutil.Process(worker.pid).children()
        if child.environ().get(TASK_ID) == run
    )
    os.kill(process.pid, number)


def final_states(api: Api, run: str) -> list[str]:
    return [state.name for state in api.states(run) if state.is_final]


@pytest.mark.parametrize("flow", ["own_retry_later", "async_own_retry_later"])
def test_cancel_of_a_flow_that_waits_for_its_own_retry_is_no_crash(
    api: Api, worker: Worker, tmp_path: Path, flow: str
) -> None:
    run = waiting(api, flow, tmp_path)
    api.cancel(run)
    assert api.wait_end(run, timeout_seconds=60).name == "Cancelled"
    assert final_states(api, run) == ["Cancelled"]


@pytest.mark.parametrize(
    ("number", "flow"),
    [
        (signal.SIGTERM, "own_retry_later"),
        (signal.SIGTERM, "async_own_retry_later"),
        (signal.SIGKILL, "own_retry_later"),
    ],
)
def test_kill_of_a_flow_that_waits_for_its_own_retry_counts_and_not_the_error_before(
    api: Api, worker: Worker, tmp_path: Path, number: signal.Signals, flow: str
) -> None:
    """The error that Prefect was about to retry ended the run as `ApplicationError`."""
    run = waiting(api, flow, tmp_path)
    send(number, worker, run)
    assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    assert [row["failure"] for row in api.rows(run)] == ["NodeLost", None]
    assert final_states(api, run) == ["Completed"]


def test_cancel_in_a_hook_before_the_body_is_no_crash(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    run = in_its_hook(api, tmp_path)
    api.cancel(run)
    assert api.wait_end(run, timeout_seconds=60).name == "Cancelled"
    assert final_states(api, run) == ["Cancelled"]
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes == ["running hook 1", "cancellation hook: Cancelling"]


def test_sigterm_in_a_hook_before_the_body_shows_no_end_before_the_end(
    api: Api, worker: Worker, tmp_path: Path
) -> None:
    run = in_its_hook(api, tmp_path)
    send(signal.SIGTERM, worker, run)
    assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    assert final_states(api, run) == ["Completed"]
