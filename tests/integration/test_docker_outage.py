"""An engine that goes away: what it holds is neither given up nor doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.docker_engine import DockerEngine, why_no_engine
from tests.support.images import PLAIN_IMAGE, ensure_image, why_not_buildable
from tests.support.needs import need
from tests.support.workers import Api, StartWorker, Worker

POOL = "docker-outage"


@pytest.fixture
def own_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DockerEngine]:
    """With the arguments that the test names."""
    need(why_no_engine() or why_not_buildable(PLAIN_IMAGE))
    folder = tmp_path / "engine"
    folder.mkdir()
    with DockerEngine(folder, args=request.param, data_mb=2048) as started:
        ensure_image(started.client(), PLAIN_IMAGE)
        yield started


@pytest.fixture
def worker(docker_worker: StartWorker, own_engine: DockerEngine) -> Iterator[Worker]:
    with docker_worker(own_engine, pool=POOL, node="outage-node", memory_mb=4096) as started:
        yield started


def start_job(api: Api, folder: Path) -> str:
    """It writes a line when it starts, and ends when the gate is there."""
    command = f"sh -c 'echo x >> {folder}/runs; until [ -e {folder}/gate ]; do sleep 0.1; done'"
    flow = api.deploy("host_oom", POOL, name="outage", job_variables={"image": PLAIN_IMAGE})
    variables = {"command": command, "memory_mb": 64, "volumes": [f"{folder}:{folder}"]}
    run = api.submit(flow, job_variables={**variables, "network_mode": "none"})
    api.wait_state(run, "Running")
    wait_until((folder / "runs").exists, what="start of the job")
    return run


def is_told(api: Api, run: str, text: str) -> None:
    wait_until(
        lambda: any(text in line for line in api.logs(run)), what=f"{text!r} in the run's log"
    )


@pytest.mark.parametrize("own_engine", [["--live-restore"]], indirect=True, ids=["live"])
def test_container_that_outlives_its_engine_is_watched_again(
    api: Api, worker: Worker, own_engine: DockerEngine, tmp_path: Path
) -> None:
    run = start_job(api, tmp_path)
    own_engine.kill()
    is_told(api, run, "engine does not answer")
    own_engine.start()
    is_told(api, run, "engine is back")
    (tmp_path / "gate").touch()
    assert api.wait_end(run).name == "Completed"
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]
    assert (tmp_path / "runs").read_text() == "x\n"
    assert [row["status"] for row in api.rows(run)] == ["completed"]


@pytest.mark.parametrize("own_engine", [[]], indirect=True, ids=["plain"])
def test_container_that_its_engine_took_along_is_followed_by_one_more_attempt(
    api: Api, worker: Worker, own_engine: DockerEngine, tmp_path: Path
) -> None:
    run = start_job(api, tmp_path)
    own_engine.restart()
    (tmp_path / "gate").touch()
    assert api.wait_end(run).name == "Completed"
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]
    assert (tmp_path / "runs").read_text() == "x\nx\n"
    assert [row["status"] for row in api.rows(run)] == ["failed", "completed"]
    client = own_engine.client()
    wait_until(lambda: not client.containers.list(all=True), what="removal of both containers")
