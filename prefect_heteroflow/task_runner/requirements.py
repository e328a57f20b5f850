"""`requires`: what a task needs, said on the task or around its submission."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

from prefect_heteroflow.core.task_requirements import Requirements, exception_names

Target = TypeVar("Target")

_ATTRIBUTE = "__heteroflow_requires__"


class _Around(NamedTuple):
    """One use around submits, and those around it."""

    of: requires
    requirements: Requirements
    """With those of the outer ones."""
    outer: _Around | None


# Nothing of a use is kept on the object: several threads and coroutines may be within it at once.
_around: ContextVar[_Around | None] = ContextVar("heteroflow_requires", default=None)


class requires:
    """What each attempt of a task needs and how it is retried.

    On a task, above or below `@task`, or around submits, where it counts more:

    ```python
    @task(retries=3)
    @requires(memory_mb=4096, gpu_memory_mb=8192)
    def train(shard): ...

    with requires(memory_mb=16384):
        future = train.submit(shard)
    ```

    Args:
        memory_mb: Memory limit of the first attempt in MiB, at least 6; also reserved on the node.
        gpu_count: Number of GPUs, 0 for none; 1 if only `gpu_memory_mb` is given.
        gpu_memory_mb: Least total memory of each GPU in MiB.
        shares_gpu: The task may share its GPUs with others that say so too.
        max_retries: Retries after the first attempt; -1 never gives up, 0 is off. It counts for
            tasks without `retries` of their own.
        retry_exceptions: Whether exceptions of the body are retried: False, True, or a list of
            types or their names.
        max_calls: A child process leaves after so many bodies, 1 or more.
        retry_strategy: `retry_new_node`, `retry_same_node` or `no_retry`.

    Raises:
        ValueError: A value is out of its range; the text names it and what is allowed.
    """

    def __init__(
        self,
        *,
        memory_mb: int | None = None,
        gpu_count: int | None = None,
        gpu_memory_mb: int | None = None,
        shares_gpu: bool | None = None,
        max_retries: int | None = None,
        retry_exceptions: bool | Sequence[type[BaseException] | str] | None = None,
        max_calls: int | None = None,
        retry_strategy: str | None = None,
    ) -> None:
        self._requirements = Requirements(
            memory_mb=memory_mb,
            gpu_count=gpu_count,
            gpu_memory_mb=gpu_memory_mb,
            shares_gpu=shares_gpu,
            max_retries=max_retries,
            retry_exceptions=exception_names(retry_exceptions),
            max_calls=max_calls,
            retry_strategy=retry_strategy,
        )

    def __call__(self, target: Target) -> Target:
        """The task or function with these requirements."""
        body = getattr(target, "fn", None)
        if body is None:
            return cast("Target", _noted(target, self._requirements))
        changed: Any = copy.copy(target)
        # The function itself may belong to other tasks too.
        copied = _copied(body)
        changed.fn = _noted(copied, self._requirements)
        return cast("Target", changed)

    def __enter__(self) -> requires:
        outer = _around.get()
        inner = self._requirements
        merged = inner if outer is None else inner.over(outer.requirements)
        _around.set(_Around(self, merged, outer))
        return self

    def __exit__(self, *exception: object) -> None:
        use = _around.get()
        while use is not None and use.of is not self:
            use = use.outer
        if use is not None:  # else it was entered in another context, where it still counts
            _around.set(use.outer)


def requirements_of(body: Callable[..., Any], base: Requirements) -> Requirements:
    """What counts for a submit: what stands around it, then on the task, then in `base`."""
    found = getattr(body, _ATTRIBUTE, None)
    if isinstance(found, Requirements):
        base = found.over(base)
    around = _around.get()
    return base if around is None else around.requirements.over(base)


def _noted(target: Any, requirements: Requirements) -> Any:
    before = getattr(target, _ATTRIBUTE, None)
    if isinstance(before, Requirements):
        requirements = requirements.over(before)
    setattr(target, _ATTRIBUTE, requirements)
    return target


def _copied(body: Any) -> Any:
    if not isinstance(body, types.FunctionType):
        return copy.copy(body)
    copied = types.FunctionType(
        body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__
    )
    copied.__kwdefaults__ = body.__kwdefaults__
    copied.__dict__.update(body.__dict__)
    copied.__qualname__, copied.__module__ = body.__qualname__, body.__module__
    copied.__doc__, copied.__annotations__ = body.__doc__, body.__annotations__
    return copied
