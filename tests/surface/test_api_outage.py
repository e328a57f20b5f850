"""The Prefect server goes away at a bad moment: nothing crashes, nothing is done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.stand_in import stand_in
from tests.support.workers import Api, Worker

POOL = "outage"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with PrefectServer(tmp_path_factory.mktemp("outage")) as started:
        yield started


@pytest.fixture
def own_api(own_server: PrefectServer) -> Iterator[Api]:
    with contextlib.closing(Api(own_server)) as found:
        found.create_pool(POOL, "heteroflow-process")
        yield found


@pytest.fixture
def worker(own_server: PrefectServer, own_api: Api, tmp_path: Path) -> Iterator[Worker]:
    # Prefect's client would ask five times, for a minute, before anybody hears of an outage.
    settings = {"PREFECT_CLIENT_MAX_RETRIES": "0"}
    with Worker(
        own_server, tmp_path, pool=POOL, node="outage", memory_mb=4096, settings=settings
    ) as started:
        yield started


def job(folder: Path) -> str:
    """Cannot reach its server in the first attempt."""
    error = "requests.exceptions.ConnectTimeout: timed out"
    return f"sh -c 'echo x >> {folder}/runs; [ $HETEROFLOW_ATTEMPT = 2 ] || (echo {error}; exit 1)'"


def test_outage_between_two_attempts_in_place_is_waited_out(
    own_server: PrefectServer, own_api: Api, worker: Worker, tmp_path: Path
) -> None:
    """The worker waits 2 s for the next attempt; then it has to ask for the run, and cannot."""
    flow = own_api.deploy("sleepy", POOL, name="between", job_variables={"memory_mb": 64})
    variables = {"command": job(tmp_path), "retry_delay": 2}
    run = own_api.submit(flow, job_variables=variables)
    own_api.wait_state(run, "AwaitingRetry")
    own_server.kill()
    wait_until(
        lambda: any(told in worker.log() for told in ("is kept and told again", "over its pool")),
        what="the worker's notice of the outage",
        timeout_seconds=60,
    )
    own_server.start()
    with contextlib.closing(Api(own_server)) as api:
        assert api.wait_end(run).name == "Completed"
        assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]
        assert [row["status"] for row in api.rows(run)] == ["failed", "completed"]
    assert (tmp_path / "runs").read_text() == "x\nx\n"


GIVES_UP_AFTER = 16
"""Polls; Prefect's own worker ends itself after 12 that failed, and after one 429."""


@pytest.mark.parametrize("status", [500, 429])
def test_worker_outlives_an_api_that_fails_for_longer_than_core_would_bear(
    own_server: PrefectServer, own_api: Api, tmp_path: Path, status: int
) -> None:
    settings = {
        "PREFECT_CLIENT_MAX_RETRIES": "0",
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "1",
    }
    go_on = tmp_path / "go-on"
    command = f"sh -c 'until [ -e {go_on} ]; do sleep 0.1; done'"
    flow = own_api.deploy("sleepy", POOL, name="long-outage", job_variables={"memory_mb": 64})
    with Worker(
        own_server, tmp_path, pool=POOL, node="long", memory_mb=4096, settings=settings
    ) as worker:
        run = own_api.submit(flow, job_variables={"command": command})
        own_api.wait_state(run, "Running")
        own_server.kill()
        with stand_in(own_server.port, status) as asked:
            wait_until(
                lambda: sum("get_scheduled_flow_runs" in path for path in asked) > GIVES_UP_AFTER,
                what=f"{GIVES_UP_AFTER} polls that failed",
                timeout_seconds=120,
            )
            go_on.touch()
            wait_until(
                lambda: "the end of attempt 1 is kept" in worker.log(),
                what="the end of the attempt amid the outage",
                timeout_seconds=60,
            )
        own_server.start()
        with contextlib.closing(Api(own_server)) as api:
            assert api.wait_end(run).name == "Completed"
            again = api.submit(flow, job_variables={"command": "true"})
            assert api.wait_end(again).name == "Completed"
