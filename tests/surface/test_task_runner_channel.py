"""A body that writes where its child answers ends alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner, WorkerDiedError
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
