"""Which task gets the next child, and what of it exists before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import allow_failure, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectConcurrentFuture

from prefect_heteroflow import HeteroTaskRunner
from prefect_heteroflow.core.local_capacity import Wish
from prefect_heteroflow.core.resources import Gpu, Node
from prefect_heteroflow.task_runner import children as children_module
from prefect_heteroflow.task_runner.children import Children, LeaseCancelled
from prefect_heteroflow.task_runner.submission_order import SubmissionOrder, holds_futures
from tests.support import runner_tasks, wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

GPU = Gpu(uuid="0", name="declared", memory_mb=8192)


def no_template() -> Any:
    raise AssertionError("no child is to be started")


def one_slot(slots: int = 1) -> Children:
    node = Node(name="here", pool="local", memory_mb=4096, gpus=(GPU,))
    return Children(no_template, node, max_children=slots, cancel_grace_seconds=1.0)


class Line:
    """Threads that wait for their turns, and the order in which these come."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.came: list[int] = []
        self._go_on = threading.Event()
        self._threads: list[threading.Thread] = []

    def join(self, number: int, wish: Wish | None = None) -> None:
        before = len(self._children._waiting) + len(self.came)
        thread = threading.Thread(target=self._wait, args=(number, wish or Wish()))
        thread.start()
        self._threads.append(thread)
        wait_until(
            lambda: len(self._children._waiting) + len(self.came) > before, what="one more in line"
        )

    def _wait(self, number: int, wish: Wish) -> None:
        with self._children.turn(wish, number, max_calls=None):
            self.came.append(number)

    def end(self) -> list[int]:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.came


def test_lowest_number_in_line_is_next() -> None:
    """As the retry of an early task, which keeps its number."""
    children = one_slot()
    line = Line(children)
    with children.turn(Wish(), 1, max_calls=None):
        for number in (5, 3, 2, 4):
            line.join(number)
    assert line.end() == [2, 3, 4, 5]


def test_task_that_waits_for_a_gpu_lets_later_ones_pass() -> None:
    children = one_slot(slots=2)
    line = Line(children)
    with children.turn(Wish(gpu_count=1), 1, max_calls=None):
        line.join(2, Wish(gpu_count=1))
        line.join(3)
        wait_until(lambda: line.came == [3], what="the turn of the one without a GPU")
    assert line.end() == [3, 2]


@pytest.mark.parametrize("how", ["comes", "ends"])
def test_later_task_waits_for_an_earlier_one_that_is_still_to_come(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines take their time; which is done first is chance."""
    monkeypatch.setattr(children_module, "PATIENCE_SECONDS", 60.0)
    children = one_slot()
    line = Line(children)
    first, second = (children.next_number(is_expected=True) for _ in range(2))
    line.join(second)
    assert line.came == []
    if how == "comes":
        line.join(first)
        assert line.end() == [first, second]
    else:
        children.expect_no_more(first)
        assert line.end() == [second]


def test_later_task_waits_only_a_moment_for_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a concurrency limit; and nobody waits for it again."""
    monkeypatch.setattr(children_module, "PATIENCE_SECONDS", 0.05)
    children = one_slot()
    line = Line(children)
    numbers = [children.next_number(is_expected=True) for _ in range(3)]
    line.join(numbers[1])
    assert line.end() == [numbers[1]]
    monkeypatch.setattr(children_module, "PATIENCE_SECONDS", 60.0)
    line.join(numbers[2])
    assert line.end() == numbers[1:]


def test_no_turn_comes_after_a_cancel() -> None:
    children = one_slot()
    children.cancel()
    with pytest.raises(LeaseCancelled), children.turn(Wish(), 1, max_calls=None):
        pytest.fail("it came")


def test_task_that_is_not_expected_is_not_waited_for() -> None:
    order = SubmissionOrder()
    order.next_number(is_expected=False)
    assert order.is_first(order.next_number(is_expected=True))


FUTURE: PrefectConcurrentFuture[Any] = PrefectConcurrentFuture.__new__(PrefectConcurrentFuture)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (FUTURE, True),
        ([FUTURE], True),
        ({"a": FUTURE}, True),
        (allow_failure(FUTURE), True),
        ([1, "a"], False),
        ("a", False),
    ],
)
def test_task_with_a_future_among_its_parameters_first_waits_for_it(
    value: Any, found: bool
) -> None:
    assert holds_futures({"other": 1, "value": value}) is found


@pytest.fixture
def home(server: PrefectServer) -> Iterator[None]:
    """Flows run in this process."""
    with flows_run_here(server):
        yield


def run_flow(body: Callable[[], Any]) -> Any:
    """With one child."""
    return flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))(body)()


@pytest.mark.usefixtures("home")
def test_one_worker_runs_tasks_in_the_order_of_their_submission(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    @task(retries=0)
    def note(number: int) -> None:
        with notes.open("a") as file:
            file.write(f"{number}\n")

    run_flow(lambda: note.map(range(40)).wait())
    assert notes.read_text().split() == [str(number) for number in range(40)]


class Noted:
    """Notes when it is pickled."""

    def __init__(self, notes: Path, number: int) -> None:
        self._notes = notes
        self._number = number

    def __reduce__(self) -> Any:
        note(self._notes, f"packed {self._number}")
        return Noted, (self._notes, self._number)


def note(notes: Path, text: str) -> None:
    with notes.open("a") as file:
        file.write(f"{text}\n")


@pytest.mark.usefixtures("home")
def test_arguments_are_packed_when_a_child_is_free_and_not_before(tmp_path: Path) -> None:
    """Else each of a hundred tasks in line holds a copy of its arguments."""
    notes = tmp_path / "notes"

    @task(retries=0, cache_policy=NO_CACHE)  # a cache key is a pickle too
    def run(number: int, argument: Any) -> None:
        note(notes, f"ran {number}")

    def body() -> None:
        [future.wait() for future in [run.submit(n, Noted(notes, n)) for n in range(5)]]

    run_flow(body)
    seen = list(dict.fromkeys(notes.read_text().splitlines()))
    assert seen == [f"{what} {number}" for number in range(5) for what in ("packed", "ran")]


@pytest.mark.usefixtures("home")
def test_what_cannot_be_pickled_takes_no_child_from_the_next_task() -> None:
    """Neither an argument nor a body; the latter runs at home."""
    lock = threading.Lock()

    @task(retries=0)
    def takes(argument: Any) -> None:
        pytest.fail("it ran")

    @task(retries=0)
    def at_home() -> bool:
        return lock.locked()

    def body() -> list[Any]:
        failed = takes.submit(threading.Lock()).result(raise_on_failure=False)
        home = at_home.submit().result()
        return [type(failed).__name__, home, runner_tasks.square.submit(3).result()]

    assert run_flow(body) == ["TaskNotPortableError", False, 9]


def test_later_task_waits_for_no_other_where_several_run_at_once() -> None:
    children = one_slot(slots=2)
    children.next_number(is_expected=True)
    with children.turn(Wish(), children.next_number(is_expected=True), max_calls=None) as turn:
        assert turn.number == 2
