"""Images from a real registry: what cannot be pulled stops, what may come is tried again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from prefect_heteroflow.docker_job import RUN_LABEL
from tests.support import wait_until
from tests.support.docker_engine import DockerEngine
from tests.support.images import PLAIN_IMAGE
from tests.support.registry import FlakyProxy, Registry
from tests.support.workers import Api, StartWorker, Worker

POOL = "docker-registry"


@pytest.fixture(scope="module")
def worker(docker_worker: StartWorker, engine: DockerEngine, plain_image: str) -> Iterator[Worker]:
    with docker_worker(engine, pool=POOL, node="registry-node") as started:
        yield started


def submit(api: Api, image: str) -> str:
    flow = api.deploy("host_oom", POOL, name="pulled", job_variables={"image": image})
    return api.submit(
        flow,
        job_variables={
            "command": "true",
            "image_pull_policy": "Always",
            "memory_mb": 64,
            "retry_delay": 0,
            "retry_jitter": 0,
        },
    )


def test_unknown_tag_is_image_not_found_and_stops(
    api: Api, worker: Worker, registry: Registry
) -> None:
    run = submit(api, f"{registry.address}/app:nope")
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert [r["failure"] for r in api.rows(run)] == ["ImageNotFound"]
    assert "nope" in end.message


def test_registry_that_wants_a_password_is_image_pull_back_off_and_stops(
    api: Api, worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Registry(tmp_path_factory.mktemp("private"), auth=("user", "secret")) as private:
        run = submit(api, f"{private.address}/app:1")
        end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert [r["failure"] for r in api.rows(run)] == ["ImagePullBackOff"]


def test_registry_that_answers_503_is_tried_again_until_it_works(
    api: Api, worker: Worker, engine: DockerEngine, registry: Registry
) -> None:
    registry.push(engine.client(), PLAIN_IMAGE, "flaky:1")
    with FlakyProxy(registry.address) as proxy:
        # The engine itself asks three times before it gives up.
        proxy.fail_next(3)
        run = submit(api, f"{proxy.address}/flaky:1")
        assert api.wait_end(run).name == "Completed"
    rows = api.rows(run)
    assert [r["failure"] for r in rows] == ["TransientError", None]
    assert rows[0]["never_started"]


def test_cancel_while_the_image_is_pulled_ends_at_once_and_starts_nothing(
    api: Api, worker: Worker, engine: DockerEngine, registry: Registry
) -> None:
    """The pull itself cannot be taken back: it goes on, and comes to nothing."""
    registry.push(engine.client(), PLAIN_IMAGE, "slow:1")
    with FlakyProxy(registry.address) as proxy:
        proxy.hold()
        run = submit(api, f"{proxy.address}/slow:1")
        wait_until(proxy.held.is_set, what="a request of the pull", timeout_seconds=60)
        api.cancel(run)
        assert api.wait_end(run, timeout_seconds=30).name == "Cancelled"
        proxy.release()
        image = f"{proxy.address}/slow:1"
        wait_until(lambda: image in tags(engine), what="end of the pull", timeout_seconds=60)
        # The next run starts after whatever the first one could still have started.
        after = submit(api, image)
        assert api.wait_end(after).name == "Completed"
    assert [row["status"] for row in api.rows(run)] == ["cancelled"]
    ran = engine.client().events(
        since=0, until=int(time.time()) + 1, decode=True, filters={"event": "create"}
    )
    runs = [event["Actor"]["Attributes"].get(RUN_LABEL) for event in ran]
    assert after in runs
    assert run not in runs


def tags(engine: DockerEngine) -> list[str]:
    return [tag for image in engine.client().images.list() for tag in image.tags]
