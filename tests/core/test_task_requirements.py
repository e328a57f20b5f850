"""What is said about tasks, and which of the attempts that wait may start."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow import requires
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.local_capacity import Free, Wish, next_grant
from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.core.task_attempts import (
    ErrorType,
    TaskAttempt,
    from_task_row,
    to_task_row,
)
from prefect_heteroflow.core.task_requirements import Requirements, exception_names
from prefect_heteroflow.task_runner.requirements import requirements_of

NOTHING = Requirements()


@pytest.mark.parametrize(
    "values",
    [
        {"memory_mb": 5},
        {"memory_mb": "4096"},
        {"gpu_count": -1},
        {"gpu_memory_mb": 0},
        {"max_retries": -2},
        {"max_calls": 0},
        {"retry_strategy": "retry_somewhere"},
        {"shares_gpu": "yes"},
        {"retry_exceptions": "ValueError"},
        {"retry_exceptions": [int]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_value_out_of_range_is_refused_where_it_is_written(values: dict[str, Any]) -> None:
    """The text names the value and what is allowed."""
    with pytest.raises(ValueError, match=f"{next(iter(values))}.*allowed is"):
        requires(**values)


def test_least_values_are_allowed() -> None:
    """The near misses."""
    requires(memory_mb=6, gpu_count=0, gpu_memory_mb=1, max_retries=-1, max_calls=1)


def test_requirements_around_a_submit_count_before_those_on_the_task() -> None:
    """And those before the runner's; an inner `with` before an outer one."""

    @requires(memory_mb=100, max_calls=1)
    def body() -> None: ...

    base = Requirements(memory_mb=50, max_retries=9)
    with requires(memory_mb=200, gpu_count=1), requires(gpu_count=2):
        found = requirements_of(body, base)
    assert found == Requirements(memory_mb=200, gpu_count=2, max_calls=1, max_retries=9)
    assert requirements_of(body, base).memory_mb == 100


def memory_asked() -> int | None:
    return requirements_of(lambda: None, NOTHING).memory_mb


async def test_one_object_around_two_coroutines_counts_in_each_while_it_is_within() -> None:
    """The first that entered leaves first, not as a stack would have it."""
    shared = requires(memory_mb=700)
    is_within, has_left = asyncio.Event(), asyncio.Event()

    async def first() -> list[int | None]:
        with shared:
            await is_within.wait()
            within = memory_asked()
        has_left.set()
        return [within, memory_asked()]

    async def second() -> list[int | None]:
        with shared:
            is_within.set()
            await has_left.wait()
            within = memory_asked()
        return [within, memory_asked()]

    assert await asyncio.gather(first(), second()) == [[700, None], [700, None]]


def test_one_object_around_two_threads_can_be_left_in_the_order_of_entry() -> None:
    """As a constant of the script would be used."""
    shared = requires(memory_mb=700)
    is_within, may_leave = threading.Event(), threading.Event()

    def other() -> int | None:
        with shared:
            is_within.set()
            assert may_leave.wait(10)
        return memory_asked()

    with ThreadPoolExecutor() as pool:
        with shared:
            left = pool.submit(other)
            assert is_within.wait(10)
        assert memory_asked() is None
        may_leave.set()
        assert left.result(10) is None


def test_one_object_within_itself_counts_until_the_outer_use_ends() -> None:
    shared, larger = requires(memory_mb=700), requires(memory_mb=900)
    with shared, larger:
        with shared:
            assert memory_asked() == 700
        assert memory_asked() == 900
    assert memory_asked() is None


def test_requirements_on_a_task_leave_the_task_that_they_came_from_alone() -> None:
    """`requires(...)(task)` is another task."""
    from prefect import task

    @task
    def plain() -> int:
        return 3

    large = requires(memory_mb=4096)(plain)
    assert requirements_of(large.fn, NOTHING).memory_mb == 4096
    assert requirements_of(large.with_options(retries=1).fn, NOTHING).memory_mb == 4096
    assert requirements_of(plain.fn, NOTHING) == NOTHING
    assert large.fn() == 3


def test_gpu_memory_alone_means_one_gpu() -> None:
    """Near miss: a count of its own counts."""
    assert Requirements(gpu_memory_mb=8192).job_values()["gpu_count"] == 1
    assert Requirements(gpu_memory_mb=8192, gpu_count=2).job_values()["gpu_count"] == 2


