"""A proxy that notes each HTTP request which passes through it, for an API or a Docker socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CONTAINER = re.compile(r"(?<=/containers/)[0-9a-f]{64}")
_NAMED = re.compile(r"(?<=/work_pools/)(?!filter)[^/]+|(?<=/variables/name/)[^/]+")
_LARGEST_KEPT_BODY = 64 * 1024


@dataclass(slots=True)
class Request:
    """One request, with the times at which it came and at which its answer began."""

    method: str
    target: str
    at: float
    """Seconds since the epoch."""
    body: bytes = b""
    status: int | None = None
    answered_at: float | None = None

    @property
    def path(self) -> str:
        """The path as a template: ids, pool and variable names are left out."""
        path = urlsplit(self.target).path.removeprefix("/api")
        path = re.sub(r"^/v1\.\d+(?=/)", "", path)
        path = _CONTAINER.sub("{id}", _UUID.sub("{id}", path))
        return _NAMED.sub("{name}", path)

    @property
    def kind(self) -> str:
        """Method and path, and for changes of a run what is changed."""
        kind = f"{self.method} {self.path}"
        if self.path == "/flow_runs/{id}/set_state":
            return f"{kind} ({self._json().get('state', {}).get('name') or '?'})"
        if kind == "PATCH /flow_runs/{id}":
            return f"{kind} ({', '.join(sorted(self._json())) or '?'})"
        return kind

    def mentions(self, text: str) -> bool:
        """Whether the target or the body holds `text`."""
        return text in self.target or text.encode() in self.body

    def _json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class CountingProxy:
    """Listens on `127.0.0.1:port` and passes everything on to one server.

    What cannot be told apart as single requests (upgraded connections, chunked bodies) passes
    through unnoted from there on.

    Args:
        port: The server's port on this machine, or
        socket_path: its Unix socket.
        before: Called with each request that is complete and not passed on yet.
        after: Called with each request whose answer has come and is not passed back yet.
            What either raises of `OSError` cuts the connection instead.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        socket_path: str | None = None,
        before: Callable[[Request], None] = lambda request: None,
        after: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self.requests: list[Request] = []
        self.is_cut = False
        """While it is, nothing of the client passes, upgraded connections (a worker's channel, over
        which its heartbeats go) included; an answer that is on its way still does."""
        self._before, self._after = before, after
        self._target = (port, socket_path)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="counting-proxy")
        self.port = 0

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the counting proxy did not start")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def between(self, start: float, end: float) -> list[Request]:
        """Requests that came in this span of time, in their order."""
        return sorted(
            (request for request in list(self.requests) if start <= request.at < end),
            key=lambda request: request.at,
        )

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**20)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end_connections())
        self._loop.close()

    async def _end_connections(self) -> None:
        """Until nothing is left: a connection may come in while others are being ended."""
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # aborted transports leave the loop in its next rounds

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port, path = self._target
        try:
            if self.is_cut:
                raise ConnectionAbortedError
            if path is not None:
                upstream_reader, upstream = await asyncio.open_unix_connection(path)
            else:
                upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        self._writers |= {writer, upstream}
        parser = _RequestParser(self.requests, self._before, self._after)
        answers = asyncio.ensure_future(_pump(upstream_reader, writer, parser.answered))

        def pass_on(data: bytes) -> None:
            if self.is_cut:
                raise ConnectionAbortedError
            parser.feed(data)

        try:
            # A cancelled task would trip asyncio's own callback of connections.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await _pump(reader, upstream, pass_on)
                await answers
        finally:
            answers.cancel()
            for side in (writer, upstream):
                side.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]
) -> None:
    try:
        while data := await reader.read(256 * 1024):
            note(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side went away: the other is told by the close
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()


class _RequestParser:
    """Finds the requests in what a client sends over one connection."""

    def __init__(
        self,
        found: list[Request],
        before: Callable[[Request], None],
        after: Callable[[Request], None],
    ) -> None:
        self._found = found
        self._before, self._after = before, after
        self._head = b""
        self._body_left = 0
        self._raw = False
        self._last: Request | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the client."""
        while data and not self._raw:
            if self._body_left:
                taken, data = data[: self._body_left], data[self._body_left :]
                self._body_left -= len(taken)
                if self._last is not None and len(self._last.body) < _LARGEST_KEPT_BODY:
                    self._last.body += taken
                if not self._body_left and self._last is not None:
                    self._before(self._last)
                continue
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            self._begin(head)

    def answered(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        last = self._last
        if last is None or last.answered_at is not None:
            return
        last.answered_at = time.time()
        words = data[:64].split(maxsplit=2)
        if len(words) > 1 and words[1].isdigit():
            last.status = int(words[1])
        self._after(last)

    def _begin(self, head: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, *_ = line.split(" ")
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (field.partition(":") for field in fields)
        }
        self._last = Request(method, target, time.time())
        self._found.append(self._last)
        self._body_left = int(headers.get("content-length", 0))
        self._raw = "upgrade" in headers or "chunked" in headers.get("transfer-encoding", "")
        if not self._body_left and not self._raw:
            self._before(self._last)
