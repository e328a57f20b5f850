"""Cleanup before a retry on a Docker node: the user's hook, and the GPU memory.

Files and processes of the attempt before went with its container. The hook runs in a container of
its own like the attempt's, so it sees the same volumes, has the same rights, and runs where the
engine is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import docker.errors
import requests.exceptions

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.backend import CleanupRequest
from prefect_heteroflow.core.cleanup import CleanupReport, hook_command
from prefect_heteroflow.docker_job import (
    HOOK_LABEL,
    NODE_LABEL,
    RUN_LABEL,
    HeteroflowJobConfiguration,
)
from prefect_heteroflow.infra.cleanup import CleanupPlan, clean_up
from prefect_heteroflow.infra.cleanup_hook import (
    CANCEL_POLL_SECONDS,
    HOOK_CANCELLED,
    TAIL_BYTES,
    hook_ended,
    hook_timed_out,
)
from prefect_heteroflow.infra.container_engine import ContainerEngine, engine_text

if TYPE_CHECKING:
    from docker.models.containers import Container

_ENGINE_ERRORS = (
    docker.errors.DockerException,
    requests.exceptions.RequestException,
    RuntimeError,
    OSError,
    TypeError,
    ValueError,
)


def clean_up_node(
    request: CleanupRequest,
    *,
    node_name: str,
    engine: ContainerEngine,
    create: Callable[[HeteroflowJobConfiguration], Any],
) -> CleanupReport:
    """Run the hook, if there is one, then wait for the GPU memory. Blocks.

    Args:
        request: What is wanted.
        node_name: The node's name, for the label of the hook's container.
        engine: The node's engine.
        create: Creates and starts a container of a configuration, and gives it.
    """
    report = CleanupReport()
    if request.hook is not None and not request.is_cancelled():
        configuration = hook_configuration(request, node_name)
        with _removed_on_cancel(_labels(configuration), request.is_cancelled, engine):
            succeeded, text = _run_hook(configuration, request.hook_timeout_seconds, engine, create)
        if not succeeded and request.is_cancelled():
            succeeded, text = HOOK_CANCELLED
        report = CleanupReport(
            hook=text if succeeded else None, problems=() if succeeded else (text,)
        )
    waited = clean_up(
        CleanupPlan(gpu_free_mb=request.gpu_free_mb, is_cancelled=request.is_cancelled)
    )
    return dataclasses.replace(
        report,
        gpu_wait_seconds=waited.gpu_wait_seconds,
        problems=(*report.problems, *waited.problems),
    )


def hook_configuration(request: CleanupRequest, node_name: str) -> HeteroflowJobConfiguration:
    """The configuration of the attempt's container with the hook as its command."""
    configuration = request.plan.configuration
    assert isinstance(configuration, HeteroflowJobConfiguration)
    memory = f"{request.plan.resources.memory_mb}m"
    return configuration.model_copy(
        update={
            "command": shlex.join(hook_command(request.hook or "")),
            "name": f"{configuration.name}-cleanup" if configuration.name else None,
            # The attempt before has pulled it; what is pulled anew is the next attempt's business.
            "image_pull_policy": "IfNotPresent",
            "mem_limit": memory,
            "memswap_limit": memory,
            "env": {k: v for k, v in configuration.env.items() if k != environment.SCRATCH},
            "labels": {
                **configuration.labels,
                NODE_LABEL: node_name,
                RUN_LABEL: str(request.plan.flow_run.id),
                HOOK_LABEL: "true",
            },
        }
    )


def _labels(configuration: HeteroflowJobConfiguration) -> dict[str, str]:
    """Those of the hook's container alone."""
    return {name: configuration.labels[name] for name in (RUN_LABEL, HOOK_LABEL)}


@contextlib.contextmanager
def _removed_on_cancel(
    labels: Mapping[str, str], is_cancelled: Callable[[], bool], engine: ContainerEngine
) -> Iterator[None]:
    """While the block runs, a cancel removes the container: nothing else ends the wait for it."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(CANCEL_POLL_SECONDS):
            if is_cancelled():
                with contextlib.suppress(*_ENGINE_ERRORS):
                    engine.remove_all(labels)

    watcher = threading.Thread(target=look, name="heteroflow-cleanup-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _run_hook(
    configuration: HeteroflowJobConfiguration,
    timeout_seconds: float,
    engine: ContainerEngine,
    create: Callable[[HeteroflowJobConfiguration], Any],
) -> tuple[bool, str]:
    started = time.monotonic()
    try:
        container, _ = create(configuration)
        wait = functools.partial(_wait, timeout_seconds=timeout_seconds)
        ended = engine.with_container(str(container.id), wait)
    except _ENGINE_ERRORS as error:
        # docker-py has several errors for an answer that did not come in time.
        is_late = isinstance(error, requests.exceptions.RequestException)
        if is_late and time.monotonic() - started >= timeout_seconds:
            return hook_timed_out(timeout_seconds)
        return False, f"the cleanup hook could not be run ({engine_text(error)})"
    finally:
        # By its labels: who went away in the middle may have created it.
        with contextlib.suppress(*_ENGINE_ERRORS):
            engine.remove_all(_labels(configuration))
    return ended or (False, "the cleanup hook's container was removed from outside")


def _wait(container: Container, *, timeout_seconds: float) -> tuple[bool, str]:
    status = int(container.wait(timeout=timeout_seconds)["StatusCode"])
    return hook_ended(status, container.logs(tail=20)[-TAIL_BYTES:])
