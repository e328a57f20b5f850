"""Real Docker engines, images and registries; without Docker these tests are skipped.

In CI, and with `HETEROFLOW_REQUIRE_DOCKER=1`, a machine that lacks something fails them instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.support.docker_engine import DockerEngine, why_no_engine
from tests.support.images import BASE_IMAGE, PLAIN_IMAGE, ensure_image, why_not_buildable
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.registry import Registry, why_no_registry
from tests.support.shared_server import api, own_places, server
from tests.support.workers import Api, StartWorker, Worker

__all__ = ["api", "own_places", "server"]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    """An engine with a bridge network. A test that kills or restarts it needs one of its own."""
    need(why_no_engine())
    with DockerEngine(tmp_path_factory.mktemp("engine")) as started:
        yield started


@pytest.fixture(scope="session")
def gpu_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    """A second node: takes GPU requests; its containers need `network_mode="host"` or `"none"`."""
    need(why_no_engine())
    with DockerEngine(tmp_path_factory.mktemp("gpu-engine"), bridge=False, gpus=True) as started:
        yield started


@pytest.fixture(scope="session")
def base_image(engine: DockerEngine) -> str:
    """Python with Prefect, without this package, in `engine`."""
    need(why_not_buildable(BASE_IMAGE))
    return ensure_image(engine.client(), BASE_IMAGE)


@pytest.fixture(scope="session")
def plain_image(engine: DockerEngine) -> str:
    """Python alone, in `engine`."""
    need(why_not_buildable(PLAIN_IMAGE))
    return ensure_image(engine.client(), PLAIN_IMAGE)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An empty registry that lets everybody in."""
    need(why_no_registry())
    with Registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(scope="session")
def docker_worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> StartWorker:
    """Makes a pool and, for the time of a `with` block, a worker whose containers `engine` runs.

    `gpus` and `memory_mb` are what the node declares; without `memory_mb` it is probed.
    """

    @contextmanager
    def start(
        engine: DockerEngine,
        *,
        pool: str,
        node: str,
        memory_mb: int | None = None,
        gpus: str = "none",
        settings: Mapping[str, str] | None = None,
    ) -> Iterator[Worker]:
        api.create_pool(pool, "heteroflow")
        with Worker(
            server,
            tmp_path_factory.mktemp(node),
            pool=pool,
            node=node,
            worker_type="heteroflow",
            memory_mb=memory_mb,
            gpus=gpus,
            settings={"DOCKER_HOST": engine.host, **(settings or {})},
        ) as started:
            yield started

    return start
