"""Bodies and the parameters of their flow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow, task
from prefect.runtime import flow_run

from prefect_heteroflow import HeteroTaskRunner, requires
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

MIB = 1 << 20


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    with flows_run_here(server):
        yield


class Data:
    """A large value that Prefect's API does not get."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = bytes(200 * MIB)


@requires(memory_mb=100, max_retries=0)
@task
def seen() -> tuple[str, str]:
    found: dict[str, Any] = flow_run.parameters
    return found["day"], repr(found["data"])


def test_large_parameter_of_the_flow_takes_no_memory_of_its_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not sent, which the log says once; a body that asks for it sees why."""

    @flow(task_runner=HeteroTaskRunner(max_workers=2), validate_parameters=False)
    def large(day: str, data: Data) -> list[tuple[str, str]]:
        return [seen.submit().result() for _ in range(2)]

    with caplog.at_level(logging.INFO):
        found = large("monday", Data())
    assert [day for day, _ in found] == ["monday"] * 2
    assert "'data' of the flow is not sent" in found[0][1]
    said = [record for record in caplog.records if "see no parameter" in record.getMessage()]
    assert len(said) == 1
    assert "'data'" in said[0].getMessage()
