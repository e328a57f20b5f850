"""Real workers, deployments and runs on a real server."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer

FLOWS = Path(__file__).parent / "job_flows"
PREFECT = str(Path(sys.executable).with_name("prefect"))


class Worker:
    """`prefect worker start` for the time of a `with` block: one node.

    Args:
        server: The server.
        root: Folder for the log.
        pool: Name of the work pool; created if it does not exist.
        node: Name of the node; `None` leaves it to the settings.
        worker_type: `heteroflow` or `heteroflow-process`.
        memory_mb: Declared memory, MiB.
        gpus: Declared GPUs, for example `8192` or `none`.
        settings: Further environment.
        limit: Runs at a time.
        folder: Where it is started; by default where the tests are.
        name: Of the worker; by default one of its own.
        run_once: It polls once and stops when what it took has ended.
        other_machine: It sees none of this machine's cgroups, and so no attempt of another worker.
    """

    def __init__(
        self,
        server: PrefectServer,
        root: Path,
        *,
        pool: str,
        node: str | None,
        worker_type: str = "heteroflow-process",
        memory_mb: int | None = None,
        gpus: str | None = None,
        settings: Mapping[str, str] | None = None,
        limit: int | None = None,
        folder: Path | None = None,
        name: str | None = None,
        run_once: bool = False,
        other_machine: bool = False,
    ) -> None:
        self._folder = folder
        self.pool, self.node = pool, node or "(named by its settings)"
        self.log_path = root / f"worker-{node}.log"
        self._server = server
        self._command = [PREFECT, "worker", "start", "--pool", pool, "--type", worker_type]
        self._command += ["--name", name or f"worker {node}"]
        if limit is not None:
            self._command += ["--limit", str(limit)]
        if run_once:
            self._command += ["--run-once"]
        if other_machine:
            alone = f"umount -l -R /sys/fs/cgroup; exec {shlex.join(self._command)}"
            self._command = ["unshare", "--mount", "sh", "-c", alone]
        prefix = "PREFECT_INTEGRATIONS_HETEROFLOW_NODE_"
        # Tests share deployments, and so their breakers; the tests of breakers turn them on.
        off = "PREFECT_INTEGRATIONS_HETEROFLOW_BREAKER_MAX_RESTARTS"
        extra = {"PYTHONUNBUFFERED": "1", off: "-1"}
        if node is not None:
            extra[f"{prefix}NAME"] = node
        if memory_mb is not None:
            extra[f"{prefix}MEMORY_MB"] = str(memory_mb)
        if gpus is not None:
            extra[f"{prefix}GPUS"] = gpus
        self._env = server.env(**{**extra, **(settings or {})})
        self._process: subprocess.Popen[bytes] | None = None
        self._position = 0

    @property
    def pid(self) -> int:
        """Of its newest process, which may have ended.

        Raises:
            RuntimeError: It was never started.
        """
        if self._process is None:
            raise RuntimeError(f"worker {self.node} was not started")
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it polls."""
        self._position = len(self.log())
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._folder,
                start_new_session=True,
            )
        if wait:
            self.wait_start()

    def wait_start(self) -> None:
        """Return when it polls.

        Raises:
            RuntimeError: It ended instead; with what it printed.
        """

        def started() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"worker {self.node} ended:\n{self.log()[-4000:]}")
            return "started!" in self.log()[self._position :]

        wait_until(started, what=f"start of worker {self.node}", timeout_seconds=60)

    def log(self) -> str:
        """All that it printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_end(self, timeout_seconds: float = 60.0) -> int:
        """Exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def stop(self) -> None:
        """SIGINT, as Ctrl-C does."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL; what it started lives on."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(f"--- log of worker {self.node}\n{self.log()[-6000:]}")
        self.stop()


StartWorker = Callable[..., AbstractContextManager[Worker]]
"""What the fixture `docker_worker` of `tests/integration` gives."""


@dataclass(frozen=True)
class State:
    """One entry of a run's state history."""

    type: str
    name: str
    message: str

    @property
    def is_final(self) -> bool:
        """A waiter would take it for the end."""
        return self.type in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Api:
    """The server's REST API, as far as the tests need it."""

    def __init__(self, server: PrefectServer) -> None:
        # A connection for each request: the server closes one that was idle for five seconds, and a
        # request that crosses that close is lost.
        one_each = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=server.api_url, timeout=30, limits=one_each)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str) -> Any:
        """GET, as JSON."""
        response = self._sent("GET", path)
        response.raise_for_status()
        return response.json()

    def _sent(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The answer; a busy SQLite makes the server say 503, and then it is asked again."""

        def answer() -> httpx.Response | None:
            response = self._client.request(method, path, json=body)
            return None if response.status_code == 503 else response

        return wait_until(answer, what=f"answer to {method} {path}", interval_seconds=0.5)

    def post(self, path: str, body: Any) -> Any:
        """POST, as JSON."""
        response = self._sent("POST", path, body)
        if response.is_error:
            raise AssertionError(f"POST {path}: {response.status_code} {response.text[:2000]}")
        return response.json()

    def patch(self, path: str, body: Any) -> None:
        """PATCH."""
        response = self._sent("PATCH", path, body)
        if response.is_error:
            raise AssertionError(f"PATCH {path}: {response.status_code} {response.text[:2000]}")

    def create_pool(self, name: str, worker_type: str) -> None:
        """Create a pool as `prefect work-pool create --type` does."""
        from prefect.workers.base import BaseWorker

        worker = BaseWorker.get_worker_class_from_type(worker_type)
        assert worker is not None, f"no worker type {worker_type}"
        if self._client.get(f"/work_pools/{name}").status_code == 200:
            return
        self.post(
            "/work_pools/",
            {
                "name": name,
                "type": worker_type,
                "base_job_template": worker.get_default_base_job_template(),
            },
        )

    def deploy(
        self,
        flow_name: str,
        pool: str,
        *,
        name: str,
        job_variables: Mapping[str, Any] | None = None,
        concurrency_limit: int | None = None,
        file: str = "flows.py",
    ) -> str:
        """Deploy a flow of a file in `job_flows`; gives the deployment's id."""
        flow = self.post("/flows/", {"name": flow_name.replace("_", "-")})
        delays = {"retry_delay": 0, "retry_jitter": 0}
        body: dict[str, Any] = {
            "name": name,
            "flow_id": flow["id"],
            "work_pool_name": pool,
            "entrypoint": f"{file}:{flow_name}",
            "pull_steps": [
                {"prefect.deployments.steps.set_working_directory": {"directory": str(FLOWS)}}
            ],
            "job_variables": {**delays, **(job_variables or {})},
            "enforce_parameter_schema": False,
        }
        if concurrency_limit is not None:
            body["concurrency_limit"] = concurrency_limit
        return str(self.post("/deployments/", body)["id"])

    def submit(
        self,
        deployment_id: str,
        parameters: Mapping[str, Any] | None = None,
        job_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a run of a deployment; gives its id."""
        body = {"parameters": dict(parameters or {}), "state": {"type": "SCHEDULED"}}
        if job_variables is not None:
            body["job_variables"] = dict(job_variables)
        return str(self.post(f"/deployments/{deployment_id}/create_flow_run", body)["id"])

    def run(self, run_id: str) -> dict[str, Any]:
        """The run as it is now."""
        found: dict[str, Any] = self.get(f"/flow_runs/{run_id}")
        return found

    def states(self, run_id: str) -> list[State]:
        """The run's state history, oldest first."""
        found = self.get(f"/flow_run_states/?flow_run_id={run_id}")
        found.sort(key=lambda state: state["timestamp"])
        return [State(s["type"], s["name"], s["message"] or "") for s in found]

    def cancel(self, run_id: str) -> None:
        """What the UI's Cancel button does."""
        self.post(
            f"/flow_runs/{run_id}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}},
        )

    def wait_state(
        self, run_id: str, *names: str, timeout_seconds: float = 120.0, may_end: bool = False
    ) -> dict[str, Any]:
        """The run, once its state has one of the names; another final state is an error."""

        def reached() -> dict[str, Any] | None:
            run = self.run(run_id)
            if run["state"]["name"] in names:
                return run
            final = run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            if final and not may_end:
                raise AssertionError(f"run {run_id} ended as {run['state']}, expected {names}")
            return None

        return wait_until(
            reached,
            what=f"run {run_id} in {names}",
            timeout_seconds=timeout_seconds,
            interval_seconds=0.2,
        )

    def wait_end(self, run_id: str, *, timeout_seconds: float = 180.0) -> State:
        """The run's final state, once its rows are closed too."""

        def ended() -> State | None:
            state = self.run(run_id)["state"]
            found = State(state["type"], state["name"], state["message"] or "")
            if not found.is_final:
                return None
            rows = self.rows(run_id)
            if rows and rows[-1]["status"] in ("running", "scheduled"):
                return None
            return found

        return wait_until(
            ended,
            what=f"end of run {run_id}",
            timeout_seconds=timeout_seconds,
            interval_seconds=0.2,
        )

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """The attempt rows of the run's table artifact."""
        found = self.post(
            "/artifacts/filter",
            {"artifacts": {"key": {"any_": [f"heteroflow-attempts-{run_id}"]}}},
        )
        if not found:
            return []
        data = found[0]["data"]
        rows: list[dict[str, Any]] = json.loads(data) if isinstance(data, str) else data
        return rows

    def rewrite_rows(self, run_id: str, rows: list[dict[str, Any]]) -> None:
        """Put other rows into the table artifact of a run, as a worker that died had left them."""
        (found,) = self.post(
            "/artifacts/filter",
            {"artifacts": {"key": {"any_": [f"heteroflow-attempts-{run_id}"]}}},
        )
        response = self._sent("PATCH", f"/artifacts/{found['id']}", {"data": json.dumps(rows)})
        response.raise_for_status()

    def delete(self, path: str) -> None:
        """DELETE."""
        self._sent("DELETE", path).raise_for_status()

    def logs(self, run_id: str) -> list[str]:
        """The run's log lines, oldest first."""
        found = self.post(
            "/logs/filter",
            {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200},
        )
        return [str(entry["message"]) for entry in found]

    def subflow_runs(self, run_id: str) -> list[dict[str, Any]]:
        """The attempt runs of a front run."""
        found: list[dict[str, Any]] = self.post(
            "/flow_runs/filter",
            {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}},
        )
        return found
