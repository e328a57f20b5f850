"""The server and the workers of the demo: started as a user starts them, and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "HETEROFLOW_DEMO_HOME"
"""In the environment of every process of a demo; its value is the demo's folder."""
_STOP_SECONDS = 20.0


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Folder of one demo: database, logs, and nothing that outlives the next demo."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Address of the Prefect UI."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        """Address of the Prefect API."""
        return f"{self.url}/api"

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.folder / "logs"

    def run_url(self, flow_run_id: object) -> str:
        """Page of a flow run."""
        return f"{self.url}/runs/flow-run/{flow_run_id}"

    def client_settings(self) -> dict[str, str]:
        """Settings that make a process a client of this demo's server and of nothing else."""
        return {
            MARK: str(self.folder),
            "PREFECT_HOME": str(self.folder / "client"),
            "PREFECT_API_URL": self.api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_LOGGING_LEVEL": "INFO",
            "DO_NOT_TRACK": "1",
        }

    def server_settings(self) -> dict[str, str]:
        """Settings of the server: SQLite, in the demo's folder."""
        home = self.folder / "server"
        return {
            MARK: str(self.folder),
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
            "PREFECT_UI_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without Prefect settings of the user's, and with these.

    Without them the demo might talk to the user's own server.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        # Without bytecode each of the many processes would compile Prefect anew.
        if not name.startswith("PREFECT_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {**kept, **settings, "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Refuse a port that cannot be used.

    Raises:
        DemoError: Somebody listens on it, or it is no port.
    """
    try:
        with socket.create_server(("127.0.0.1", port)):
            return
    except (OSError, OverflowError) as error:
        raise DemoError(
            f"Port {port} cannot be used ({error}). Leave PORT out for a free one, or name another."
        ) from None


@dataclass(slots=True)
class Service:
    """One child process with a log of its own."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    """Its working folder."""
    log: Path
    ready: Callable[[], bool]
    """Asked until it is true."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it; it is not awaited."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo, which then ends its services in order.
                start_new_session=True,
            )

    def await_ready(self, timeout_seconds: float) -> None:
        """Return once it is ready.

        Raises:
            DemoError: It ended, or took too long.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self.ready():
            self.check_alive()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{self.name} was not ready within {timeout_seconds:.0f} s.{self.log_tail()}"
                )
            time.sleep(0.1)

    def check_alive(self) -> None:
        """Refuse to go on without it.

        Raises:
            DemoError: It has ended.
        """
        status = None if self.process is None else self.process.poll()
        if status is not None:
            raise DemoError(f"{self.name} ended with status {status}.{self.log_tail()}")

    def log_tail(self) -> str:
        """The end of its log, with its place."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
        except OSError:
            lines = []
        return "".join(f"\n    {line}" for line in [*lines, f"(all of it: {self.log})"])

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)

    def await_end(self, deadline: float) -> None:
        """Wait for its end, at most until `deadline` on the monotonic clock."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, deadline - time.monotonic()))


def server(home: Home) -> Service:
    """`prefect server start`."""

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"{home.api_url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    address = ["--host", "127.0.0.1", "--port", str(home.port)]
    return Service(
        name="The Prefect server",
        command=[sys.executable, "-m", "prefect", "server", "start", *address],
        env=environment(home.server_settings()),
        folder=home.folder / "server",
        log=home.logs / "server.log",
        ready=healthy,
    )


def worker(
    home: Home, *, pool: str, node: str, worker_type: str, settings: Mapping[str, str]
) -> Service:
    """`prefect worker start` for one node."""
    log = home.logs / f"worker-{node}.log"
    options = ["--pool", pool, "--type", worker_type, "--name", f"worker on {node}"]
    return Service(
        name=f"The worker of {node}",
        command=[sys.executable, "-m", "prefect", "worker", "start", *options],
        env=environment({**home.client_settings(), **settings}),
        folder=home.folder / "client",
        log=log,
        ready=lambda: b"started!" in log.read_bytes(),
    )


def stop(services: Sequence[Service]) -> None:
    """End services, the last one first, and whatever they started."""
    deadline = time.monotonic() + _STOP_SECONDS
    for service in reversed(services):
        service.interrupt()
    for service in reversed(services):
        service.await_end(deadline)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes of a demo in that folder, this one and its parents apart."""
    mine = psutil.Process()
    spared = {mine.pid, *(parent.pid for parent in mine.parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in spared and _mark(process) == str(folder)
    ]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None  # gone, or not ours to look into


def end_processes(processes: Iterable[psutil.Process]) -> int:
    """SIGKILL to each; gives how many were still there."""
    found = list(processes)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=10)
    return len(found)
