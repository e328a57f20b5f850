"""The tasks of `conformance_flows`, and bodies that its cases make tasks of.

Bodies leave their traces in files, since they may run in other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.assets import materialize
from prefect.cache_policies import INPUTS, NO_CACHE, TASK_SOURCE
from prefect.context import TaskRunContext
from prefect.states import Completed, Failed


def note(folder: str | Path, line: str) -> int:
    """Append a line to the folder's notes; gives how many equal ones there are now."""
    path = Path(folder, "notes")
    with path.open("a") as file:
        file.write(f"{line}\n")
    return path.read_text().splitlines().count(line)


@task
def add(left: Any, right: Any) -> Any:
    return left + right


@task
def refuse(text: str) -> None:
    raise ValueError(text)


@task
def refuse_plainly(text: str) -> None:
    raise Exception(text)


def names_a_plain_exception(task: Any, task_run: Any, state: Any) -> bool:
    return type(state.data).__name__ == "Exception" and str(state.data) == "text"


@task
def told(error: Any) -> tuple[str, str, bool]:
    return type(error).__name__, str(error), isinstance(error, Exception)


class KeywordError(Exception):
    """Pickle cannot build it anew."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@task
def code_of(errors: list[Any]) -> int:
    (error,) = errors
    return int(error.code)


@task(retries=2)
def succeed_at(folder: str, attempt: int) -> int:
    seen = note(folder, "body")
    if seen < attempt:
        raise RuntimeError(f"attempt {seen}")
    return seen


@task(retries=2, retry_delay_seconds=[0.01, 0.02], retry_jitter_factor=0.1)
def always_fail(folder: str) -> None:
    raise KeyError(f"attempt {note(folder, 'body')}")


def never(task: Any, task_run: Any, state: Any) -> bool:
    return False


def seen_of(task: Any) -> str:
    """What users may read from a task that is handed to them."""
    return f"{task.name} {task.retries} {task.timeout_seconds} {task.retry_delay_seconds}"


def until_the_task_says(task: Any, task_run: Any, state: Any) -> bool:
    note(state.data.args[0], f"asked {seen_of(task)} {task_run.run_count}")
    return bool(task_run.run_count <= task.retries)


@task(
    retries=2, retry_delay_seconds=0.01, timeout_seconds=60, retry_condition_fn=until_the_task_says
)
def fail_in(folder: str) -> None:
    raise RuntimeError(folder)


def only_runtime_errors(task: Any, task_run: Any, state: Any) -> bool:
    return isinstance(state.data, RuntimeError)


@task(retries=3, retry_condition_fn=never)
def fail_without_retry(folder: str) -> None:
    raise RuntimeError(f"attempt {note(folder, 'body')}")


@task(retries=3, retry_condition_fn=only_runtime_errors)
def two_kinds(folder: str) -> None:
    seen = note(folder, "body")
    raise (RuntimeError if seen < 3 else ValueError)(f"attempt {seen}")


@task
async def add_async(left: int, right: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return left + right


@task(retries=1)
async def fail_once_async(folder: str) -> int:
    seen = note(folder, "body")
    if seen == 1:
        raise OSError(2, "No such thing", "name")
    return seen


@task(cache_policy=INPUTS, persist_result=True)
def cached_by_inputs(folder: str, number: int) -> int:
    note(folder, f"body {number}")
    return number + 1


@task(cache_policy=TASK_SOURCE + INPUTS, persist_result=True)
def cached_by_source(folder: str) -> int:
    return note(folder, "body")


def folder_key(context: Any, parameters: dict[str, Any]) -> str:
    return f"{context.task.name}-{parameters['folder']}"


@task(cache_key_fn=folder_key, persist_result=True)
def cached_by_function(folder: str, number: int) -> int:
    note(folder, "body")
    return number


@task(cache_policy=NO_CACHE)
def uncached(folder: str) -> int:
    return note(folder, "body")


@task(timeout_seconds=0.3)
def too_slow() -> None:
    time.sleep(1.0)


@task(timeout_seconds=0.3)
async def too_slow_async() -> None:
    import asyncio

    await asyncio.sleep(30)


@task(timeout_seconds=0.3, retries=1)
def slow_at_first(folder: str) -> int:
    seen = note(folder, "body")
    if seen == 1:
        time.sleep(1.0)
    return seen


@task
def raise_timeout() -> None:
    raise TimeoutError("my own")


@task
def give_failed() -> Any:
    return Failed(message="as it should")


@task(retries=1)
def give_failed_then_value(folder: str) -> Any:
    return 5 if note(folder, "body") == 2 else Failed(message="not yet")


@task
def give_completed() -> Any:
    return Completed(name="Skipped", message="nothing to do", data=3)


@task
def leave_by_exit() -> None:
    raise SystemExit(3)


@task
def interrupt_itself() -> None:
    raise KeyboardInterrupt


@task
def outer(number: int) -> Any:
    first = add.submit(number, 1)
    return add.submit(first, 1).result()


@task
def outer_direct(number: int) -> Any:
    return add(number, 1)


@task
def who_am_i() -> tuple[str, str, list[str], dict[str, Any], bool]:
    context = TaskRunContext.get()
    assert context is not None
    return (
        runtime.task_run.task_name,
        runtime.flow_run.flow_name,
        sorted(runtime.task_run.tags),
        runtime.flow_run.parameters,
        str(context.task_run.id) == runtime.task_run.id,
    )


@task
def options_seen() -> tuple[Any, ...]:
    context = TaskRunContext.get()
    assert context is not None
    seen = context.task
    return seen.name, seen.retries, sorted(seen.tags), runtime.task_run.task_name, seen.description


MISSING = object()


@task
def given(left: int, right: Any = MISSING, *, mode: str = "fast") -> tuple[bool, dict[str, Any]]:
    seen = runtime.task_run.parameters
    return right is MISSING, {**seen, "right": type(seen["right"]).__name__}


@task(log_prints=True)
def speak(text: str) -> None:
    print(f"printed {text}")
    get_run_logger().warning("warned %s", text)


@task
def leave_artifact(text: str) -> bool:
    return create_markdown_artifact(text, key="conformance", description=text) is not None


@materialize("file:///conformance/table")
def write_asset() -> int:
    return 3


@task(task_run_name="named-{number}", tags=["own"])
def named(number: int) -> int:
    return number


@task
def length(value: Any) -> int:
    return len(value)


def hooked(folder: str, body: Callable[[str], Any], **options: Any) -> Any:
    """The body as a task with every hook, each of which leaves a note."""

    def on(event: str) -> Callable[..., None]:
        def hook(task: Any, task_run: Any, state: Any) -> None:
            note(folder, f"{event} {task.name} {state.name} {task_run.run_count}")

        return hook

    return task(  # type: ignore[call-overload]
        body,
        on_completion=[on("completion")],
        on_failure=[on("failure")],
        on_running=[on("running")],
        **options,
    )


def succeed_second_time(folder: str) -> int:
    seen = note(folder, "body")
    if seen == 1:
        raise RuntimeError("first")
    return seen


def fail(folder: str) -> None:
    raise RuntimeError("always")


class Doubling:
    """A body that is no function."""

    __name__ = "Doubling"

    def __call__(self, folder: str, number: int) -> int:
        note(folder, f"doubled {number}")
        return 2 * number


class Tripling(Doubling):
    """Another one."""

    def __call__(self, folder: str, number: int) -> int:
        note(folder, f"tripled {number}")
        return 3 * number


def times(factor: int, folder: str, number: int) -> int:
    note(folder, f"times {factor}")
    return factor * number


def without_source(expression: str) -> Any:
    """A function that stands in no file."""
    found: dict[str, Any] = {}
    exec(f"def calculate(folder, number):\n    return {expression}\n", found)
    return found["calculate"]
