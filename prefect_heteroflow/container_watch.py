"""Watches one container to its end, also while its engine is away for a time."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import docker.errors
import requests.exceptions

from prefect_heteroflow.attempts.backend import AttemptEnd, AttemptHandle
from prefect_heteroflow.console import echo
from prefect_heteroflow.infra import container as containers
from prefect_heteroflow.infra.container_engine import is_away

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

_KILLED = 137
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0
_MOST_SERVER_ERRORS = 20
_PEAK_SECONDS = 1.0


class ContainerWatch:
    """One container of one attempt.

    Args:
        connect: Gives a client of the engine, which is closed again here.
        handle: The attempt. What is seen is noted in it.
        logger: The run's, which is told when the engine goes away and when it is back.
    """

    def __init__(
        self,
        connect: Callable[[], DockerClient],
        handle: AttemptHandle,
        logger: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._connect = connect
        self._handle = handle
        self._logger = logger
        self._away_since: float | None = None
        self._server_errors = 0
        self._streamed_until: int | None = None
        """Seconds since the epoch; before it, everything has been passed on."""

    def end(self) -> AttemptEnd:
        """Pass on the output until the container has ended. Blocks.

        An engine that is away says nothing about the container: it is asked again until it
        answers. Only a container that it does not know any more is lost.
        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._watch_once()
            except (
                docker.errors.DockerException,
                requests.exceptions.RequestException,
                RuntimeError,
                OSError,
            ) as error:
                if not is_away(error) and not self._may_pass(error):
                    raise
                self._note_away(error)
            time.sleep(pause_seconds)
            pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * pause_seconds)

    def _may_pass(self, error: Exception) -> bool:
        """An engine that shuts down or comes up says so with a server error, for some time."""
        if not isinstance(error, docker.errors.APIError) or not error.is_server_error():
            return False
        self._server_errors += 1
        return self._server_errors <= _MOST_SERVER_ERRORS

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.time()
            self._logger.warning(
                "The Docker engine does not answer (%s). The attempt is not ended for that; it is"
                " watched again as soon as the engine is back.",
                type(error).__name__,
            )
        if self._streamed_until is None:
            self._streamed_until = int(self._away_since)

    def _watch_once(self) -> AttemptEnd:
        handle = self._handle
        client = self._connect()
        try:
            container = client.containers.get(handle.inner)
            self._note_back()
            handle.main_pid = container.attrs["State"].get("Pid") or None
            printed_last = self._stream(container)
            container.wait()
            if missed := containers.missed_output(container, printed_last):
                handle.plan.on_output(missed)
            state = containers.container_state(container)
            oom_killed = state.get("OOMKilled")
            if state.get("ExitCode") == _KILLED and not oom_killed:
                # Under load the engine hears of the exit before it hears of the kill for memory,
                # and then `State.OOMKilled` stays false; its event still comes.
                oom_killed = containers.saw_oom_event(client, container) or oom_killed
        except docker.errors.NotFound:
            return AttemptEnd(lost=True, engine_error="The container was removed from outside.")
        finally:
            client.close()
        return AttemptEnd(
            exit_code=state.get("ExitCode"),
            oom_killed=oom_killed,
            peak_memory_mb=handle.peak_memory_mb,
            engine_error=state.get("Error") or None,
        )

    def _note_back(self) -> None:
        if self._away_since is not None:
            self._logger.info(
                "The Docker engine is back after %.0f s; the attempt is watched again.",
                time.time() - self._away_since,
            )
            self._away_since = None

    def _stream(self, container: Container) -> bytes:
        """The end of what was streamed."""
        handle = self._handle
        printed_last = b""

        def on_output(chunk: bytes, *, is_old: bool = False) -> None:
            nonlocal printed_last
            printed_last = (printed_last + chunk)[-containers.TAIL_BYTES :]
            handle.plan.on_output(chunk, is_old=is_old)
            if handle.plan.is_echoed and not is_old:
                echo(chunk)

        try:
            since = self._streamed_until
            if since is None and handle.is_resumed:
                since = int(time.time())
                containers.pass_old_output(
                    container, functools.partial(on_output, is_old=True), until=since
                )
            containers.stream_output(container, on_output, since=since)
        except docker.errors.NotFound:
            raise
        except docker.errors.APIError as error:
            if error.is_server_error() and self._server_errors == 0:
                raise  # once more from the start: the engine may be on its way down
            self._logger.warning(
                "The output of container %s cannot be read: %s", container.name, error
            )
        return printed_last


async def watch_peak_memory(handle: AttemptHandle) -> None:
    """Note the highest memory of the container's main process in `handle`, until cancelled.

    The process is looked at each second: after its end nothing knows its peak any more.
    """
    while True:
        if handle.main_pid is not None:
            peak = containers.read_peak_memory_mb(handle.main_pid)
            if peak is not None:
                handle.peak_memory_mb = max(peak, handle.peak_memory_mb or 0)
        await anyio.sleep(_PEAK_SECONDS)
