"""A real image registry on loopback, and a proxy before it that fails on demand.

Docker takes every registry on 127.0.0.0/8 over plain HTTP, so nothing needs certificates.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import docker

from tests.support import free_port, wait_until

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host"}
"""Headers that belong to one connection, and are not passed on."""


def why_no_registry() -> str | None:
    """Why a `Registry` cannot run here, or `None` when it can."""
    missing = [tool for tool in ("docker-registry", "htpasswd") if not shutil.which(tool)]
    return f"not installed: {', '.join(missing)}" if missing else None


class Registry:
    """Debian's `docker-registry` for the time of a `with` block.

    Args:
        root: folder for its configuration, images and log (`root/registry.log`).
        auth: user and password that it asks for; `None` lets everybody in.
    """

    def __init__(self, root: Path, *, auth: tuple[str, str] | None = None) -> None:
        self.root = root
        self.auth = auth
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as it stands at the head of an image's name."""
        return f"127.0.0.1:{self.port}"

    @property
    def auth_config(self) -> dict[str, str] | None:
        """The credentials as docker-py takes them (`auth_config=`)."""
        return {"username": self.auth[0], "password": self.auth[1]} if self.auth else None

    def push(self, client: docker.DockerClient, image: str, name: str = "app:1") -> str:
        """Tag the engine's `image` as `name` of this registry and push it; gives the full name.

        The tag is taken off the engine again, so that a later pull really pulls.

        Raises:
            RuntimeError: with the engine's text, when the push failed.
        """
        return push(client, image, f"{self.address}/{name}", self.auth_config)

    def __enter__(self) -> Registry:
        self.root.mkdir(parents=True, exist_ok=True)
        config = self.root / "registry.yml"
        config.write_text(self._config())
        with (self.root / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(self._answers, what=f"registry on {self.address}")
        except (TimeoutError, RuntimeError):
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _config(self) -> str:
        lines = [
            "version: 0.1",
            "log: {level: warn}",
            "storage:",
            f"  filesystem: {{rootdirectory: '{self.root}/images'}}",
            "  delete: {enabled: true}",
            f"http: {{addr: '{self.address}', secret: 'not-a-secret'}}",
        ]
        if self.auth:
            passwords = self.root / "htpasswd"
            # The registry takes bcrypt only (-B); -C 4 is the cheapest, for tests' sake.
            command = ["htpasswd", "-Bbn", "-C", "4", *self.auth]
            passwords.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
            lines.append(f"auth: {{htpasswd: {{realm: tests, path: '{passwords}'}}}}")
        return "\n".join([*lines, ""])

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            log = (self.root / "registry.log").read_text(errors="replace")
            raise RuntimeError(f"docker-registry ended:\n{log[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=5):
                return True
        except urllib.error.HTTPError as answer:
            answer.close()
            return answer.code == 401
        except OSError:
            return False


def push(
    client: docker.DockerClient, image: str, target: str, auth_config: dict[str, str] | None = None
) -> str:
    """Push the engine's `image` as `target`, then take that tag off the engine; gives `target`."""
    client.images.get(image).tag(target)
    try:
        for line in client.api.push(target, stream=True, decode=True, auth_config=auth_config):
            if "error" in line:
                raise RuntimeError(f"push of {target}: {line['error']}")
    finally:
        client.images.remove(target)
    return target


class FlakyProxy:
    """A reverse proxy before a registry: fails the next requests, then passes all through.

    It serves pulls; a push goes to the registry itself. `fail_next(n)` makes it answer the next
    `n` requests with `status` and `body`; `requests` counts all that came, `failed` those that it
    failed itself. One pull of dockerd 20.10 gives up at its third request that fails.
    """

    def __init__(
        self, upstream: str, *, status: int = 503, body: bytes = b"", host: str = "127.0.0.1"
    ) -> None:
        self.upstream = upstream
        self.status = status
        self.body = body
        self.requests = 0
        self.failed = 0
        self.held = threading.Event()
        """Set while a request waits for `release`."""
        self._released = threading.Event()
        self._released.set()
        self._to_fail = 0
        self._containing = ""
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                proxy.answer(self)

            do_GET = do_HEAD = handle_request

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: a test's output is for its failures."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def address(self) -> str:
        """`host:port`, as it stands at the head of an image's name."""
        return "{}:{}".format(*self._server.server_address[:2])

    def fail_next(self, count: int, *, containing: str = "") -> None:
        """Fail that many requests from now on; 0 heals it.

        `containing` leaves requests alone whose path lacks it: with `"/blobs/"` the pull begins
        well, and its error comes in the stream instead of as the answer's status.
        """
        with self._lock:
            self._to_fail = count
            self._containing = containing

    def hold(self) -> None:
        """Leave every request without an answer from now on: a registry behind a slow line."""
        self._released.clear()

    def release(self) -> None:
        """Answer those that were held, and all that come."""
        self._released.set()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Fail the request or pass it on."""
        if not self._released.is_set():
            self.held.set()
            self._released.wait(120)
        with self._lock:
            self.requests += 1
            failing = self._to_fail > 0 and self._containing in request.path
            self._to_fail -= failing
            self.failed += failing
        if failing:
            request.send_response(self.status)
            request.send_header("Content-Length", str(len(self.body)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(self.body)
            return
        self._pass_on(request)

    def _pass_on(self, request: BaseHTTPRequestHandler) -> None:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            upstream.request(request.command, request.path, headers=headers)
            answer = upstream.getresponse()
            content = answer.read()
            request.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP | {"content-length", "date", "server"}:
                    request.send_header(name, value)
            # A HEAD answer has no content, and still tells its length.
            length = answer.getheader("Content-Length") or str(len(content))
            request.send_header("Content-Length", length)
            request.end_headers()
            request.wfile.write(content)
        finally:
            upstream.close()

    def __enter__(self) -> FlakyProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)
