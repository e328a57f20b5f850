"""Engines, server and workers of `benchmarks/recovery.py`, and what is seen of their containers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import docker
import docker.errors

from benchmarks.recovery_jobs import MOUNT, Bench
from tests.support import wait_until
from tests.support.counting_proxy import CountingProxy
from tests.support.docker_engine import DockerEngine
from tests.support.images import BASE_IMAGE, PLAIN_IMAGE, ensure_image
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

FLOW_RUN_LABEL = "io.prefect.flow-run-id"
TASK_LABEL = "io.prefect-heteroflow.task-id"
NO_DELAYS = {"retry_delay": 0, "retry_jitter": 0, "escalation_delay": 0}
SMALL, LARGE, STOCK, COUNTED = "bench-small", "bench-large", "bench-stock", "bench-counted"
SMALL_GPU_MB, LARGE_GPU_MB = 8192, 24576


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one container."""

    run: str
    """The front run, or the run itself where there is no other."""
    finished_at: float
    """The engine's `State.FinishedAt`, seconds since the epoch: when the process was reaped."""
    told_at: float
    """When the engine told of it (its `die` event)."""
    oom_killed: bool


class Deaths:
    """Listens to the ends of all containers of one engine."""

    def __init__(self, engine: DockerEngine) -> None:
        self._client = engine.client(timeout_seconds=600)
        self._asker = engine.client()
        self._seen: list[Death] = []
        self._events = self._client.events(
            decode=True, filters={"type": "container", "event": "die"}
        )
        threading.Thread(target=self._listen, daemon=True, name="deaths").start()

    def of(self, run: str) -> list[Death]:
        """The ends of the run's containers, in their order."""
        return sorted(
            (death for death in list(self._seen) if death.run == run),
            key=lambda death: death.finished_at,
        )

    def wait(self, run: str, count: int = 1, *, timeout_seconds: float = 120.0) -> Death:
        """The run's end number `count`, once it is seen."""
        deaths = wait_until(
            lambda: found if len(found := self.of(run)) >= count else None,
            what=f"end {count} of a container of {run}",
            timeout_seconds=timeout_seconds,
        )
        return deaths[count - 1]

    def _listen(self) -> None:
        # The stream breaks when the engine ends, and with it this thread.
        with contextlib.suppress(docker.errors.DockerException, OSError, ValueError):
            for event in self._events:
                self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        told_at = event["timeNano"] / 1e9
        labels = event["Actor"]["Attributes"]
        run = labels.get(TASK_LABEL) or labels.get(FLOW_RUN_LABEL)
        if run is None:
            return
        finished_at, oom_killed = told_at, False
        with contextlib.suppress(docker.errors.NotFound):
            state = self._asker.api.inspect_container(event["Actor"]["ID"])["State"]
            finished_at, oom_killed = parse_time(state["FinishedAt"]), state["OOMKilled"]
        self._seen.append(Death(run, finished_at, told_at, oom_killed))


def parse_time(text: str) -> float:
    """An RFC 3339 time in UTC with up to nine decimals, as seconds since the epoch."""
    whole, _, decimals = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole.removesuffix("+00:00")).replace(tzinfo=timezone.utc)
    return moment.timestamp() + float(f"0.{decimals.removesuffix('+00:00') or 0}")


@dataclass(slots=True)
class Bed:
    """Everything that runs while figures are taken."""

    root: Path
    bench: Bench
    server: PrefectServer
    api: Api
    engine: DockerEngine
    """The first node's: GPUs of 8 GB are declared for it."""
    second_engine: DockerEngine
    """The second node's: no bridge, GPUs of 24 GB are declared for it."""
    deaths: Deaths

    def deploy(self, pool: str, name: str, image: str, **job_variables: object) -> str:
        """A deployment of the benchmark's flow or of a plain job; gives its id."""
        flow = self.api.post("/flows/", {"name": "killed-once"})
        variables: dict[str, object] = {"image": image, "volumes": [self.bench.volume]}
        if pool != STOCK:
            variables.update(NO_DELAYS)
        body = {
            "name": name,
            "flow_id": flow["id"],
            "work_pool_name": pool,
            "entrypoint": "recovery_flow.py:killed_once",
            "pull_steps": [
                {"prefect.deployments.steps.set_working_directory": {"directory": f"{MOUNT}/code"}}
            ],
            "job_variables": {**variables, **job_variables},
            "enforce_parameter_schema": False,
        }
        return str(self.api.post("/deployments/", body)["id"])

    @contextlib.contextmanager
    def worker(
        self,
        pool: str,
        *,
        engine: DockerEngine | None = None,
        worker_type: str = "heteroflow",
        memory_mb: int = 16000,
        gpus: str = "none",
        settings: dict[str, str] | None = None,
    ) -> Iterator[Worker]:
        """A worker on a pool of that name; both are made here."""
        self.api.create_pool(pool, worker_type)
        with Worker(
            self.server,
            self.root,
            pool=pool,
            node=f"node-{pool}",
            worker_type=worker_type,
            memory_mb=memory_mb,
            gpus=gpus,
            settings={"DOCKER_HOST": (engine or self.engine).host, **(settings or {})},
        ) as started:
            yield started

    def run_by_hand(
        self,
        client: docker.DockerClient,
        run: str,
        image: str,
        command: list[str] | str,
        **more: Any,
    ) -> float:
        """`docker run`: when it was called."""
        called = time.time()
        container = client.containers.run(
            image,
            command,
            detach=True,
            volumes=[self.bench.volume],
            network_mode="host",
            mem_limit="256m",
            memswap_limit="256m",
            **{**more, "environment": {"PREFECT__FLOW_RUN_ID": run, **more.get("environment", {})}},
        )
        self.bench.wait_starts(run, 1)
        status = container.wait()["StatusCode"]
        if status:
            raise RuntimeError(f"{command} ended with {status}: {container.logs()[-2000:]!r}")
        container.remove(force=True)
        return called


@contextlib.contextmanager
def bed(root: Path, *, second_engine: bool, data_mb: int = 4096) -> Iterator[Bed]:
    """Engines with their images, and a server."""
    with contextlib.ExitStack() as stack:
        bench = Bench(root / "bench")
        engine = stack.enter_context(
            DockerEngine(_made(root / "engine"), gpus=True, data_mb=data_mb)
        )
        other = engine
        if second_engine:
            other = stack.enter_context(
                DockerEngine(_made(root / "second-engine"), gpus=True, bridge=False)
            )
        for each in {engine.host: engine, other.host: other}.values():
            client = each.client(timeout_seconds=300)
            ensure_image(client, PLAIN_IMAGE)
            if each is engine:
                ensure_image(client, BASE_IMAGE)
        server = stack.enter_context(PrefectServer(_made(root / "prefect")))
        api = stack.enter_context(contextlib.closing(Api(server)))
        yield Bed(root, bench, server, api, engine, other, Deaths(engine))


@contextlib.contextmanager
def counted(bed: Bed) -> Iterator[tuple[CountingProxy, CountingProxy]]:
    """A worker whose requests to the API and to its engine pass through a proxy each."""
    socket = bed.engine.host.removeprefix("unix://")
    with (
        CountingProxy(port=bed.server.port) as api,
        CountingProxy(socket_path=socket) as engine,
        bed.worker(
            COUNTED,
            settings={
                "PREFECT_API_URL": f"http://127.0.0.1:{api.port}/api",
                "DOCKER_HOST": f"tcp://127.0.0.1:{engine.port}",
            },
        ),
    ):
        yield api, engine


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
