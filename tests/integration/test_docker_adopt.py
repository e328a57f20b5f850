"""A worker that dies loses nothing: the next one watches its containers again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.docker_engine import DockerEngine
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "docker-adopt"


@pytest.fixture
def worker(
    server: PrefectServer, api: Api, engine: DockerEngine, plain_image: str, tmp_path: Path
) -> Iterator[Worker]:
    api.create_pool(POOL, "heteroflow")
    with Worker(
        server,
        tmp_path,
        pool=POOL,
        node="adopt-node",
        worker_type="heteroflow",
        gpus="none",
        settings={"DOCKER_HOST": engine.host},
    ) as started:
        yield started


def submit(api: Api, command: str, image: str, folder: Path, **variables: object) -> str:
    flow = api.deploy("host_oom", POOL, name="adopted", job_variables={"image": image})
    return api.submit(
        flow,
        job_variables={
            "command": command,
            "memory_mb": 64,
            "retry_delay": 0,
            "retry_jitter": 0,
            "volumes": [f"{folder}:{folder}"],
            **variables,
        },
    )


def test_container_that_ends_after_the_restart_is_settled_once(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"sh -c 'echo x >> {tmp_path}/runs; until [ -e {gate} ]; do sleep 0.1; done'"
    run = submit(api, command, plain_image, tmp_path)
    api.wait_state(run, "Running")
    wait_until((tmp_path / "runs").exists, what="start of the job")
    worker.kill()
    worker.start()
    wait_until(lambda: "watches attempt 1 again" in worker.log(), what="adoption")
    gate.touch()
    assert api.wait_end(run).name == "Completed"
    assert (tmp_path / "runs").read_text() == "x\n"
    assert [(r["attempt"], r["status"]) for r in api.rows(run)] == [(1, "completed")]


def test_container_that_was_killed_for_memory_meanwhile_is_retried_with_more(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    fill = "b = bytearray(90 * 2**20); [b.__setitem__(i, 1) for i in range(0, len(b), 4096)]"
    grow = f'python3 -c "{fill}"'
    command = f"sh -c 'until [ -e {gate} ]; do sleep 0.1; done; exec {grow}'"
    run = submit(api, command, plain_image, tmp_path)
    api.wait_state(run, "Running")
    worker.kill()
    gate.touch()
    worker.start()
    assert api.wait_end(run).name == "Completed"
    assert [(r["failure"], r["memory_mb"]) for r in api.rows(run)] == [
        ("CpuOutOfMemory", 64),
        (None, 128),
    ]
