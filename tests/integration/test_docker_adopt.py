"""A worker that dies loses nothing: the next one watches its containers again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.counting_proxy import CountingProxy
from tests.support.docker_engine import DockerEngine
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, StartWorker, Worker

POOL = "docker-adopt"


@pytest.fixture
def worker(docker_worker: StartWorker, engine: DockerEngine, plain_image: str) -> Iterator[Worker]:
    with docker_worker(engine, pool=POOL, node="adopt-node") as started:
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


def test_slot_of_a_concurrency_limit_is_renewed_after_the_restart_too(
    server: PrefectServer,
    api: Api,
    docker_worker: StartWorker,
    engine: DockerEngine,
    plain_image: str,
    tmp_path: Path,
) -> None:
    renewed = "POST /v2/concurrency_limits/leases/{id}/renew"
    variables = {
        "image": plain_image,
        "memory_mb": 64,
        "volumes": [f"{tmp_path}:{tmp_path}"],
        "command": f"sh -c 'until [ -e {tmp_path}/gate ]; do sleep 0.1; done'",
    }
    with CountingProxy(port=server.port) as proxy:
        through = {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.port}/api"}
        with docker_worker(engine, pool=POOL, node="adopt-slot", settings=through) as worker:
            flow = api.deploy(
                "host_oom", POOL, name="slot", job_variables=variables, concurrency_limit=1
            )
            run = api.submit(flow)
            for count in (1, 2):
                wait_until(
                    lambda n=count: [it.kind for it in proxy.requests].count(renewed) == n,
                    what=f"renewal {count}",
                    timeout_seconds=60,
                )
                if count == 1:
                    worker.kill()
                    worker.start()
            (tmp_path / "gate").touch()
            assert api.wait_end(run).name == "Completed"
    statuses = [it.status for it in proxy.requests if it.kind == renewed]
    assert statuses == [204, 204]


def test_row_that_the_killed_worker_had_not_written_says_what_memory_the_attempt_had(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"sh -c 'until [ -e {gate} ]; do sleep 0.1; done'"
    run = submit(api, command, plain_image, tmp_path)
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    worker.kill()
    api.rewrite_rows(run, [])
    gate.touch()
    worker.start()
    assert api.wait_end(run).name == "Completed"
    assert [(r["status"], r["memory_mb"]) for r in api.rows(run)] == [("completed", 64)]


def test_worker_that_died_between_decision_and_deed_goes_on_with_what_was_decided(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path
) -> None:
    """Rows say "attempt 1 failed, attempt 2 scheduled", while the run is still Running."""
    command = f"sh -c 'echo x >> {tmp_path}/runs; until [ -e {tmp_path}/gate ]; do sleep 0.1; done'"
    run = submit(api, command, plain_image, tmp_path)
    api.wait_state(run, "Running")
    wait_until((tmp_path / "runs").exists, what="start of the job")
    worker.kill()
    (first,) = api.rows(run)
    planned = {**first, "attempt": 2, "status": "scheduled", "memory_mb": 128, "started": None}
    api.rewrite_rows(run, [{**first, "status": "failed", "failure": "NodeLost"}, planned])
    (tmp_path / "gate").touch()
    worker.start()
    assert api.wait_end(run).name == "Completed"
    assert [(r["status"], r["memory_mb"]) for r in api.rows(run)] == [
        ("failed", 64),
        ("completed", 128),
    ]


def test_container_that_is_gone_after_the_restart_counts_as_a_lost_node(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str, tmp_path: Path
) -> None:
    command = f"sh -c 'echo x >> {tmp_path}/runs; [ $HETEROFLOW_ATTEMPT = 2 ] || sleep 600'"
    run = submit(api, command, plain_image, tmp_path)
    api.wait_state(run, "Running")
    wait_until((tmp_path / "runs").exists, what="start of the job")
    worker.kill()
    for container in engine.client().containers.list(
        filters={"label": f"io.prefect-heteroflow.flow-run-id={run}"}
    ):
        container.remove(force=True)
    worker.start()
    assert api.wait_end(run).name == "Completed"
    assert [r["failure"] for r in api.rows(run)] == ["NodeLost", None]


def test_one_container_that_cannot_be_taken_over_does_not_keep_the_others(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = f"sh -c 'until [ -e {gate} ]; do sleep 0.1; done'"
    doomed = api.deploy("host_oom", POOL, name="doomed", job_variables={"image": plain_image})
    variables = {"command": command, "memory_mb": 64, "volumes": [f"{tmp_path}:{tmp_path}"]}
    first = api.submit(doomed, job_variables=variables)
    second = submit(api, command, plain_image, tmp_path)
    for run in (first, second):
        api.wait_state(run, "Running")
    worker.kill()
    api.delete(f"/deployments/{doomed}")
    worker.start()
    gate.touch()
    assert api.wait_end(second).name == "Completed"
    assert api.wait_end(first).is_final


def test_run_cancelled_while_its_worker_was_away_takes_its_container_along(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str, tmp_path: Path
) -> None:
    run = submit(api, f"sh -c 'echo x >> {tmp_path}/runs; sleep 600'", plain_image, tmp_path)
    wait_until((tmp_path / "runs").exists, what="start of the job")
    wait_until(lambda: api.rows(run), what="row of attempt 1")
    worker.kill()
    api.cancel(run)
    worker.start()
    assert api.wait_end(run).name == "Cancelled"
    label = {"label": f"io.prefect-heteroflow.flow-run-id={run}"}
    client = engine.client()
    wait_until(
        lambda: not client.containers.list(all=True, filters=label),
        what="removal of the container",
        timeout_seconds=60,
    )
    assert [row["status"] for row in api.rows(run)] == ["cancelled"]


def test_container_is_watched_again_by_a_worker_of_another_pool_on_its_node(
    docker_worker: StartWorker,
    engine: DockerEngine,
    api: Api,
    worker: Worker,
    plain_image: str,
    tmp_path: Path,
) -> None:
    """It finds the container by its labels; the row and the run stay those of their pool."""
    gate = tmp_path / "gate"
    command = f"sh -c 'echo x >> {tmp_path}/runs; until [ -e {gate} ]; do sleep 0.1; done'"
    run = submit(api, command, plain_image, tmp_path)
    api.wait_state(run, "Running")
    wait_until((tmp_path / "runs").exists, what="start of the job")
    worker.stop()
    with docker_worker(engine, pool="docker-adopt-other", node="adopt-node") as heir:
        wait_until(lambda: "watches attempt 1 again" in heir.log(), what="adoption")
        gate.touch()
        assert api.wait_end(run).name == "Completed"
    assert (tmp_path / "runs").read_text() == "x\n"
    rows = [(row["attempt"], row["pool"], row["status"]) for row in api.rows(run)]
    assert rows == [(1, POOL, "completed")]
