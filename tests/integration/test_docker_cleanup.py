"""Cleanup before a retry on a Docker node: files go with their container, the hook gets its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_engine import DockerEngine
from tests.support.workers import Api, StartWorker, Worker

POOL = "docker-cleanup"
NODE = "cleanup-node"
TIMED_OUT = "requests.exceptions.ConnectTimeout: timed out"
HOOK_SECONDS = {"PREFECT_INTEGRATIONS_HETEROFLOW_CLEANUP_HOOK_TIMEOUT": "2"}


@pytest.fixture(scope="module")
def worker(docker_worker: StartWorker, engine: DockerEngine, plain_image: str) -> Iterator[Worker]:
    with docker_worker(
        engine, pool=POOL, node=NODE, memory_mb=4096, settings=HOOK_SECONDS
    ) as started:
        yield started


def submit(api: Api, image: str, steps: str, **variables: object) -> str:
    """A job that cannot reach its server in its first attempt."""
    flow = api.deploy("host_oom", POOL, name="cleanup", job_variables={"image": image})
    end = f"[ $HETEROFLOW_ATTEMPT = 2 ] || {{ echo {TIMED_OUT}; exit 1; }}"
    delays = {"retry_delay": 0, "retry_jitter": 0, "memory_mb": 64}
    return api.submit(
        flow, job_variables={**delays, "command": f"sh -c '{steps}; {end}'", **variables}
    )


@pytest.mark.parametrize("user", ["0", "1234"])
def test_scratch_folder_is_there_for_any_user_and_new_with_each_attempt(
    api: Api, worker: Worker, plain_image: str, tmp_path: Path, user: str
) -> None:
    tmp_path.chmod(0o777)
    steps = "cd $HETEROFLOW_SCRATCH; touch model.lock; ls > /notes/$HETEROFLOW_ATTEMPT; pwd"
    run = submit(
        api,
        plain_image,
        steps,
        volumes=[f"{tmp_path}:/notes"],
        container_create_kwargs={"user": user},
    )
    assert api.wait_end(run).name == "Completed"
    assert {it.name: it.read_text() for it in tmp_path.iterdir()} == {
        "1": "model.lock\n",
        "2": "model.lock\n",
    }
    assert [row["cleanup"] for row in api.rows(run)] == [None, None]


def test_container_with_a_read_only_root_is_told_of_no_scratch_folder(
    api: Api, worker: Worker, plain_image: str
) -> None:
    run = submit(
        api,
        plain_image,
        "[ -z $HETEROFLOW_SCRATCH ]",
        container_create_kwargs={"read_only": True},
    )
    assert api.wait_end(run).name == "Completed"


HOOKS = [
    ("command", "sh -c 'rm /data/stale.lock'", "Cleaned up: the cleanup hook succeeded."),
    ("fails", "sh -c 'echo no space; exit 3'", "the cleanup hook ended with status 3: no space"),
    ("hangs", "sleep 600", "the cleanup hook was ended after 2 s"),
    ("missing", "no-such-command", "the cleanup hook could not be run"),
]


@pytest.mark.parametrize(("hook", "said"), [it[1:] for it in HOOKS], ids=[it[0] for it in HOOKS])
def test_hook_runs_in_a_container_with_the_volumes_of_the_attempt_and_is_bounded(
    api: Api,
    worker: Worker,
    engine: DockerEngine,
    plain_image: str,
    tmp_path: Path,
    hook: str,
    said: str,
) -> None:
    steps = (
        "if [ $HETEROFLOW_ATTEMPT = 1 ]; then touch /data/stale.lock; fi;"
        " ls /data > /data/found-$HETEROFLOW_ATTEMPT"
    )
    run = submit(api, plain_image, steps, volumes=[f"{tmp_path}:/data"], cleanup_hook=hook)
    assert api.wait_end(run).name == "Completed"
    assert said in api.rows(run)[1]["cleanup"]
    is_clean = "stale.lock" not in (tmp_path / "found-2").read_text()
    assert is_clean == ("rm" in hook)
    left = engine.client().containers.list(
        all=True, filters={"label": f"io.prefect-heteroflow.flow-run-id={run}"}
    )
    assert left == []
