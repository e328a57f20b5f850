"""What passes between flow and child: foreign bytes, large ones, and calls that nobody reads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner, WorkerDiedError
from prefect_heteroflow.task_runner import local_attempts
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    """Flows run in this process."""
    with flows_run_here(server):
        yield


@pytest.mark.parametrize("garbage", [b"garbage", b"\0\0\0\5", b"x"])
def test_body_that_writes_into_foreign_descriptors_and_goes_on_is_a_worker_died_error(
    garbage: bytes,
) -> None:
    """At once, whatever the garbage would be as a length; and the next task runs."""

    @task(retries=0)
    def write_everywhere() -> None:
        for descriptor in range(3, 40):
            try:
                os.write(descriptor, garbage)
            except OSError:
                continue
        time.sleep(600)

    def body() -> tuple[object, int]:
        error = write_everywhere.submit().result(raise_on_failure=False)
        return error, runner_tasks.square.submit(3).result()

    error, nine = flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))(body)()
    assert isinstance(error, WorkerDiedError)
    assert "wrote into the file descriptor" in str(error)
    assert nine == 9


def test_large_value_and_argument_pass_through_the_channel_whole() -> None:
    @task
    def doubled(data: bytes) -> bytes:
        return data * 2

    data = os.urandom(1 << 20)
    assert flow(task_runner=HeteroTaskRunner())(lambda: doubled.submit(data).result())() == data * 2


def results_when_the_child_dies(
    monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool, times: int
) -> list[Any]:
    """Process ids of two tasks, or errors; between both, the idle child is killed.

    Args:
        monkeypatch: Pytest's.
        is_stopped: It is killed with the call in its connection, else before the call is sent.
        times: So many children die like that.
    """
    killed: list[int] = []
    send = local_attempts._send

    def kill(child: Any, number: int) -> None:
        os.kill(child.process.pid, number)
        if number == signal.SIGKILL:
            assert child.process.ended.wait(10)
            killed.append(child.process.pid)

    def send_around_the_kill(child: Any, message: Any) -> None:
        if not first or len(killed) == times:
            send(child, message)
        elif is_stopped:
            kill(child, signal.SIGSTOP)
            send(child, message)
            kill(child, signal.SIGKILL)
        else:
            kill(child, signal.SIGKILL)
            send(child, message)

    monkeypatch.setattr(local_attempts, "_send", send_around_the_kill)
    first: list[Any] = []

    def body() -> list[Any]:
        first.append(runner_tasks.process_id.submit().result())
        second = runner_tasks.process_id.with_options(retries=0).submit()  # type: ignore[call-overload]
        return [*first, second.result(raise_on_failure=False)]

    found: list[Any] = flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))(body)()
    assert len(killed) == times
    return found


@pytest.mark.parametrize("is_stopped", [False, True], ids=["before", "unread"])
def test_idle_child_that_dies_before_it_has_read_its_call_costs_no_attempt(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body has not begun, so it runs in another child."""
    first, second = results_when_the_child_dies(monkeypatch, is_stopped=is_stopped, times=1)
    assert isinstance(second, int)
    assert second != first


def test_second_child_that_dies_like_that_is_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Perhaps it is the call that kills them: its arguments may be too large for their limit."""
    _, error = results_when_the_child_dies(monkeypatch, is_stopped=False, times=2)
    assert isinstance(error, WorkerDiedError)
