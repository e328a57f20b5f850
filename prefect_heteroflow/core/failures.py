"""Failure classes, their groups, and what was observed and concluded about one ended attempt.

The string values of `FailureClass` and `FailureGroup` stand in artifacts, events and
automations; they are never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

OUTER_MEMORY_LIMIT = "outer-memory-limit"
"""Rule of an attempt that was killed because of what others around it used."""

Phase = Literal["start", "run", "lost"]


class FailureGroup(str, Enum):
    """What kind of next attempt could succeed."""

    ESCALATE = "escalate"
    TRANSIENT = "transient"
    NODE = "node"
    GANG = "group"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class FailureClass(str, Enum):
    """Why an attempt ended without success."""

    CPU_OUT_OF_MEMORY = "CpuOutOfMemory"
    GPU_OUT_OF_MEMORY = "GpuOutOfMemory"
    SHARED_MEMORY_EXHAUSTED = "SharedMemoryExhausted"

    NETWORK_TIMEOUT = "NetworkTimeout"
    TRANSIENT_ERROR = "TransientError"
    CONTAINER_RUNTIME_ERROR = "ContainerRuntimeError"
    DISK_PRESSURE = "DiskPressure"

    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    GPU_HARDWARE_ERROR = "GpuHardwareError"
    PROCESS_CRASHED = "ProcessCrashed"

    DISTRIBUTED_PEER_LOST = "DistributedPeerLost"

    IMAGE_NOT_FOUND = "ImageNotFound"
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    PERMISSION_DENIED = "PermissionDenied"
    INVALID_CONFIG = "InvalidConfig"
    RESOURCE_LIMIT_EXCEEDED = "ResourceLimitExceeded"
    TASK_CANCELLED = "TaskCancelled"
    APPLICATION_ERROR = "ApplicationError"

    UNKNOWN_ERROR = "UnknownError"

    @property
    def group(self) -> FailureGroup:
        """The group of this class (design section 2)."""
        return GROUP_OF[self]


GROUP_OF: MappingProxyType[FailureClass, FailureGroup] = MappingProxyType(
    {
        FailureClass.CPU_OUT_OF_MEMORY: FailureGroup.ESCALATE,
        FailureClass.GPU_OUT_OF_MEMORY: FailureGroup.ESCALATE,
        FailureClass.SHARED_MEMORY_EXHAUSTED: FailureGroup.ESCALATE,
        FailureClass.NETWORK_TIMEOUT: FailureGroup.TRANSIENT,
        FailureClass.TRANSIENT_ERROR: FailureGroup.TRANSIENT,
        FailureClass.CONTAINER_RUNTIME_ERROR: FailureGroup.TRANSIENT,
        FailureClass.DISK_PRESSURE: FailureGroup.TRANSIENT,
        FailureClass.NODE_LOST: FailureGroup.NODE,
        FailureClass.PREEMPTED: FailureGroup.NODE,
        FailureClass.GPU_HARDWARE_ERROR: FailureGroup.NODE,
        FailureClass.PROCESS_CRASHED: FailureGroup.NODE,
        FailureClass.DISTRIBUTED_PEER_LOST: FailureGroup.GANG,
        FailureClass.IMAGE_NOT_FOUND: FailureGroup.PERMANENT,
        FailureClass.IMAGE_PULL_BACK_OFF: FailureGroup.PERMANENT,
        FailureClass.PERMISSION_DENIED: FailureGroup.PERMANENT,
        FailureClass.INVALID_CONFIG: FailureGroup.PERMANENT,
        FailureClass.RESOURCE_LIMIT_EXCEEDED: FailureGroup.PERMANENT,
        FailureClass.TASK_CANCELLED: FailureGroup.PERMANENT,
        FailureClass.APPLICATION_ERROR: FailureGroup.PERMANENT,
        FailureClass.UNKNOWN_ERROR: FailureGroup.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionInfo:
    """One Python exception as data, so that it can leave the process that raised it."""

    type_names: tuple[str, ...]
    """Dotted names of the type and its bases in MRO order, without `object`."""
    message: str
    causes: tuple[ExceptionInfo, ...] = ()
    """`__cause__`, else the unsuppressed `__context__`, from the nearest outwards."""
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything observed about how one attempt ended. `None` means "not observed"."""

    phase: Phase | None = None
    """`start`: it never ran; `run`: it ran and ended; `lost`: contact was lost."""
    exit_code: int | None = None
    """Exit code of the main process, 0 to 255; 128 + N may stand for signal N."""
    signal: int | None = None
    """Signal number that ended the main process, where the back end reports it apart."""
    oom_killed: bool | None = None
    """What the engine says (`State.OOMKilled`): some process of it was killed for memory."""
    oom_kill_count: int | None = None
    """How many processes the kernel killed for memory in the attempt's cgroup."""
    memory_limit_mb: int | None = None
    """Memory limit in MiB."""
    peak_memory_mb: int | None = None
    """Highest memory use seen, MiB."""
    own_limit_reached: bool | None = None
    """Memory use came up to `memory_limit_mb`; known where a limit around it can bind first."""
    outer_limit_mb: int | None = None
    """The limit that it shares with other processes around it, MiB."""
    engine_error: str | None = None
    """Text of the container engine's error at pull, create or start."""
    exception: ExceptionInfo | None = None
    state_message: str | None = None
    """Message of the terminal Prefect state that the attempt reported itself."""
    log: str | None = None
    """Output of the attempt: a tail of it, or the lines that a scanner kept, in order."""
    cancel_requested: bool | None = None
    """A user's cancel was seen by us before the end."""
    stop_requested: bool | None = None
    """We ended it ourselves for another reason (worker shutting down, for example)."""
    deadline_exceeded: bool | None = None
    """It ran into a time limit that the user set."""
    kubernetes_reason: str | None = None
    """Pod or container reason, for pools of other worker types (`OOMKilled`, `Evicted`, ...)."""
    kubernetes_message: str | None = None
    xid_codes: tuple[int, ...] | None = None
    """NVIDIA Xid events of the attempt's GPUs in its time window."""
    gpu_total_mb: int | None = None
    """Memory of the GPU that the attempt used, MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Numbers read from an out-of-memory text, in bytes. Each may be unknown."""

    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    own_bytes: int | None = None
    """In use by this process (allocator reserve and context included where the text says so)."""
    foreign_bytes: int | None = None
    """In use by other processes."""
    gpu_index: int | None = None

    @property
    def needed_bytes(self) -> int | None:
        """Device memory that would have sufficed: own + requested; `None` if either is unknown."""
        if self.own_bytes is None or self.requested_bytes is None:
            return None
        return self.own_bytes + self.requested_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an attempt failed: the class, the rule that matched and the line that shows it."""

    failure: FailureClass
    rule: str
    """Stable id of the rule, for example `docker-oom-killed`."""
    reason: str
    """One sentence for a person, without secrets."""
    line: str | None = None
    """The line of the evidence that shows it, secrets masked, at most 500 characters."""
    confidence: float = 1.0
    """0 to 1; below 0.5 it is a guess."""
    figures: MemoryFigures | None = None
    verdict: Literal["retry", "stop"] | None = None
    """Set when a rule of the user (`retry_on`, `stop_on`, `retry_exceptions`) decides."""
    runner_up: FailureClass | None = None
    passive_matches: tuple[str, ...] = ()
    """What passive user rules would have said, one sentence each."""
