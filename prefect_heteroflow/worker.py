"""
Module containing the heteroflow worker, which runs flow runs and plain jobs in Docker containers
and retries those that failed where they will succeed.

To start a worker on a node, run the following command there:

```bash
prefect worker start --pool 'my-work-pool' --type heteroflow
```

Replace `my-work-pool` with the name of the work pool of that class of nodes.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import anyio
import anyio.to_thread
import docker.errors
import httpx
import requests.exceptions
from docker.models.containers import Container
from prefect.exceptions import InfrastructureNotFound, ObjectNotFound
from prefect.workers.base import BaseWorkerResult
from prefect_docker.worker import (
    DockerWorker,
    DockerWorkerJobConfiguration,
    DockerWorkerResult,
)

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.backend import (
    AttemptEnd,
    AttemptHandle,
    AttemptNotStarted,
    AttemptPlan,
    CleanupRequest,
    WorkerCannotStart,
)
from prefect_heteroflow.attempts.start_checks import declared_gpus
from prefect_heteroflow.container_cleanup import clean_up_node
from prefect_heteroflow.container_watch import ContainerWatch, watch_peak_memory
from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.image_reference import image_reference_problem
from prefect_heteroflow.core.job_values import JobValueError
from prefect_heteroflow.core.progress import Progress, parse_progress
from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.docker_job import (
    ATTEMPT_LABEL,
    HOOK_LABEL,
    NODE_LABEL,
    RUN_LABEL,
    HeteroflowJobConfiguration,
    HeteroflowVariables,
    apply_plan,
    plan_from_labels,
)
from prefect_heteroflow.infra import container as containers
from prefect_heteroflow.infra.container import ENTRY_COMMAND
from prefect_heteroflow.infra.container_engine import ContainerEngine, engine_text, is_away
from prefect_heteroflow.infra.docker_errors import unite_docker_errors
from prefect_heteroflow.infra.node_probe import probe_node
from prefect_heteroflow.job_configuration import RetryConfiguration, check_command
from prefect_heteroflow.retrying_worker import RetryingWorker

if TYPE_CHECKING:
    from docker import DockerClient

unite_docker_errors()

T = TypeVar("T")


class HeteroflowWorker(RetryingWorker, DockerWorker):
    """Runs attempts in Docker containers and retries what failed where it will succeed."""

    type = "heteroflow"
    job_configuration = HeteroflowJobConfiguration
    job_configuration_variables = HeteroflowVariables
    containers = True

    _display_name = "Heteroflow"
    _description = (
        "Execute flow runs and plain jobs in Docker containers, and retry those that failed where"
        " they will succeed: with more memory, on a bigger GPU, or on another node. Requires a"
        " running Docker engine."
    )
    _documentation_url = "https://pypi.org/project/prefect-heteroflow/"
    _logo_url = DockerWorker._logo_url

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._docker = ContainerEngine(self._engine)
        self._plans: dict[_AttemptName, AttemptPlan] = {}
        self._creating: set[_AttemptName] = set()
        self._plans_lock = threading.Lock()

    # ---- the node -------------------------------------------------------------------------------

    async def probe_node(self) -> Node:
        """Memory and GPUs of this node, as the engine and NVML know them."""
        settings = self.heteroflow_settings
        try:
            info = await self._in_thread(self._docker.info)
        except (
            docker.errors.DockerException,
            RuntimeError,
            requests.exceptions.RequestException,
        ) as error:
            if self._presence is not None:
                return self.node  # the engine is away for now: the node is what it was
            raise WorkerCannotStart(
                f"No Docker engine answers ({error.__cause__ or error}). Start Docker, or point"
                " DOCKER_HOST at its socket; on a machine without Docker use the worker type"
                " heteroflow-process."
            ) from error
        return await self._in_thread(
            functools.partial(
                probe_node,
                settings.node_name,
                self._work_pool_name,
                declared_memory_mb=settings.node_memory_mb,
                declared_gpus=declared_gpus(settings),
                docker_info=info,
            )
        )

    def _engine(self) -> DockerClient:
        client: DockerClient = self._get_client()  # type: ignore[no-untyped-call]
        return client

    def check_configuration(self, configuration: RetryConfiguration) -> None:
        """Refuse an image reference that Docker could not parse."""
        image = getattr(configuration, "image", None)
        problem = None if image is None else image_reference_problem(image)
        if problem is not None:
            raise JobValueError(
                f"{problem} Correct the job variable image.", failure=FailureClass.INVALID_CONFIG
            )
        check_command(configuration.command)

    def attempt_result(self, identifier: str) -> BaseWorkerResult:
        """A handled attempt: status 0."""
        return DockerWorkerResult(status_code=0, identifier=identifier)

    # ---- one attempt ----------------------------------------------------------------------------

    async def start_attempt(self, plan: AttemptPlan) -> AttemptHandle:
        """Pull, create, fill and start the container."""
        configuration = plan.configuration
        assert isinstance(configuration, HeteroflowJobConfiguration)
        apply_plan(configuration, plan, node_name=self.node.name)
        key = str(plan.flow_run.id)
        with self._plans_lock:
            self._plans[_name_of(plan)] = plan
        try:
            container, _ = await self._in_thread(
                functools.partial(self._create_and_start_container, configuration)
            )
        except Exception as error:
            if isinstance(error, requests.exceptions.RequestException):
                # The engine went away in the middle: the container may run, and would beside the
                # next attempt.
                await self._when_engine_answers(
                    functools.partial(self._docker.remove_all, {RUN_LABEL: key})
                )
            await self._in_thread(functools.partial(self._remove_unstarted, key))
            if isinstance(error, TypeError | ValueError):
                # docker-py itself refuses what it cannot put into a request.
                raise AttemptNotStarted(
                    f"The container's configuration cannot be used: {error}. Correct the job"
                    " variables.",
                    failure=FailureClass.INVALID_CONFIG,
                ) from error
            if isinstance(error, docker.errors.DockerException | RuntimeError | OSError):
                raise AttemptNotStarted(engine_text(error)) from error
            raise
        finally:
            with self._plans_lock:
                self._plans.pop(_name_of(plan), None)
                self._creating.discard(_name_of(plan))
        identifier = await self._when_engine_answers(
            functools.partial(self._get_infrastructure_pid, container_id=str(container.id))
        )
        return AttemptHandle(identifier=identifier, plan=plan, inner=container.id)

    def give_up_start(self, plan: AttemptPlan) -> bool:
        """Possible until its container is created, so while its image is pulled."""
        with self._plans_lock:
            if _name_of(plan) in self._creating:
                return False
            self._plans.pop(_name_of(plan), None)
            return True

    async def wait_attempt(self, handle: AttemptHandle) -> AttemptEnd:
        """Stream the output; the final state is read from the engine, not from `wait()`."""
        async with anyio.create_task_group() as group:
            group.start_soon(watch_peak_memory, handle)
            logger = self.get_flow_run_logger(handle.plan.flow_run)
            end = await self._in_thread(ContainerWatch(self._engine, handle, logger).end)
            group.cancel_scope.cancel()
        return end

    async def terminate_attempt(self, handle: AttemptHandle, grace_seconds: float) -> None:
        """`docker stop`: SIGTERM, and SIGKILL after the grace time."""
        await self._in_thread(functools.partial(self._docker.stop, handle.inner, grace_seconds))

    async def read_report(self, handle: AttemptHandle) -> str | None:
        """The report that the engine entry left in the container."""
        if handle.plan.context_json is None:
            return None
        return await self._when_engine_answers(
            functools.partial(
                self._docker.with_container,
                handle.inner,
                lambda container: containers.read_file(container, containers.REPORT_PATH),
            )
        )

    async def read_progress(self, handle: AttemptHandle, path: str) -> Progress | None:
        """What a file of the container says, relative to its working folder."""

        def read(container: Container) -> str | None:
            folder = container.attrs["Config"].get("WorkingDir") or "/"
            return containers.read_file(container, posixpath.join(folder, path))

        text = await self._in_thread(
            functools.partial(self._docker.with_container, handle.inner, read)
        )
        return parse_progress(text or "")

    async def discard_attempt(self, handle: AttemptHandle) -> None:
        """Remove the container, unless the user wants to keep it."""
        if getattr(handle.plan.configuration, "auto_remove", True):
            await self._when_engine_answers(functools.partial(self._docker.remove, handle.inner))

    def scratch_of(self, task_id: str) -> str:
        """A folder in the container, which goes with it."""
        return containers.SCRATCH_PATH

    async def clean_up(self, request: CleanupRequest) -> CleanupReport:
        """The user's hook and the GPU memory; the rest went with the container of before."""
        clean = functools.partial(
            clean_up_node,
            request,
            node_name=self.node.name,
            engine=self._docker,
            create=self._create_and_start_container,
        )
        return await self._in_thread(clean)

    async def kill_infrastructure(
        self,
        infrastructure_pid: str,
        configuration: Any,
        grace_seconds: int = 30,
    ) -> None:
        """End a container of this node.

        Raises:
            InfrastructureNotFound: There is no such container here.
        """
        _, container_id = self._parse_infrastructure_pid(infrastructure_pid)
        found = await self._in_thread(
            functools.partial(self._docker.stop, container_id, float(grace_seconds))
        )
        if not found:
            raise InfrastructureNotFound(f"There is no container {container_id} on this node.")

    async def find_left_attempts(
        self,
    ) -> Sequence[tuple[AttemptHandle, RetryConfiguration]]:
        """Containers of this node that an earlier process of the worker has started."""
        found: list[tuple[AttemptHandle, RetryConfiguration]] = []
        left = []
        for pool_id in await self._ids_of_pools_looked_after():
            # Another Prefect server may have a node of the same name on the same engine.
            ours = {NODE_LABEL: self.node.name, "io.prefect.work-pool-id": str(pool_id)}
            left += await self._in_thread(functools.partial(self._docker.find_all, ours))
        for container_id, status, labels in left:
            try:
                attempt = await self._left_attempt(container_id, status, labels)
            except httpx.HTTPError:
                raise  # the API is away: all of them again, later
            except Exception as error:
                self._logger.warning("Container %s cannot be taken over: %s", container_id, error)
                continue
            if attempt is not None:
                found.append(attempt)
        return found

    async def _ids_of_pools_looked_after(self) -> list[UUID]:
        found = [self.work_pool.id]
        for name in self.node.former_pools:
            with contextlib.suppress(ObjectNotFound):
                found.append((await self.client.read_work_pool(name)).id)
        return found

    async def end_left_attempt(self, flow_run_id: UUID) -> None:
        """Remove every container of that run on this node."""
        ours = {RUN_LABEL: str(flow_run_id), NODE_LABEL: self.node.name}
        await self._in_thread(functools.partial(self._docker.remove_all, ours))

    async def _left_attempt(
        self, container_id: str, status: str, labels: dict[str, str]
    ) -> tuple[AttemptHandle, RetryConfiguration] | None:
        """One left container; `None` for one that nobody waits for, which is removed."""
        try:
            flow_run = await self.client.read_flow_run(UUID(labels[RUN_LABEL]))
        except (ObjectNotFound, ValueError):
            flow_run = None
        if flow_run is None or status == "created" or HOOK_LABEL in labels:
            await self._in_thread(functools.partial(self._docker.remove, container_id))
            return None
        configuration = await self.configuration_for(flow_run)
        plan = plan_from_labels(labels, flow_run, configuration, gpus_of_node=self.node.gpus)
        identifier = await self._in_thread(
            functools.partial(self._get_infrastructure_pid, container_id=container_id)
        )
        handle = AttemptHandle(
            identifier=identifier, plan=plan, inner=container_id, is_resumed=True
        )
        return handle, configuration

    async def _when_engine_answers(self, work: Callable[[], T]) -> T:
        """Ask, and ask again while the engine is away: what it holds is evidence or a remainder."""
        pause_seconds = 0.5
        while True:
            try:
                return await self._in_thread(work)
            except Exception as error:
                if not is_away(error):
                    raise
                self._logger.warning("The Docker engine does not answer: %s", error)
            await anyio.sleep(pause_seconds)
            pause_seconds = min(10.0, 2 * pause_seconds)

    # ---- in threads: docker-py blocks -----------------------------------------------------------

    def _build_container_settings(
        self, docker_client: DockerClient, configuration: DockerWorkerJobConfiguration
    ) -> dict[str, Any]:
        # prefect-docker passes `auto_remove` on to the engine, which would take the evidence away.
        # Pinned by tests/surface/test_core_hooks.py.
        settings: dict[str, Any] = super()._build_container_settings(docker_client, configuration)
        return {**settings, "auto_remove": False}

    def _create_container(self, docker_client: DockerClient, **kwargs: Any) -> Container:
        # prefect-docker has no hook between create and start, where the engine entry goes in.
        # Pinned by tests/surface/test_core_hooks.py.
        labels = kwargs.get("labels", {})
        if HOOK_LABEL in labels:
            return super()._create_container(docker_client, **kwargs)
        name = (labels.get(RUN_LABEL, ""), labels.get(ATTEMPT_LABEL, ""))
        with self._plans_lock:
            plan = self._plans.get(name)
            if plan is None:
                raise RuntimeError("The run was cancelled before its container was created.")
            self._creating.add(name)
        container = super()._create_container(docker_client, **kwargs)
        try:
            container.put_archive("/", containers.entry_archive(plan.context_json))
        except docker.errors.APIError as error:
            is_flow, command = plan.context_json is not None, kwargs.get("command")
            if "read-only" not in str(error) or (is_flow and command != ENTRY_COMMAND):
                raise
            if is_flow:
                command = containers.PREFECT_COMMAND
                self.get_flow_run_logger(plan.flow_run).warning(
                    "The container's root is read-only, so the flow runs by Prefect's own engine:"
                    " kills are still retried, exceptions end the run as in any other worker."
                )
            container.remove(force=True, v=True)
            variables = dict(kwargs.get("environment") or {})
            variables.pop(environment.SCRATCH, None)
            return super()._create_container(
                docker_client, **{**kwargs, "command": command, "environment": variables}
            )
        return container

    def _remove_unstarted(self, flow_run_id: str) -> None:
        """Remove what was created but could not be started."""
        try:
            self._docker.remove_all({RUN_LABEL: flow_run_id}, status="created")
        except (RuntimeError, docker.errors.APIError, requests.RequestException) as error:
            self._logger.warning("An unstarted container may be left: %s", error)


_AttemptName = tuple[str, str]
"""Run and number, as the container's labels have them."""


def _name_of(plan: AttemptPlan) -> _AttemptName:
    return str(plan.flow_run.id), str(plan.attempt)
