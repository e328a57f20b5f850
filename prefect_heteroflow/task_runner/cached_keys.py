"""Cache keys for the engine's copy of a task: those of the task itself, and no stale ones.

A policy reads the source or the code of a task's function, and the copy has another function.

Keys whose result is gone are made void, so that the task runs and writes it again.
Prefect keeps keys and results in one place unless a cache policy has a `key_storage`. In one place
a lost record is no hit. With two, the key alone decides, and the task then fails when the result is
read, in every attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect.cache_policies import CachePolicy
from prefect.logging.loggers import get_run_logger

from prefect_heteroflow.task_runner.stored_results import (
    ResultRecordMetadata,
    read_stored,
    write_stored,
)

if TYPE_CHECKING:
    from prefect import Task
    from prefect.context import TaskRunContext

_VOID = b""
"""What Prefect takes for "no such key": it cannot be parsed."""


def keys_of(task: Task[..., Any]) -> Any:
    """The cache policy for a copy of the task; its cache hits are checked where that is needed."""
    policy: Any = task.cache_policy
    if not isinstance(policy, CachePolicy):
        return policy
    return KeysOfTask(
        task=task,
        policy=policy,
        key_storage=policy.key_storage,
        isolation_level=policy.isolation_level,
        lock_manager=policy.lock_manager,
    )


@dataclass
class KeysOfTask(CachePolicy):
    """The keys that another policy gives for a task, whoever asks.

    None of them leads to a result that is gone, where keys and results lie apart.
    """

    task: Task[..., Any] | None = None
    policy: CachePolicy | None = None

    def compute_key(
        self,
        task_ctx: TaskRunContext,
        inputs: dict[str, Any],
        flow_parameters: dict[str, Any],
        **kwargs: Any,
    ) -> str | None:
        """The other policy's key; before a cache hit its result is looked for."""
        assert self.policy is not None
        asked = task_ctx.model_copy(update={"task": self.task}) if task_ctx else task_ctx
        key = self.policy.compute_key(asked, inputs, flow_parameters, **kwargs)
        lie_apart = self.key_storage is not None
        if lie_apart and key is not None and not task_ctx.task.refresh_cache:
            _make_void_if_lost(task_ctx, key)
        return key


def _make_void_if_lost(context: TaskRunContext, key: str) -> None:
    store = context.result_store
    if store.metadata_storage is None or not store.exists(key):
        return
    try:
        store.read(key)  # stays in the store's memory: the hit does not read it again
        return
    except Exception as error:  # a storage block raises whatever its library does
        problem = error
    logger = get_run_logger(context)
    metadata = ResultRecordMetadata.load_bytes(read_stored(store.metadata_storage, key))
    try:
        read_stored(store.result_storage, str(metadata.storage_key))
    except Exception as lost:  # the same
        logger.warning(
            "The cached result under key %s is lost (%s: %s). The task runs again.",
            key,
            type(lost).__name__,
            lost,
        )
        write_stored(store.metadata_storage, key, _VOID)
        return
    logger.error(
        "The cached result under key %s is there but cannot be loaded (%s: %s). Install what it"
        " needs, or run the task with `refresh_cache=True` to make it anew.",
        key,
        type(problem).__name__,
        problem,
    )
