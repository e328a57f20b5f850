"""
Module containing the heteroflow process worker, which runs flow runs and plain jobs as child
processes under a memory limit, on machines without Docker.

To start a worker on a node, run the following command there:

```bash
prefect worker start --pool 'my-work-pool' --type heteroflow-process
```

Replace `my-work-pool` with the name of the work pool of that class of nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import anyio
from prefect.exceptions import InfrastructureNotFound
from prefect.settings import get_current_settings
from prefect.workers.base import BaseWorkerResult
from prefect.workers.process import (
    ProcessJobConfiguration,
    ProcessVariables,
    ProcessWorker,
    ProcessWorkerResult,
)

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.backend import (
    AttemptEnd,
    AttemptHandle,
    AttemptNotStarted,
    AttemptPlan,
    CleanupRequest,
)
from prefect_heteroflow.attempts.kept_ends import KeptEnds
from prefect_heteroflow.attempts.start_checks import declared_gpus
from prefect_heteroflow.console import echo
from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.job_values import JobValueError
from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.core.status_rules import failure_of_start
from prefect_heteroflow.infra.cleanup import CleanupPlan, clean_up
from prefect_heteroflow.infra.leftovers import end_leftovers
from prefect_heteroflow.infra.memory_limits import MemoryLimit, create_memory_limit
from prefect_heteroflow.infra.node_probe import probe_node
from prefect_heteroflow.infra.progress_file import read_progress_file
from prefect_heteroflow.infra.removal import remove
from prefect_heteroflow.infra.scratch import ScratchFolders
from prefect_heteroflow.job_configuration import RetryConfiguration, RetryVariables, check_command
from prefect_heteroflow.retrying_worker import RetryingWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Flow as APIFlow
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

_ENTRY_COMMAND = f"{shlex.quote(sys.executable)} -m prefect_heteroflow.engine"
# A grandchild may hold the pipe open after the main process has ended and all were killed.
_DRAIN_SECONDS = 5.0
# Processes that nothing ends are not waited for: they end with this one.
_STOP_SECONDS = 10.0
_CHUNK = 64 * 1024


class HeteroflowProcessVariables(RetryVariables, ProcessVariables):
    """Job variables of the `heteroflow-process` worker type."""


class HeteroflowProcessJobConfiguration(RetryConfiguration, ProcessJobConfiguration):
    """Configuration of one attempt in a child process."""

    def prepare_for_flow_run(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None = None,
        flow: APIFlow | None = None,
        work_pool: WorkPool | None = None,
        worker_name: str | None = None,
        worker_id: UUID | None = None,
    ) -> None:
        """Prepare the flow run; a flow runs by our engine entry."""
        has_command = self.command is not None
        super().prepare_for_flow_run(
            flow_run, deployment, flow, work_pool, worker_name, worker_id=worker_id
        )
        if not has_command:
            self.command = _ENTRY_COMMAND


@dataclass(slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes]
    limit: MemoryLimit
    folder: Path
    working_folder: Path | None
    """Temporary working folder to remove, `None` if the user gave one."""


class HeteroflowProcessWorker(RetryingWorker, ProcessWorker):
    """Runs attempts in child processes under a memory limit and retries what failed."""

    type = "heteroflow-process"
    job_configuration = HeteroflowProcessJobConfiguration
    job_configuration_variables = HeteroflowProcessVariables  # type: ignore[assignment]
    containers = False

    _display_name = "Heteroflow Process"
    _description = (
        "Execute flow runs and plain jobs as child processes under a memory limit, and retry those"
        " that failed where they will succeed: with more memory, on a bigger GPU, or on another"
        " node. For machines without Docker."
    )
    _documentation_url = "https://pypi.org/project/prefect-heteroflow/"
    _logo_url = ProcessWorker._logo_url

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._said_limit_kind = False
        # A child ends with the thread that has started it: one that ends with this process.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="heteroflow-start")

    async def probe_node(self) -> Node:
        """Memory and GPUs of this node, as the kernel and NVML know them."""
        settings = self.heteroflow_settings
        return await self._in_thread(
            functools.partial(
                probe_node,
                settings.node_name,
                self._work_pool_name,
                declared_memory_mb=settings.node_memory_mb,
                declared_gpus=declared_gpus(settings),
                docker_info=None,
            )
        )

    def check_configuration(self, configuration: RetryConfiguration) -> None:
        """Refuse a command that cannot be split and a working directory that is not there."""
        check_command(configuration.command)
        folder = getattr(configuration, "working_dir", None)
        if folder is not None and not Path(folder).is_dir():
            raise JobValueError(
                f"working_dir is {str(folder)!r}, expected an existing folder of node"
                f" {self.node.name}. Create it there, or leave working_dir out.",
                failure=FailureClass.INVALID_CONFIG,
            )

    async def end_all_left(self) -> None:
        """End the children of an earlier process of this worker, also of runs that were moved.

        Their ends that it could not tell any more are kept in the folder of this node.
        """
        mark = uuid5(NAMESPACE_URL, " ".join(self._owner)).hex
        folder = get_current_settings().home / "heteroflow" / "ends" / mark
        self.kept_ends = KeptEnds(folder, self._logger)
        self.scratch_folders = self._scratch
        await self._in_thread(self._end_all_left)

    async def end_left_attempt(self, flow_run_id: UUID) -> None:
        """End what an earlier process of this worker may have left of that run."""
        await self._in_thread(lambda: create_memory_limit(str(flow_run_id), 64).close())

    async def end_with_worker(self, handles: Sequence[AttemptHandle]) -> None:
        """End the children, which would end with this process, and remove their folders.

        Files in a scratch folder stay: the next attempt may come back to this node.
        """
        if handles:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_SECONDS):
                await self._in_thread(functools.partial(self._end_with_worker, handles))

    def _end_with_worker(self, handles: Sequence[AttemptHandle]) -> None:
        for handle in handles:
            child: _Child = handle.inner
            child.limit.kill_all()
            self._remove_folders(handle)

    def attempt_result(self, identifier: str) -> BaseWorkerResult:
        """A handled attempt: status 0."""
        return ProcessWorkerResult(status_code=0, identifier=identifier)

    async def start_attempt(self, plan: AttemptPlan) -> AttemptHandle:
        """Start the child under its limit."""
        try:
            child = await self._in_thread(functools.partial(self._start, plan))
        except (OSError, ValueError) as error:
            failure = failure_of_start(error.errno if isinstance(error, OSError) else None)
            raise AttemptNotStarted(str(error), failure=failure) from error
        if not self._said_limit_kind:
            self._said_limit_kind = True
            notes = "".join(f"; {note}" for note in child.limit.notes)
            self._logger.info("Memory limits are kept by %s%s.", child.limit.kind, notes)
        return AttemptHandle(identifier=str(child.process.pid), plan=plan, inner=child)

    def give_up_start(self, plan: AttemptPlan) -> bool:
        """Never: a child starts at once, and is then ended as one that runs."""
        return False

    async def wait_attempt(self, handle: AttemptHandle) -> AttemptEnd:
        """Stream the output until the main process has ended; end whatever it left behind."""
        return await self._in_thread(functools.partial(self._wait, handle))

    async def terminate_attempt(self, handle: AttemptHandle, grace_seconds: float) -> None:
        """SIGTERM to the main process, and SIGKILL to all of them after the grace time."""
        await self._in_thread(functools.partial(_terminate, handle.inner, grace_seconds))

    async def read_report(self, handle: AttemptHandle) -> str | None:
        """The report that the engine entry left in the attempt's folder."""
        child: _Child = handle.inner
        try:
            return (child.folder / "report.json").read_text(encoding="utf-8")
        except OSError:
            return None

    async def read_progress(self, handle: AttemptHandle, path: str) -> Progress | None:
        """What a file says, relative to the child's working folder."""
        child: _Child = handle.inner
        working_dir = getattr(handle.plan.configuration, "working_dir", None)
        folder = Path(working_dir or child.working_folder or "/")
        return await self._in_thread(functools.partial(read_progress_file, folder / path))

    async def discard_attempt(self, handle: AttemptHandle) -> None:
        """Remove the attempt's folders."""
        await self._in_thread(functools.partial(self._remove_folders, handle))

    def _remove_folders(self, handle: AttemptHandle) -> None:
        child: _Child = handle.inner
        for folder in filter(None, (child.folder, child.working_folder)):
            remove(folder)
        self._scratch.remove_if_empty(handle.plan.task_id)

    def scratch_of(self, task_id: str) -> str:
        """A folder that all attempts of the task on this node share."""
        return str(self._scratch.of_task(task_id))

    async def clean_up(self, request: CleanupRequest) -> CleanupReport:
        """Leftover processes, stale files of the scratch folder, the user's hook, GPU memory."""
        return await self._in_thread(functools.partial(self._clean_up, request))

    async def kill_infrastructure(
        self, infrastructure_pid: str, configuration: Any, grace_seconds: int = 30
    ) -> None:
        """End a child process of this worker.

        Raises:
            InfrastructureNotFound: This worker has no such child.
        """
        for life in self.lives:
            handle = life.handle
            if handle is not None and handle.identifier == infrastructure_pid:
                await self.terminate_attempt(handle, float(grace_seconds))
                return
        raise InfrastructureNotFound(f"This worker has no child process {infrastructure_pid}.")

    # ---- in threads -----------------------------------------------------------------------------

    @property
    def _scratch(self) -> ScratchFolders:
        return ScratchFolders(*self._owner)

    @property
    def _owner(self) -> tuple[str, str]:
        """Tells this node from all others whose workers run on this machine.

        Not its pool: what a worker of another pool has left is this one's, as the node's name is.
        """
        return self.node.name, _api_url()

    def _end_all_left(self) -> None:
        ended = end_leftovers({environment.NODE: self.node.name, "PREFECT_API_URL": _api_url()})
        removed = self._scratch.remove_attempts()
        if ended or removed:
            self._logger.info(
                "An earlier process of this worker had left %d processes and %d folders; they are"
                " gone now.",
                ended,
                removed,
            )

    def _clean_up(self, request: CleanupRequest) -> CleanupReport:
        configuration = request.plan.configuration
        assert isinstance(configuration, HeteroflowProcessJobConfiguration)
        folders, problems = [], []
        try:
            folders.append(self._scratch.make_for_task(request.plan.task_id))
        except OSError as error:
            # Its processes are to go all the same.
            problems.append(str(error).rstrip("."))
        report = clean_up(
            CleanupPlan(
                folders=folders,
                # The flow's children have other ids of tasks, but this too.
                marks={environment.SCRATCH: self.scratch_of(request.plan.task_id)},
                patterns=request.patterns,
                gpu_free_mb=request.gpu_free_mb,
                hook=request.hook,
                hook_folder=configuration.working_dir,
                hook_environment=_variables(configuration),
                hook_timeout_seconds=request.hook_timeout_seconds,
                is_cancelled=request.is_cancelled,
            )
        )
        return dataclasses.replace(report, problems=(*problems, *report.problems))

    def _start(self, plan: AttemptPlan) -> _Child:
        configuration = plan.configuration
        assert isinstance(configuration, HeteroflowProcessJobConfiguration)
        self._scratch.make_for_task(plan.task_id)
        folder = self._scratch.make("attempt")
        working_folder = None
        if configuration.working_dir is None:
            working_folder = self._scratch.make("work")
        env = {**self.heteroflow_settings.as_environment(), **_variables(configuration)}
        if plan.context_json is not None:
            context_file = folder / "context.json"
            context_file.write_text(plan.context_json, encoding="utf-8")
            env[environment.CONTEXT_FILE] = str(context_file)
            env[environment.REPORT_FILE] = str(folder / "report.json")
        if plan.resources.gpu_count:
            env["CUDA_VISIBLE_DEVICES"] = self._visible_devices(plan)
        limit = create_memory_limit(str(plan.flow_run.id), plan.resources.memory_mb)
        try:
            process = self._starter.submit(
                subprocess.Popen,
                limit.wrap(shlex.split(configuration.command or "")),
                cwd=configuration.working_dir or working_folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).result()
        except BaseException:
            limit.close()
            for left in filter(None, (folder, working_folder)):
                remove(left)
            raise
        limit.enter(process.pid)
        return _Child(process=process, limit=limit, folder=folder, working_folder=working_folder)

    def _visible_devices(self, plan: AttemptPlan) -> str:
        """What CUDA is to see: UUIDs of real GPUs, numbers of declared ones."""
        uuids = [gpu.uuid for gpu in plan.gpus]
        if all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids):
            return ",".join(uuids)
        numbers = {gpu.uuid: str(index) for index, gpu in enumerate(self.node.gpus)}
        return ",".join(numbers[uuid] for uuid in uuids)

    def _wait(self, handle: AttemptHandle) -> AttemptEnd:
        child: _Child = handle.inner
        assert child.process.stdout is not None
        reader = threading.Thread(
            target=self._read, args=(child.process.stdout, handle), daemon=True
        )
        reader.start()
        status = child.process.wait()
        child.limit.kill_all()
        reader.join(_DRAIN_SECONDS)
        kills = child.limit.oom_kill_count()
        peak = child.limit.peak_memory_mb()
        by_limit = kills is None and status == -signal.SIGKILL and child.limit.limit_reached()
        child.limit.close()
        return AttemptEnd(
            exit_code=None if status < 0 else status,
            signal=-status if status < 0 else None,
            oom_kill_count=1 if by_limit else kills,
            peak_memory_mb=peak,
        )

    def _read(self, pipe: IO[bytes], handle: AttemptHandle) -> None:
        descriptor = pipe.fileno()
        while True:
            try:
                chunk = os.read(descriptor, _CHUNK)
            except OSError:
                return
            if not chunk:
                return
            try:
                handle.plan.on_output(chunk)
            except Exception:
                # Nobody else empties the pipe: without a reader the child would stand still.
                self._logger.exception("Output of attempt %d was not read.", handle.plan.attempt)
            if handle.plan.is_echoed:
                echo(chunk)


def _variables(configuration: HeteroflowProcessJobConfiguration) -> dict[str, str]:
    return {key: value for key, value in configuration.env.items() if value is not None}


def _api_url() -> str:
    return str(get_current_settings().api.url)


def _terminate(child: _Child, grace_seconds: float) -> None:
    if child.process.poll() is None:
        child.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(grace_seconds)
    child.limit.kill_all()
