"""A real Prefect server, with a home folder and an SQLite database of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from prefect.client.orchestration import PrefectClient, get_client
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_heteroflow.orchestration.node_values import NODE_PREFIX, POOL_PREFIX
from tests.support import free_port, wait_until

LOG_TAIL_LINES = 40


def clean_environment() -> dict[str, str]:
    """This process's environment without any Prefect setting of the caller's.

    Nor does a child inherit the wish to keep no bytecode: it would compile Prefect at each start.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PREFECT_") and name != "PYTHONDONTWRITEBYTECODE"
    }


def leave_servers() -> None:
    """End this process's connections for events and logs: they stay with the server met first.

    Raises:
        TimeoutError: What was under way could not be sent within a minute.
    """

    def drain() -> None:  # in a thread of its own it is synchronous, wherever this is called
        for service in (EventsWorker, APILogWorker):
            service.drain_all(timeout=30)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    thread.join(timeout=60)
    if thread.is_alive():
        raise TimeoutError("events and logs of this process are still being sent after 60 s")


@asynccontextmanager
async def connected(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    """A client of that server."""
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as client:
            yield client


def forget_places(server: PrefectServer) -> None:
    """Take back all nodes and declared pools: where a run can go is for each file of tests to say.

    Routes lead to every place on the server, so that a pool which an earlier test declared would
    take a run that is to find none.
    """
    # Prefect's own client: it asks again when the database is busy (503).
    with (
        temporary_settings({PREFECT_API_URL: server.api_url}),
        get_client(sync_client=True) as client,
    ):
        for prefix in (NODE_PREFIX, POOL_PREFIX):
            while True:
                wanted = {"variables": {"name": {"like_": prefix}}, "limit": 200}
                found = client.request("POST", "/variables/filter", json=wanted).json()
                for row in found:
                    client.request("DELETE", "/variables/{id}", path_params={"id": row["id"]})
                if not found:
                    break


class PrefectServer:
    """`prefect server start` for the time of a `with` block, with all of its services.

    Args:
        root: folder for the server's home (`root/server`, with the database), its clients' home
            (`root/client`) and its log (`root/server.log`).
        host: address to listen on: `0.0.0.0` where containers on a bridge must reach it.
        port: `None` takes a free one, and keeps it over restarts.
        settings: further `PREFECT_...` settings of the server process.
        start_timeout_seconds: how long it may take to be healthy; about 10 s on two idle cores.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        settings: dict[str, str] | None = None,
        start_timeout_seconds: float = 120.0,
    ) -> None:
        self.root = root
        self.log_path = root / "server.log"
        self.port = port or free_port()
        self.start_timeout_seconds = start_timeout_seconds
        self._host = host
        self._extra = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the UI, as this machine reaches it."""
        return f"http://{'127.0.0.1' if self._host == '0.0.0.0' else self._host}:{self.port}"

    @property
    def api_url(self) -> str:
        """The address of the API, as this machine reaches it."""
        return f"{self.url}/api"

    def settings(self) -> dict[str, str]:
        """The settings alone that make a process a client of this server."""
        return {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": str(self.root / "client"),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_CLI_COLORS": "false",
            "PREFECT_CLI_PROMPT": "false",
        }

    def env(self, **extra: str) -> dict[str, str]:
        """The whole environment of a child process that is a client of this server."""
        return {**clean_environment(), **self.settings(), **extra}

    @property
    def running(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            RuntimeError: It was not started.
        """
        if self._process is None:
            raise RuntimeError("the Prefect server was not started")
        return self._process.pid

    def log_tail(self) -> str:
        """The last lines that the server wrote."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            RuntimeError: it ended or stayed silent; the message ends with the tail of its log.
        """
        if self.running:
            return
        for home in ("server", "client"):
            (self.root / home).mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.root,
                start_new_session=True,
            )
        try:
            wait_until(
                self._healthy,
                what=f"health of {self.api_url}",
                timeout_seconds=self.start_timeout_seconds,
            )
        except (TimeoutError, RuntimeError) as exc:
            self.kill()
            raise RuntimeError(
                f"the Prefect server did not start: {exc}\n{self.log_tail()}"
            ) from exc

    def stop(self, *, timeout_seconds: float = 20.0) -> None:
        """End the server by SIGINT, as Ctrl-C does; its database stays."""
        if self._process is None or not self.running:
            return
        self._signal(signal.SIGINT)
        try:
            self._process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the server and its children, as a crash of its machine; the database stays."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Stop the server, if it runs, and start it again on the same port and database."""
        self.stop()
        self.start()

    def __enter__(self) -> PrefectServer:
        leave_servers()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave_servers()
        self.stop()
        self.kill()

    def _command(self) -> list[str]:
        address = ["--host", self._host, "--port", str(self.port)]
        return [sys.executable, "-m", "prefect", "server", "start", *address]

    def _environment(self) -> dict[str, str]:
        home = self.root / "server"
        return {
            **clean_environment(),
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_UI_API_URL": self.api_url,
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
            "PREFECT_CLI_COLORS": "false",
            "DO_NOT_TRACK": "1",
            **self._extra,
        }

    def _signal(self, number: signal.Signals) -> None:
        """To the whole process group: the command runs the web server in a child."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return

    def _healthy(self) -> bool:
        if not self.running:
            code = self._process.returncode if self._process else None
            raise RuntimeError(f"it ended with status {code}")
        try:
            with urllib.request.urlopen(f"{self.api_url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
