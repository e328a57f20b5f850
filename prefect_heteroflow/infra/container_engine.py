"""What a worker asks of its Docker engine, one call each. All of it blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import docker.errors
import requests.exceptions

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

T = TypeVar("T")


class ContainerEngine:
    """One Docker engine.

    Args:
        connect: Gives a client, which is closed after each call: the engine may have been
            restarted since the last one.
    """

    def __init__(self, connect: Callable[[], DockerClient]) -> None:
        self._connect = connect

    def info(self) -> dict[str, Any]:
        """What `docker info` shows."""
        client = self._connect()
        try:
            found: dict[str, Any] = client.info()
            return found
        finally:
            client.close()

    def with_container(self, container_id: str, work: Callable[[Container], T]) -> T | None:
        """What `work` gives for the container; `None` if it is gone."""
        client = self._connect()
        try:
            return work(client.containers.get(container_id))
        except docker.errors.NotFound:
            return None
        finally:
            client.close()

    def stop(self, container_id: str, grace_seconds: float) -> bool:
        """`docker stop`: SIGTERM, and SIGKILL after the grace time. `False` if it is gone."""

        def stop(container: Container) -> bool:
            container.stop(timeout=int(grace_seconds))
            return True

        return bool(self.with_container(container_id, stop))

    def remove(self, container_id: str) -> None:
        """Remove a container with its anonymous volumes, running or not."""
        self.with_container(container_id, lambda container: container.remove(force=True, v=True))

    def remove_all(self, labels: Mapping[str, str], *, status: str | None = None) -> None:
        """Remove each container that has all these labels, and that status if one is given."""
        client = self._connect()
        try:
            for container in client.containers.list(all=True, filters=_filters(labels, status)):
                container.remove(force=True, v=True)
        finally:
            client.close()

    def find_all(self, labels: Mapping[str, str]) -> list[tuple[str, str, dict[str, str]]]:
        """Id, status and labels of each container that has all these labels."""
        client = self._connect()
        try:
            found = client.containers.list(all=True, filters=_filters(labels, None))
            return [(str(c.id), str(c.status), dict(c.labels)) for c in found]
        finally:
            client.close()


def _filters(labels: Mapping[str, str], status: str | None) -> dict[str, Any]:
    filters: dict[str, Any] = {"label": [f"{name}={value}" for name, value in labels.items()]}
    if status is not None:
        filters["status"] = status
    return filters


def is_away(error: BaseException) -> bool:
    """The engine was not reached, or went away before it answered.

    What was asked may have been done or not; nothing is known of any container.
    """
    if isinstance(error, docker.errors.APIError):
        return False  # it has answered
    if isinstance(error, requests.exceptions.RequestException | ConnectionError):
        return True
    # prefect-docker wraps what docker-py says when it cannot connect.
    cause = error.__cause__ if isinstance(error, RuntimeError) else error
    return isinstance(cause, docker.errors.DockerException)


def engine_text(error: Exception) -> str:
    """The engine's own sentence, without docker-py's decoration where it can be had."""
    explanation = getattr(error, "explanation", None)
    if explanation:
        return str(explanation)
    cause = error.__cause__
    return f"{error}: {cause}" if cause is not None else str(error)
