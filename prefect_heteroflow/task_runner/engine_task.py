"""The copy of a task that Prefect's engine runs, behind which users see their own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.task_runner.cached_keys import keys_of

if TYPE_CHECKING:
    from prefect import Task

Hook = Callable[..., Any]


def engine_copy(task: Task[..., Any]) -> Task[..., Any]:
    """A copy that can be changed; hooks and cache policies still get the task itself."""
    changed = copy.copy(task)
    changed.cache_policy = keys_of(task)
    changed.on_running_hooks = [_for_task(hook, task) for hook in task.on_running_hooks]
    changed.on_completion_hooks = [_for_task(hook, task) for hook in task.on_completion_hooks]
    changed.on_failure_hooks = [_for_task(hook, task) for hook in task.on_failure_hooks]
    return changed


def _for_task(hook: Hook, task: Task[..., Any]) -> Hook:
    """The hook, which is always called with that task."""

    @functools.wraps(hook)
    def called(_: Task[..., Any], *arguments: Any) -> Any:
        return hook(task, *arguments)

    called.__name__ = _name_of(hook)
    return called


def _name_of(hook: Any) -> str:
    """The name under which Prefect logs it."""
    if isinstance(hook, functools.partial) and not hasattr(hook, "__name__"):
        hook = hook.func
    return str(getattr(hook, "__name__", type(hook).__name__))
