"""What an attempt runs in: the interface that the Docker and the process worker both fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.core.resources import Gpu, Resources
from prefect_heteroflow.job_configuration import RetryConfiguration


class OnOutput(Protocol):
    """Takes a chunk of an attempt's output."""

    def __call__(self, chunk: bytes, *, is_old: bool = False) -> None:
        """With `is_old`, an earlier process of the worker has seen the chunk before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """Everything that starting one attempt takes."""

    flow_run: FlowRun
    configuration: RetryConfiguration
    task_id: str
    attempt: int
    resources: Resources
    gpus: tuple[Gpu, ...]
    """The node's GPUs that this attempt is given."""
    context_json: str | None
    """For the engine entry; `None` for a plain job."""
    on_output: OnOutput
    """Called from a thread with each chunk of the attempt's output, as it comes."""

    @property
    def is_echoed(self) -> bool:
        """Whether the worker's console shows the output; a plain job's is there as records."""
        wished = getattr(self.configuration, "stream_output", True)
        return bool(wished) and not self.configuration.is_plain_job


@dataclass(slots=True, kw_only=True)
class AttemptHandle:
    """One started attempt."""

    identifier: str
    """What Prefect keeps as the run's `infrastructure_pid`."""
    plan: AttemptPlan
    inner: Any = None
    """The container or process."""
    peak_memory_mb: int | None = None
    main_pid: int | None = None
    """Process id of the main process on the engine's host."""
    is_resumed: bool = False
    """An earlier process of the worker has started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How the main process of an attempt ended; `None` means "not observed"."""

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    oom_kill_count: int | None = None
    peak_memory_mb: int | None = None
    engine_error: str | None = None
    lost: bool = False
    """Its container or process is gone and nobody can say how it ended."""
    lost_because: str | None = None
    """How that is known, as a sentence."""

    @property
    def killed_for_memory(self) -> bool:
        """Some process of it was, as the engine or the kernel saw."""
        return bool(self.oom_killed or self.oom_kill_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRequest:
    """What an attempt wants to be cleaned up on this node, where an earlier one of its task ran."""

    plan: AttemptPlan
    """Of the attempt that is about to start."""
    patterns: Sequence[str]
    hook: str | None
    hook_timeout_seconds: float
    gpu_free_mb: Mapping[str, int]
    """GPU uuid -> memory that was free before the earlier attempt began, MiB."""
    is_cancelled: Callable[[], bool]
    """Nothing is to be started any more: what takes long breaks off."""


class AttemptNotStarted(Exception):
    """The engine refused to pull, create or start.

    Args:
        engine_error: The engine's own text.
        failure: What it is, where that is known without reading the text.
    """

    def __init__(self, engine_error: str, failure: FailureClass | None = None) -> None:
        super().__init__(engine_error)
        self.engine_error = engine_error
        self.failure = failure


class AttemptBackend(Protocol):
    """Starts, watches and ends attempts on this node."""

    containers: bool

    def scratch_of(self, task_id: str) -> str:
        """Path of the task's scratch folder, as its attempts see it."""

    async def clean_up(self, request: CleanupRequest) -> CleanupReport:
        """Clean up before an attempt. It takes minutes at most."""

    async def start_attempt(self, plan: AttemptPlan) -> AttemptHandle:
        """Start it.

        Raises:
            AttemptNotStarted: It never ran.
        """

    def give_up_start(self, plan: AttemptPlan) -> bool:
        """Whether `start_attempt` can be broken off: from then on it starts nothing any more."""

    async def wait_attempt(self, handle: AttemptHandle) -> AttemptEnd:
        """Stream its output and return when its main process has ended."""

    async def terminate_attempt(self, handle: AttemptHandle, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL after `grace_seconds`; nothing if it has ended."""

    async def read_report(self, handle: AttemptHandle) -> str | None:
        """The text of the engine entry's report, if it left one."""

    async def read_progress(self, handle: AttemptHandle, path: str) -> Progress | None:
        """What a file of the attempt says, relative to its working folder; `None` if nothing."""

    async def discard_attempt(self, handle: AttemptHandle) -> None:
        """Remove what is left of it. Called after the evidence was read."""


class WorkerCannotStart(RuntimeError):
    """The node cannot run attempts; the text says what is missing and what to do."""


def reason_in(error: BaseException) -> WorkerCannotStart | None:
    """The reason in an error or in a group of errors from task groups."""
    if isinstance(error, WorkerCannotStart):
        return error
    for part in getattr(error, "exceptions", ()):
        found = reason_in(part)
        if found is not None:
            return found
    return None
