"""Retry conditions for plain Prefect tasks, without our runner or worker.

```python
from prefect import task
from prefect_heteroflow.conditions import retry_if_transient

@task(retries=3, retry_delay_seconds=30, retry_condition_fn=retry_if_transient)
def download(): ...
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass, FailureGroup
from prefect_heteroflow.exceptions_as_data import exception_info

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

__all__ = ["retry_if", "retry_if_transient"]

RetryCondition = Callable[["Task[..., Any]", "TaskRun", "State[Any]"], bool]


def retry_if_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """True where waiting helps: time-outs, throttling, servers out of order, full disks.

    Memory, lost nodes and the program's own exceptions are no reason to try again in the same
    process.
    """
    found = _diagnosis(state)
    return found is not None and found.failure.group is FailureGroup.TRANSIENT


def retry_if(*classes: FailureClass | str) -> RetryCondition:
    """A condition that is true for these failure classes.

    ```python
    @task(retries=5, retry_condition_fn=retry_if("NetworkTimeout", "DistributedPeerLost"))
    ```

    Raises:
        ValueError: One of `classes` is not the name of a failure class, or none is given.
    """
    if not classes:
        raise ValueError("retry_if needs at least one failure class, such as `NetworkTimeout`")
    known = {member.value for member in FailureClass}
    for name in classes:
        if name not in known:
            names = ", ".join(member.value for member in FailureClass)
            raise ValueError(f"{name!r} is not a failure class. Use one of {names}.")
    wanted = {FailureClass(name) for name in classes}

    def condition(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        found = _diagnosis(state)
        return found is not None and found.failure in wanted

    return condition


def _diagnosis(state: State[Any]) -> Diagnosis | None:
    exception = _exception(state)
    if exception is None:
        if not state.message:
            return None
        return diagnose(Evidence(state_message=state.message))
    return diagnose(Evidence(exception=exception_info(exception)))


def _exception(state: State[Any]) -> BaseException | None:
    data = state.data
    if isinstance(data, BaseException):
        return data
    result = getattr(data, "result", None)
    return result if isinstance(result, BaseException) else None
