"""The exception types of docker-py, made one again.

Prefect imports `docker` lazily. Where that comes first (as with prefect-aws installed), the next
`import docker.errors` loads that module a second time: docker-py raises the types of the first, and
every `except docker.errors.…` names those of the second, which catch nothing.
"""

from __future__ import annotations

from typing import Any

import docker.errors
from docker.api import client as raising


def unite_docker_errors() -> bool:
    """Let `docker.errors` name the types that docker-py raises; whether it did not before."""
    maker: Any = vars(raising)["create_api_error_from_http_exception"]
    raised: dict[str, Any] = maker.__globals__
    if raised["APIError"] is docker.errors.APIError:
        return False
    types = {name: it for name, it in raised.items() if isinstance(it, type)}
    vars(docker.errors).update(types)
    return True
