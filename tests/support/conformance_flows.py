"""Flows whose behaviour Prefect defines: the same under every task runner.

Each case takes a fresh folder and gives what its flow returned. Bodies leave their traces in files,
since they may run in other processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prefect import allow_failure, get_run_logger, runtime, tags, task, unmapped
from prefect.artifacts import create_markdown_artifact
from prefect.assets import materialize
from prefect.cache_policies import INPUTS, NO_CACHE, TASK_SOURCE
from prefect.context import TaskRunContext
from prefect.states import Completed, Failed
from prefect.transactions import transaction
from prefect.utilities.annotations import quote


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


# ---- the cases: a folder -> what the flow returns ----------------------------------------------


def error_of(future: Any) -> tuple[str, str]:
    found = future.result(raise_on_failure=False)
    return type(found).__name__, str(found)


def states(*futures: Any) -> list[tuple[str, str | None]]:
    for future in futures:
        future.wait()
    return [(future.state.name, future.state.message) for future in futures]


def case_values(folder: str) -> Any:
    futures = [add.submit(1, 2), add.submit("a", "b"), add.submit([1], [None])]
    return [future.result() for future in futures], states(*futures)


def case_exception(folder: str) -> Any:
    future = refuse.submit("bad value")
    return error_of(future), states(future)


def case_plain_exception(folder: str) -> Any:
    """Its class is a base of ours."""
    options: Any = {"retries": 1, "retry_condition_fn": names_a_plain_exception}
    future = refuse_plainly.with_options(**options).submit("text")
    return error_of(future), states(future), told.submit(allow_failure(future)).result()


def case_exceptions_in_arguments(folder: str) -> Any:
    """Of a task of a module, and in the closure of one that is sent by value."""
    caught = KeywordError(code=5)

    @task
    def code_of_caught() -> int:
        return caught.code

    return code_of.submit([KeywordError(code=4)]).result(), code_of_caught.submit().result()


def case_retried_until_it_succeeds(folder: str) -> Any:
    future = succeed_at.submit(folder, 3)
    return future.result(), states(future)


def case_retries_exhausted(folder: str) -> Any:
    future = always_fail.submit(folder)
    return error_of(future), states(future)


def case_retry_condition_refuses(folder: str) -> Any:
    future = fail_without_retry.submit(folder)
    return error_of(future), states(future)


def case_retry_condition_reads_the_exception(folder: str) -> Any:
    future = two_kinds.submit(folder)
    return error_of(future), states(future)


def case_async(folder: str) -> Any:
    futures = add_async.submit(1, 2), fail_once_async.submit(folder)
    return [future.result() for future in futures], states(*futures)


def case_map(folder: str) -> Any:
    return add.map([1, 2, 3], unmapped(10)).result()


def case_default_arguments(folder: str) -> Any:
    """Those of a task of a module, and of one that is sent by value."""
    missing = object()

    @task
    def is_missing(value: Any = missing) -> bool:
        return value is missing

    futures = given.submit(1), given.submit(1, 2, mode="slow"), is_missing.submit()
    return [future.result() for future in futures], is_missing.submit(3).result()


def case_dependencies(folder: str) -> Any:
    first = add.submit(1, 1)
    second = add.submit(first, [1][0])
    third = named.submit(3, wait_for=[second])  # type: ignore[call-overload]
    return third.result(), second.result()


def case_upstream_failed(folder: str) -> Any:
    bad = refuse.submit("upstream")
    blocked = add.submit(bad, 1)
    tolerant = length.submit([allow_failure(bad)])
    return states(bad, blocked), tolerant.result()


def case_cached_by_inputs(folder: str) -> Any:
    futures = []
    for number in (1, 1, 2):
        futures.append(cached_by_inputs.submit(folder, number))
        futures[-1].wait()
    return [future.result() for future in futures], states(*futures)


def case_cached_by_source(folder: str) -> Any:
    first = cached_by_source.submit(folder)
    first.wait()
    again = cached_by_source.submit(folder)
    fresh = cached_by_source.with_options(refresh_cache=True).submit(folder, wait_for=[again])  # type: ignore[call-overload]
    return [future.result() for future in (first, again, fresh)], states(first, again, fresh)


def case_cached_by_function(folder: str) -> Any:
    first = cached_by_function.submit(folder, 1)
    first.wait()
    second = cached_by_function.submit(folder, 2)
    return [first.result(), second.result()], states(first, second)


def case_cached_callables(folder: str) -> Any:
    """Each of them twice: the second one is `Cached` where Prefect knows a key for it."""
    bodies = [
        Doubling(),
        Tripling(),
        partial(times, 3),
        lambda folder, number: note(folder, "lambda"),
        without_source("number + 1"),
        without_source("number + 2"),
    ]
    futures = []
    make: Any = task
    for index, body in enumerate(bodies):
        made = make(body, name=f"body-{index}", cache_policy=TASK_SOURCE, persist_result=True)
        for _ in range(2):
            futures.append(made.submit(folder, 5))
            futures[-1].wait()
    return [future.result() for future in futures], states(*futures)


def case_uncached(folder: str) -> Any:
    return [uncached.submit(folder).result() for _ in range(2)]


def case_timeout(folder: str) -> Any:
    futures = too_slow.submit(), too_slow_async.submit(), slow_at_first.submit(folder)
    return states(*futures)


def case_own_timeout_error(folder: str) -> Any:
    future = raise_timeout.with_options(retries=1).submit()
    return error_of(future), states(future)


def case_returned_states(folder: str) -> Any:
    futures = give_failed.submit(), give_failed_then_value.submit(folder), give_completed.submit()
    return states(*futures)


def case_hooks(folder: str) -> Any:
    good = hooked(folder, succeed_second_time, retries=1).submit(folder)
    good.wait()
    bad = hooked(folder, fail).submit(folder)
    return states(good, bad)


def case_hooks_see_the_task(folder: str) -> Any:
    def hook(task: Any, task_run: Any, state: Any) -> None:
        note(folder, f"{state.name} {seen_of(task)} {task.fn.__name__} {task is made}")

    class Hook:
        def __call__(self, task: Any, task_run: Any, state: Any) -> None:
            hook(task, task_run, state)

    options: Any = {"on_running": [hook], "on_failure": [partial(hook)], "on_completion": [Hook()]}
    make: Any = task
    seen = []
    for body in (succeed_second_time, fail):
        made = make(body, retries=1, timeout_seconds=60, **options)
        seen.append(made.submit(folder))
        seen[-1].wait()
    return states(*seen)


def case_retry_condition_sees_the_task(folder: str) -> Any:
    return states(fail_in.submit(folder))


def case_nested(folder: str) -> Any:
    return outer.submit(1).result(), outer_direct.submit(1).result()


def case_runtime(folder: str) -> Any:
    with tags("around"):
        return who_am_i.submit().result()


def case_logs(folder: str) -> Any:
    return states(speak.submit("hello"))


def case_changed_options(folder: str) -> Any:
    """The same body as tasks that differ, one after the other."""
    options: list[Any] = [{"name": "changed", "retries": 2, "tags": ["more"]}, {}, {"name": "last"}]
    found = [options_seen.with_options(**each).submit().result() for each in options]
    return found, options_seen.submit().result()


def case_artifact(folder: str) -> Any:
    return leave_artifact.submit(folder).result()


def case_asset(folder: str) -> Any:
    return write_asset.submit().result()


def case_names_and_tags(folder: str) -> Any:
    return named.submit(4).result()


def case_quoted(folder: str) -> Any:
    return length.submit(quote([1, 2, 3])).result()


def case_rollback(folder: str) -> Any:
    @task(persist_result=True)
    def write() -> int:
        return note(folder, "written")

    @write.on_rollback
    def undo(transaction: Any) -> None:
        note(folder, "rolled back")

    @write.on_commit
    def keep(transaction: Any) -> None:
        note(folder, "committed")

    write.submit().wait()
    try:
        with transaction():
            write.with_options(refresh_cache=True).submit().wait()
            raise RuntimeError("undo it")
    except RuntimeError as error:
        return str(error)


def case_system_exit(folder: str) -> Any:
    try:
        leave_by_exit.submit().wait()
    except SystemExit as error:
        return error.code


def case_keyboard_interrupt(folder: str) -> Any:
    try:
        interrupt_itself.submit().wait()
    except KeyboardInterrupt:
        return "interrupted"


def case_closure(folder: str) -> Any:
    offset = 40

    @task
    def plus(number: int) -> int:
        return number + offset

    return plus.submit(2).result(), task(lambda number: number * 3).submit(2).result()


CASES = {
    name.removeprefix("case_"): function
    for name, function in sorted(globals().items())
    if name.startswith("case_")
}
