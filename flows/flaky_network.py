"""Meets a server that does not answer, and finds it well in a later attempt.

As deployed (`failing_attempts: 1`): attempt 1 ends with a read timeout, a transient failure;
attempt 2 runs on the same node with the same resources and completes.
"""

import socket

import httpx
from prefect import flow

from prefect_heteroflow import current_attempt


@flow(name="flaky-network", log_prints=True)
def flaky_network(failing_attempts: int = 1) -> str:
    """Ask a silent server in the first `failing_attempts` attempts, and return afterwards."""
    attempt = current_attempt()
    number = attempt.attempt if attempt else 1
    if number <= failing_attempts:
        _ask_a_silent_server()
    return f"answered in attempt {number}"


def _ask_a_silent_server() -> None:
    """A real timeout without a network: this socket takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        print(f"waiting for an answer from 127.0.0.1:{port}")
        httpx.get(f"http://127.0.0.1:{port}/features", timeout=0.5, trust_env=False)
