"""Flows whose behaviour Prefect defines: the same under every task runner.

Each case takes a fresh folder and gives what its flow returned.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import allow_failure, tags, task, unmapped
from prefect.cache_policies import TASK_SOURCE
from prefect.transactions import transaction
from prefect.utilities.annotations import quote

from tests.support.conformance_tasks import (
    Doubling,
    KeywordError,
    Tripling,
    add,
    add_async,
    always_fail,
    cached_by_function,
    cached_by_inputs,
    cached_by_source,
    code_of,
    fail,
    fail_in,
    fail_once_async,
    fail_without_retry,
    give_completed,
    give_failed,
    give_failed_then_value,
    given,
    hooked,
    interrupt_itself,
    leave_artifact,
    leave_by_exit,
    length,
    named,
    names_a_plain_exception,
    note,
    options_seen,
    outer,
    outer_direct,
    raise_timeout,
    refuse,
    refuse_plainly,
    seen_of,
    slow_at_first,
    speak,
    succeed_at,
    succeed_second_time,
    times,
    told,
    too_slow,
    too_slow_async,
    two_kinds,
    uncached,
    who_am_i,
    without_source,
    write_asset,
)


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
