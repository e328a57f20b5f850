"""What one attempt in a container is given, and what it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import wait_until
from tests.support.docker_engine import DockerEngine
from tests.support.workers import Api, StartWorker, Worker

POOL = "docker-attempts"
NODE = "attempts-node"
INFERENCE_IMAGE = "vllm/vllm-openai"


@pytest.fixture(scope="module")
def worker(docker_worker: StartWorker, engine: DockerEngine, plain_image: str) -> Iterator[Worker]:
    with docker_worker(engine, pool=POOL, node=NODE, memory_mb=16384) as started:
        yield started


def submit(api: Api, image: str, command: str, **variables: object) -> str:
    flow = api.deploy("host_oom", POOL, name="attempts", job_variables={"image": image})
    delays = {"retry_delay": 0, "retry_jitter": 0}
    return api.submit(flow, job_variables={**delays, "command": command, **variables})


def log_of(api: Api, run: str, text: str) -> list[str]:
    """The log of an ended run, once it holds the text."""
    api.wait_end(run)
    wait_until(
        lambda: any(text in line for line in api.logs(run)), what=f"{text!r} in the log of {run}"
    )
    return api.logs(run)


def test_attempt_is_told_what_it_has_by_environment(
    api: Api, worker: Worker, plain_image: str
) -> None:
    run = submit(api, plain_image, "env", memory_mb=256)
    lines = log_of(api, run, "HETEROFLOW_TASK_ID")
    assert {
        f"HETEROFLOW_TASK_ID={run}",
        "HETEROFLOW_ATTEMPT=1",
        f"HETEROFLOW_NODE={NODE}",
        "HETEROFLOW_MEMORY_MB=256",
    } <= set(lines)


def test_second_attempt_is_told_why_the_first_one_failed(
    api: Api, worker: Worker, plain_image: str
) -> None:
    command = "sh -c 'env; [ $HETEROFLOW_ATTEMPT = 2 ] || exit 139'"
    run = submit(api, plain_image, command, memory_mb=256)
    lines = log_of(api, run, "HETEROFLOW_ATTEMPT=2")
    assert "HETEROFLOW_PREVIOUS_FAILURE=ProcessCrashed" in lines


def test_gpu_inference_image_left_at_the_default_gets_more_memory_and_says_so(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str
) -> None:
    engine.client().images.get(plain_image).tag(INFERENCE_IMAGE, "1")
    run = submit(api, f"{INFERENCE_IMAGE}:1", "true")
    lines = log_of(api, run, "Auto-boost")
    assert "Auto-boost GPU inference memory: 2048 → 8192MB" in lines
    assert [r["memory_mb"] for r in api.rows(run)] == [8192]


def test_gpu_inference_image_with_a_memory_of_its_own_keeps_it(
    api: Api, worker: Worker, engine: DockerEngine, plain_image: str
) -> None:
    engine.client().images.get(plain_image).tag(INFERENCE_IMAGE, "1")
    run = submit(api, f"{INFERENCE_IMAGE}:1", "true", memory_mb=2048)
    api.wait_end(run)
    assert [r["memory_mb"] for r in api.rows(run)] == [2048]


def test_full_shared_memory_is_doubled_on_the_same_node(
    api: Api, worker: Worker, plain_image: str
) -> None:
    """64 MB is the engine's default; 100 MB need 128."""
    command = "dd if=/dev/zero of=/dev/shm/block bs=1M count=100"
    run = submit(api, plain_image, command, memory_mb=512)
    assert api.wait_end(run).name == "Completed"
    assert [(r["failure"], r["shm_mb"], r["node"]) for r in api.rows(run)] == [
        ("SharedMemoryExhausted", None, NODE),
        (None, 128, NODE),
    ]


def test_secret_environment_values_are_nowhere_to_be_read(
    api: Api, worker: Worker, plain_image: str
) -> None:
    secret = "hunter2-is-the-secret"
    command = "sh -c 'echo failing; exit 7'"
    run = submit(
        api,
        plain_image,
        command,
        memory_mb=64,
        max_retries=1,
        env={"API_TOKEN": secret},
    )
    end = api.wait_end(run)
    seen = [end.message, *api.logs(run), str(api.rows(run)), worker.log()]
    assert not [text for text in seen if secret in text]


def test_no_retry_leaves_an_oom_as_failed_after_one_attempt(
    api: Api, worker: Worker, plain_image: str
) -> None:
    fill = "b = bytearray(200 * 2**20); [b.__setitem__(i, 1) for i in range(0, len(b), 4096)]"
    run = submit(api, plain_image, f'python3 -c "{fill}"', memory_mb=64, retry_strategy="no_retry")
    end = api.wait_end(run)
    assert (end.type, end.name) == ("FAILED", "Failed")
    assert [r["failure"] for r in api.rows(run)] == ["CpuOutOfMemory"]


def test_command_that_the_image_lacks_stops_at_once_and_is_named(
    api: Api, worker: Worker, plain_image: str
) -> None:
    run = submit(api, plain_image, "no-such-program --now", memory_mb=64)
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert "no-such-program" in end.message
    assert [r["failure"] for r in api.rows(run)] == ["InvalidConfig"]
