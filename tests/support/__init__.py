"""Real services for the tests: engines, images, registries, a Prefect server, NVML, a browser.

Everything here starts real programs in folders of its own and takes them down again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_until(
    condition: Callable[[], Seen | None],
    *,
    what: str,
    timeout_seconds: float = 30.0,
    interval_seconds: float = 0.05,
) -> Seen:
    """The first truthy value of `condition()`, which is asked again and again until then.

    Raises:
        TimeoutError: when it stayed falsy for `timeout_seconds`; the message names `what`.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        seen = condition()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not seen within {timeout_seconds:g} s (last: {seen!r})")
        time.sleep(interval_seconds)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
