"""A cancel while the hook of a cleanup runs in its container; without an engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from prefect_heteroflow.attempts.backend import CleanupRequest
from prefect_heteroflow.container_cleanup import clean_up_node
from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.docker_job import HeteroflowJobConfiguration


class Engine:
    """Its container runs until somebody removes it."""

    def __init__(self) -> None:
        self.started, self.removed = threading.Event(), threading.Event()

    def create(self, configuration: HeteroflowJobConfiguration) -> tuple[Any, None]:
        self.started.set()
        return SimpleNamespace(id="c"), None

    def with_container(self, container_id: str, work: Any) -> None:
        assert self.removed.wait(30)

    def remove_all(self, labels: Mapping[str, str]) -> None:
        self.removed.set()


def clean_up_with(engine: Engine, *, cancelled_before: bool = False) -> CleanupReport:
    plan = SimpleNamespace(
        configuration=HeteroflowJobConfiguration(image="job"),
        resources=Resources(),
        flow_run=SimpleNamespace(id=uuid4()),
    )
    request = CleanupRequest(
        plan=cast("Any", plan),
        patterns=(),
        hook="sleep 600",
        hook_timeout_seconds=60.0,
        gpu_free_mb={},
        is_cancelled=lambda: cancelled_before or engine.started.is_set(),
    )
    return clean_up_node(
        request, node_name="a", engine=cast("Any", engine), create=cast("Any", engine.create)
    )


def test_cancel_removes_the_container_of_the_hook() -> None:
    report = clean_up_with(Engine())
    assert report.text() == "Cleaned up: the cleanup hook was ended: the run was cancelled."


def test_hook_of_a_run_that_is_cancelled_already_gets_no_container() -> None:
    engine = Engine()
    assert clean_up_with(engine, cancelled_before=True).text() == ""
    assert not engine.started.is_set()
