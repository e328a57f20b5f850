"""Server, engine and nodes of a chaos run, and what each fault does to them."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker.errors
import psutil

from chaos.kinds import DOCKER, LARGE, SMALL, Kind, Planned
from chaos.marks import Marks
from tests.support.docker_engine import DockerEngine
from tests.support.images import PLAIN_IMAGE, ensure_image
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
SETTINGS = {
    f"{PREFIX}NODE_LIVENESS_SECONDS": "30",
    f"{PREFIX}LOST_CONTACT_TIMEOUT": "20",
    f"{PREFIX}BREAKER_MAX_RESTARTS": "-1",
    f"{PREFIX}CANCEL_GRACE_SECONDS": "5",
}
# The faults must not use up what a run has: then its right end would be up to chance.
BUDGETS = {
    "max_retries": 30,
    "infrastructure_retries": 30,
    "retry_delay": 0,
    "retry_jitter": 0,
    "backoff_multiplier": 1,
}
MEMORY_MB = 256
_GPUS = {SMALL: "8192", LARGE: "24576", DOCKER: "none"}
_OURS = "io.prefect-heteroflow.task-id"


@dataclass(slots=True)
class Node:
    """A worker on a pool of its own."""

    worker: Worker
    engine: DockerEngine | None
    is_up: bool = False
    family: set[psutil.Process] = field(default_factory=set)
    """Processes that workers of this node have started, also those that are dead by now."""

    @property
    def name(self) -> str:
        """Of the node and, with `chaos-`, of its pool."""
        return self.worker.node

    def start(self, *, wait: bool = True) -> None:
        """Start its worker."""
        self.worker.start(wait=wait)
        self.is_up = True

    def kill_worker(self) -> None:
        """SIGKILL the worker alone; what it started lives on."""
        self._meet_family()
        self.worker.kill()
        self.is_up = False

    def burn(self) -> None:
        """The machine is gone: the worker and all that it runs, at once."""
        self._meet_family()
        self.worker.kill()
        for process in self.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.family.clear()
        if self.engine is not None:
            client = self.engine.client()
            for container in client.containers.list(ignore_removed=True):
                with contextlib.suppress(docker.errors.APIError):
                    container.kill()
        self.is_up = False

    def pause(self) -> Callable[[], None]:
        """SIGSTOP the worker; gives what lets it go on."""
        process = psutil.Process(self.worker.pid)
        process.suspend()

        def go_on() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

        return go_on

    def _meet_family(self) -> None:
        self.family = {process for process in self.family if process.is_running()}
        with contextlib.suppress(psutil.NoSuchProcess):
            self.family.update(psutil.Process(self.worker.pid).children(recursive=True))


@dataclass(slots=True)
class Bed:
    """Everything that runs."""

    root: Path
    server: PrefectServer
    api: Api
    engine: DockerEngine | None
    nodes: dict[str, Node]
    marks: Marks
    _deployments: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def scratch(self) -> Path:
        """The temporary folder of all workers."""
        return self.root / "tmp"

    def submit(self, planned: Planned) -> str:
        """Create the run; gives its id."""
        kind = planned.kind
        parameters: dict[str, object] = {}
        variables: dict[str, object] = {}
        if kind.is_flow:
            parameters = {"kind": kind.does, "seconds": planned.seconds, "number": kind.number}
        else:
            command = ["python3", self.root / "job.py", kind.does, planned.seconds, kind.number]
            variables = {"command": shlex.join(map(str, command))}
        body = {
            "parameters": parameters,
            "job_variables": variables,
            "state": {"type": "SCHEDULED"},
            # Asked again after an outage, it is the same run.
            "idempotency_key": planned.name,
        }
        deployment = self._deployment(kind, planned.pool)
        return str(self.api.post(f"/deployments/{deployment}/create_flow_run", body)["id"])

    def _deployment(self, kind: Kind, pool: str) -> str:
        known = self._deployments.get((kind.name, pool))
        if known is not None:
            return known
        variables = {"memory_mb": MEMORY_MB, **BUDGETS, **kind.job_variables}
        if pool == DOCKER:
            mount = {"volumes": [f"{self.root}:{self.root}"], "network_mode": "none"}
            variables.update({"image": PLAIN_IMAGE, **mount})
        flow = self.api.post("/flows/", {"name": "chaos-flow" if kind.is_flow else "chaos-job"})
        body: dict[str, Any] = {
            "name": f"{kind.name}-{pool}",
            "flow_id": flow["id"],
            "work_pool_name": pool,
            "entrypoint": "flow.py:work",
            "pull_steps": [
                {"prefect.deployments.steps.set_working_directory": {"directory": str(self.root)}}
            ],
            "job_variables": variables,
            "enforce_parameter_schema": False,
        }
        made = str(self.api.post("/deployments/", body)["id"])
        self._deployments[kind.name, pool] = made
        return made

    def containers(self) -> list[str]:
        """Names of the containers of our workers, running or not."""
        if self.engine is None:
            return []
        client = self.engine.client()
        found = client.containers.list(all=True, filters={"label": _OURS}, ignore_removed=True)
        return [str(container.name) for container in found]


@contextlib.contextmanager
def bed(root: Path, *, with_docker: bool) -> Iterator[Bed]:
    """A server, three nodes (two without Docker), and one worker on each."""
    for name in ("marks", "tmp", "logs", "prefect"):
        (root / name).mkdir(parents=True)
    for name in ("job.py", "flow.py"):
        shutil.copy(Path(__file__).with_name(name), root)
    with contextlib.ExitStack() as stack:
        engine = None
        if with_docker:
            (root / "engine").mkdir()
            engine = stack.enter_context(DockerEngine(root / "engine", data_mb=2048))
            ensure_image(engine.client(timeout_seconds=300), PLAIN_IMAGE)
        server = stack.enter_context(PrefectServer(root / "prefect"))
        api = stack.enter_context(contextlib.closing(Api(server)))
        nodes = {}
        for pool in (SMALL, LARGE, DOCKER):
            if pool == DOCKER and engine is None:
                continue
            node = _node(root, server, pool, engine if pool == DOCKER else None)
            api.create_pool(pool, "heteroflow" if pool == DOCKER else "heteroflow-process")
            stack.callback(node.worker.stop)
            nodes[pool] = node
        for node in nodes.values():
            node.start(wait=False)
        for node in nodes.values():
            node.worker.wait_start()
        yield Bed(root, server, api, engine, nodes, Marks(root / "marks"))


def _node(root: Path, server: PrefectServer, pool: str, engine: DockerEngine | None) -> Node:
    settings = {**SETTINGS, "TMPDIR": str(root / "tmp")}
    if engine is not None:
        settings["DOCKER_HOST"] = engine.host
    worker = Worker(
        server,
        root / "logs",
        pool=pool,
        node=f"node-{pool}",
        worker_type="heteroflow" if engine is not None else "heteroflow-process",
        memory_mb=4096,
        gpus=_GPUS[pool],
        settings=settings,
    )
    return Node(worker, engine)
