"""The table of failure class x retry strategy -> action, and how a run ends without a retry."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from prefect_heteroflow.core.failures import Diagnosis, FailureClass, FailureGroup
from prefect_heteroflow.core.policy import Ending, RetryStrategy


class Action(str, Enum):
    """What would make the next attempt succeed."""

    GROW_MEMORY = "grow_memory"
    """Memory x2 on the same node if it fits, else on another node or pool."""
    GROW_MEMORY_HERE = "grow_memory_here"
    """Memory x2 on the same node, or stop."""
    LARGER_GPU = "larger_gpu"
    """The smallest GPU that is enough and larger than before, on any node or pool."""
    LARGER_GPU_HERE = "larger_gpu_here"
    """Another, larger GPU of the same node, or stop."""
    GROW_SHM = "grow_shm"
    """`/dev/shm` x2 on the same node."""
    AGAIN = "again"
    """The same attempt in the same place."""
    OTHER_NODE = "other_node"
    """The same attempt on another node; in the same place if there is no other."""
    STOP = "stop"


_C, _A = FailureClass, Action

# class, under retry_new_node, under retry_same_node; no_retry always stops.
_ROWS: tuple[tuple[FailureClass, Action, Action], ...] = (
    (_C.CPU_OUT_OF_MEMORY, _A.GROW_MEMORY, _A.GROW_MEMORY_HERE),
    (_C.GPU_OUT_OF_MEMORY, _A.LARGER_GPU, _A.LARGER_GPU_HERE),
    (_C.SHARED_MEMORY_EXHAUSTED, _A.GROW_SHM, _A.GROW_SHM),
    (_C.NETWORK_TIMEOUT, _A.AGAIN, _A.AGAIN),
    (_C.TRANSIENT_ERROR, _A.AGAIN, _A.AGAIN),
    (_C.CONTAINER_RUNTIME_ERROR, _A.AGAIN, _A.AGAIN),
    (_C.DISK_PRESSURE, _A.AGAIN, _A.AGAIN),
    (_C.NODE_LOST, _A.OTHER_NODE, _A.AGAIN),
    (_C.PREEMPTED, _A.OTHER_NODE, _A.AGAIN),
    (_C.GPU_HARDWARE_ERROR, _A.OTHER_NODE, _A.AGAIN),
    (_C.PROCESS_CRASHED, _A.OTHER_NODE, _A.AGAIN),
    (_C.DISTRIBUTED_PEER_LOST, _A.AGAIN, _A.AGAIN),
    (_C.IMAGE_NOT_FOUND, _A.STOP, _A.STOP),
    (_C.IMAGE_PULL_BACK_OFF, _A.STOP, _A.STOP),
    (_C.PERMISSION_DENIED, _A.STOP, _A.STOP),
    (_C.INVALID_CONFIG, _A.STOP, _A.STOP),
    (_C.RESOURCE_LIMIT_EXCEEDED, _A.STOP, _A.STOP),
    (_C.TASK_CANCELLED, _A.STOP, _A.STOP),
    (_C.APPLICATION_ERROR, _A.STOP, _A.STOP),
    (_C.UNKNOWN_ERROR, _A.OTHER_NODE, _A.AGAIN),
)

ACTION_OF: MappingProxyType[tuple[FailureClass, RetryStrategy], Action] = MappingProxyType(
    {
        (failure, strategy): action
        for failure, new_node, same_node in _ROWS
        for strategy, action in (
            (RetryStrategy.RETRY_NEW_NODE, new_node),
            (RetryStrategy.RETRY_SAME_NODE, same_node),
            (RetryStrategy.NO_RETRY, Action.STOP),
        )
    }
)

_ENDING_OF_GROUP: MappingProxyType[FailureGroup, Ending] = MappingProxyType(
    {
        FailureGroup.ESCALATE: Ending.FAILED,
        FailureGroup.TRANSIENT: Ending.FAILED,
        FailureGroup.NODE: Ending.CRASHED,
        FailureGroup.GANG: Ending.FAILED,
        FailureGroup.PERMANENT: Ending.PERMANENT_FAILURE,
        FailureGroup.UNKNOWN: Ending.FAILED,
    }
)

# An exception of the user's code ends just as Prefect itself would end it.
_ENDING_OF_CLASS: MappingProxyType[FailureClass, Ending] = MappingProxyType(
    {
        FailureClass.APPLICATION_ERROR: Ending.FAILED,
        FailureClass.TASK_CANCELLED: Ending.CANCELLED,
    }
)


def action_for(diagnosis: Diagnosis, strategy: RetryStrategy) -> Action:
    """The action of the table, unless a user rule overrides it.

    The verdict `retry` turns every class into one that is tried again in place; the classes that
    escalate still do, since the same attempt with the same size would only fail again.
    """
    failure = diagnosis.failure
    if strategy is RetryStrategy.NO_RETRY or diagnosis.verdict == "stop":
        return Action.STOP
    overridden = diagnosis.verdict == "retry" and failure is not FailureClass.TASK_CANCELLED
    if overridden and failure.group is not FailureGroup.ESCALATE:
        return Action.AGAIN
    return ACTION_OF[failure, strategy]


def ending_without_retry(failure: FailureClass) -> Ending:
    """How the run ends when a failure of this class is not retried at all."""
    return _ENDING_OF_CLASS.get(failure, _ENDING_OF_GROUP[failure.group])


def ending_when_spent(failure: FailureClass) -> Ending:
    """How the run ends when its retries ran out on a failure of this class."""
    return Ending.CRASHED if failure.group is FailureGroup.NODE else Ending.FAILED