def test_types_of_exceptions_become_names() -> None:
    """Types that are defined in a function have no dotted name that anyone could import."""

    class LocalError(Exception): ...

    assert exception_names([ValueError, "KeyError", LocalError]) == (
        "builtins.ValueError",
        "KeyError",
        "LocalError",
    )
    assert exception_names(True) is True


GPUS = tuple(Gpu(uuid=f"gpu-{n}", name="gpu", memory_mb=8192 * (n + 1)) for n in range(3))


def free(**values: Any) -> Free:
    return Free(**{"slots": 4, "memory_mb": 8192, "gpus": GPUS, "shared": {}, **values})


@pytest.mark.parametrize(
    ("waiting", "room", "index", "gpus"),
    [
        ([Wish()], free(), 0, []),
        ([Wish()], free(slots=0), None, []),
        ([Wish(gpu_count=1)], free(), 0, ["gpu-0"]),
        ([Wish(gpu_count=1, gpu_memory_mb=10000)], free(), 0, ["gpu-1"]),
        ([Wish(gpu_count=1)], free(exclusive=frozenset({"gpu-0"})), 0, ["gpu-1"]),
        ([Wish(gpu_count=1)], free(shared={"gpu-0": 1}), 0, ["gpu-1"]),
        (
            [Wish(gpu_count=3, shares_gpu=True)],
            free(shared={"gpu-0": 1}),
            0,
            ["gpu-1", "gpu-2", "gpu-0"],
        ),
        ([Wish(gpu_count=3), Wish()], free(exclusive=frozenset({"gpu-0"})), 1, []),
        ([Wish(gpu_count=3), Wish(gpu_count=1)], free(exclusive=frozenset({"gpu-0"})), None, []),
        ([Wish(reserved_mb=9000), Wish(reserved_mb=10)], free(), None, []),
        ([Wish(reserved_mb=9000), Wish()], free(), 1, []),
    ],
    ids=[
        "plain",
        "no slot",
        "smallest gpu",
        "large enough gpu",
        "taken gpu",
        "shared gpu is not for one that does not share",
        "shares, but rather not",
        "overtaken by one without gpu",
        "not overtaken by one with gpu",
        "not overtaken by one with memory",
        "overtaken by one without memory",
    ],
)
def test_first_in_line_that_fits_starts(
    waiting: list[Wish], room: Free, index: int | None, gpus: list[str]
) -> None:
    """Nobody starves behind a stream of smaller wishes for the same thing."""
    grant = next_grant(waiting, room)
    assert (None if grant is None else grant.index) == index
    assert gpus == [] if grant is None else [gpu.uuid for gpu in grant.gpus] == gpus


@given(
    st.lists(
        st.builds(
            Wish,
            reserved_mb=st.integers(0, 9000),
            gpu_count=st.integers(0, 3),
            gpu_memory_mb=st.none() | st.integers(1, 30000),
            shares_gpu=st.booleans(),
        ),
        max_size=6,
    ),
    st.sets(st.sampled_from([gpu.uuid for gpu in GPUS])),
)
def test_grant_never_takes_what_is_not_there(waiting: list[Wish], taken: set[str]) -> None:
    """For all wishes: enough GPUs, large enough, and none of somebody else."""
    room = free(exclusive=frozenset(taken))
    grant = next_grant(waiting, room)
    if grant is not None:
        wish = waiting[grant.index]
        assert len({gpu.uuid for gpu in grant.gpus}) == wish.gpu_count
        assert all(gpu.memory_mb >= (wish.gpu_memory_mb or 0) for gpu in grant.gpus)
        assert not {gpu.uuid for gpu in grant.gpus} & taken
        assert wish.reserved_mb <= room.memory_mb


def test_row_of_a_task_attempt_reads_back_as_it_was() -> None:
    """The columns of a run's history, and three more."""
    attempt = TaskAttempt(
        task_run_id="id",
        name="train-1",
        row=Attempt(attempt=1, flow_run_id="flow", status=AttemptStatus.FAILED, memory_mb=2048),
        error_type=ErrorType.WORKER_DIED.value,
    )
    assert from_task_row(to_task_row(attempt)) == attempt


@pytest.mark.parametrize("name", ["task_run_id", "name"])
def test_row_without_its_task_run_is_refused(name: str) -> None:
    """The text names what is missing."""
    row = to_task_row(
        TaskAttempt(
            task_run_id="id",
            name="train-1",
            row=Attempt(attempt=1, flow_run_id="flow", status=AttemptStatus.COMPLETED),
        )
    )
    with pytest.raises(ValueError, match=f"{name} None"):
        from_task_row({**row, name: None})
