"""What answers in the place of the Prefect server while that is away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def stand_in(port: int, status: int | None) -> Iterator[list[str]]:
    """Answer every request on a port with one status, as a proxy before a dead server does.

    Gives the paths of the requests so far.

    Args:
        port: On loopback.
        status: 500 or 429, for example; `None` leaves the port closed.
    """
    asked: list[str] = []
    if status is None:
        yield asked
        return
    code: int = status

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: it would be thousands of lines."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
