"""Runs in containers of a real engine: killed for memory, and finished all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_heteroflow.infra.container import saw_oom_event
from tests.support import wait_until
from tests.support.docker_engine import DockerEngine
from tests.support.workers import FLOWS, Api, StartWorker, Worker

POOL = "docker-a"
NODE = "docker-node-a"
NO_DELAY = {"retry_delay": 0, "retry_jitter": 0}


@pytest.fixture(scope="module")
def worker(
    docker_worker: StartWorker, engine: DockerEngine, base_image: str, plain_image: str
) -> Iterator[Worker]:
    with docker_worker(engine, pool=POOL, node=NODE, memory_mb=20000) as started:
        yield started


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.txt"


def deploy(
    api: Api, flow: str, image: str, *, volumes: tuple[str, ...] = (), **variables: object
) -> str:
    mounted = [f"{FLOWS}:{FLOWS}:ro", *volumes]
    return api.deploy(
        flow,
        POOL,
        name=f"docker-{flow}",
        job_variables={"image": image, "volumes": mounted, **variables},
    )


def plain(api: Api, image: str, command: str, **variables: object) -> str:
    flow = api.deploy("host_oom", POOL, name="plain", job_variables={"image": image})
    return api.submit(flow, job_variables={**NO_DELAY, "command": command, **variables})


def allocate(need_mb: int) -> str:
    return (
        f'python3 -c "b = bytearray({need_mb} * 2**20);'
        " [b.__setitem__(i, 1) for i in range(0, len(b), 4096)]; print('enough')\""
    )


def test_flow_killed_for_memory_completes_in_attempt_2_with_twice_as_much(
    api: Api, worker: Worker, base_image: str
) -> None:
    """2048 MB job that needs about 3 GB ends Completed at 4096 MB on the same node."""
    run = api.submit(deploy(api, "host_oom", base_image), {"need_mb": 2900})
    assert api.wait_end(run).name == "Completed"
    rows = api.rows(run)
    assert [(r["failure"], r["memory_mb"], r["node"]) for r in rows] == [
        ("CpuOutOfMemory", 2048, NODE),
        (None, 4096, NODE),
    ]
    assert not any(state.is_final for state in api.states(run)[:-1])
    assert api.run(run)["job_variables"]["memory_mb"] == 4096


def test_plain_job_that_always_needs_more_ends_at_the_cap(
    api: Api, worker: Worker, plain_image: str
) -> None:
    """2048, 4096, 8192, 16384 MB, then PermanentFailure that names the cap."""
    run = plain(api, plain_image, allocate(17500))
    end = api.wait_end(run, timeout_seconds=400)
    assert (end.type, end.name) == ("FAILED", "PermanentFailure")
    assert "16384" in end.message
    assert [r["memory_mb"] for r in api.rows(run)] == [2048, 4096, 8192, 16384]


@pytest.mark.parametrize("exit_code", [0, 3])
def test_plain_job_whose_child_is_killed_for_memory_is_an_oom_whatever_it_exits_with(
    api: Api, worker: Worker, plain_image: str, exit_code: int
) -> None:
    command = f"sh -c '{allocate(400)}; exit {exit_code}'".replace("'enough'", "1")
    run = plain(api, plain_image, command, memory_mb=256)
    assert api.wait_end(run).name == ("Completed" if exit_code == 0 else "Failed")
    first = api.rows(run)[0]
    assert (first["failure"], first["exit_code"]) == ("CpuOutOfMemory", exit_code)


def test_killed_from_outside_is_not_an_oom(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str
) -> None:
    run = plain(api, plain_image, "sleep 600", max_retries=0, infrastructure_retries=0)
    api.wait_state(run, "Running")
    client = engine.client()
    (container,) = client.containers.list(
        filters={"label": f"io.prefect-heteroflow.flow-run-id={run}"}
    )
    container.kill()
    end = api.wait_end(run)
    assert end.type in ("FAILED", "CRASHED")
    assert api.rows(run)[0]["failure"] != "CpuOutOfMemory"


def test_plain_job_completes_with_its_output_in_the_log(
    api: Api, worker: Worker, plain_image: str
) -> None:
    run = plain(api, plain_image, "echo hello from the job")
    assert api.wait_end(run).name == "Completed"
    wait_until(lambda: "hello from the job" in api.logs(run), what="output in the log")


def test_image_that_does_not_exist_stops_at_once(api: Api, worker: Worker) -> None:
    run = plain(api, "heteroflow-test/no-such-image:1", "true", image_pull_policy="Never")
    end = api.wait_end(run)
    assert (end.name, api.rows(run)[0]["failure"]) == ("PermanentFailure", "ImageNotFound")


def test_image_reference_that_cannot_be_parsed_is_an_invalid_config(
    api: Api, worker: Worker
) -> None:
    run = plain(api, "Not An Image", "true")
    end = api.wait_end(run)
    assert (end.name, api.rows(run)[0]["failure"]) == ("PermanentFailure", "InvalidConfig")
    assert "Not An Image" in end.message


def test_cancel_of_a_running_container_ends_it_and_runs_the_cancellation_hook(
    api: Api, worker: Worker, engine: DockerEngine, base_image: str, notes: Path
) -> None:
    flow = deploy(api, "sleepy", base_image, volumes=(f"{notes.parent}:{notes.parent}",))
    run = api.submit(flow, {"notes": str(notes)})
    wait_until(notes.exists, what="start of the flow", timeout_seconds=60)
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    assert [state.name for state in api.states(run) if state.is_final] == ["Cancelled"]
    text = notes.read_text()
    assert "cleaned up" in text
    assert "cancellation hook" in text
    assert api.rows(run)[0]["status"] == "cancelled"


def test_containers_are_removed_after_their_end(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str
) -> None:
    run = plain(api, plain_image, "true")
    api.wait_end(run)
    wait_until(
        lambda: (
            not engine.client().containers.list(
                all=True, filters={"label": f"io.prefect-heteroflow.flow-run-id={run}"}
            )
        ),
        what="removal of the container",
    )


def test_flow_in_a_container_with_a_read_only_root_runs_by_prefects_own_engine(
    api: Api, worker: Worker, base_image: str
) -> None:
    """Our engine entry cannot be written into it."""
    flow = api.deploy(
        "hello",
        POOL,
        name="read-only",
        file="bare.py",
        job_variables={
            "image": base_image,
            "volumes": [f"{FLOWS}:{FLOWS}:ro"],
            "env": {"PREFECT_HOME": "/tmp/prefect", "HOME": "/tmp"},
            "container_create_kwargs": {"read_only": True, "tmpfs": {"/tmp": ""}},
        },
    )
    run = api.submit(flow)
    assert api.wait_end(run).type == "COMPLETED"
    assert any("read-only" in line for line in api.logs(run))


def test_kill_for_memory_is_seen_in_the_engines_events_too(
    engine: DockerEngine, plain_image: str
) -> None:
    """Under load `State.OOMKilled` stays false now and then; the event comes all the same."""
    client = engine.client()
    fill = "b = bytearray(200 * 2**20); [b.__setitem__(i, 1) for i in range(0, len(b), 4096)]"
    container = client.containers.run(
        plain_image, ["python3", "-c", fill], mem_limit="64m", memswap_limit="64m", detach=True
    )
    container.wait()
    container.reload()
    assert saw_oom_event(client, container)
    container.remove()


def test_kill_from_outside_leaves_no_such_event(engine: DockerEngine, plain_image: str) -> None:
    client = engine.client()
    container = client.containers.run(plain_image, ["sleep", "600"], detach=True)
    container.kill()
    container.wait()
    container.reload()
    assert not saw_oom_event(client, container)
    container.remove()
