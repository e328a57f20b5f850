"""The example flows fail in the way that they promise, with errors that the rules read."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from flows.bad_setting import bad_setting
from flows.container_job import container_job
from flows.flaky_network import flaky_network
from flows.gpu_oom import OutOfMemoryError, gpu_oom
from flows.host_oom import host_oom
from flows.missing_image import missing_image
from prefect_heteroflow import environment
from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.exceptions_as_data import exception_info

FLOWS = Path(__file__).parents[2] / "flows"
MIB = 1024 * 1024


@pytest.fixture
def in_attempt(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A function that makes this process an attempt."""

    def be(attempt: int, gpu_memory_mb: int | None = None) -> None:
        told = environment.attempt_variables(
            task_id="task",
            attempt=attempt,
            node="node-1",
            resources=Resources(),
            gpu_memory_mb=gpu_memory_mb,
            previous_failure=None,
        )
        for name, value in told.items():
            monkeypatch.setenv(name, value)

    return be


def diagnosis_of(error: BaseException) -> Diagnosis:
    found = diagnose(Evidence(phase="run", exit_code=1, exception=exception_info(error)))
    assert found is not None
    return found


def test_host_oom_fills_at_least_what_it_needs() -> None:
    """The memory is written, so that it counts."""
    assert host_oom.fn(need_mb=100) >= 100


def test_gpu_oom_on_a_too_small_gpu_is_diagnosed_with_what_it_needs(in_attempt) -> None:  # type: ignore[no-untyped-def]
    """The figures in the text add up to `need_gpu_mb`, so that the route needs no second guess."""
    in_attempt(1, gpu_memory_mb=8192)
    with pytest.raises(OutOfMemoryError) as raised:
        gpu_oom.fn(need_gpu_mb=20000)
    found = diagnosis_of(raised.value)
    assert found.failure is FailureClass.GPU_OUT_OF_MEMORY
    assert found.figures is not None
    assert found.figures.needed_bytes == pytest.approx(20000 * MIB, rel=0.01)


def test_gpu_oom_on_a_large_gpu_returns(in_attempt) -> None:  # type: ignore[no-untyped-def]
    """A GPU of the next class is enough."""
    in_attempt(2, gpu_memory_mb=24576)
    assert gpu_oom.fn(need_gpu_mb=20000) == 20000


def test_flaky_network_times_out_in_the_first_attempt(in_attempt) -> None:  # type: ignore[no-untyped-def]
    """A real timeout, which is a transient failure."""
    in_attempt(1)
    with pytest.raises(httpx.ReadTimeout) as raised:
        flaky_network.fn()
    assert diagnosis_of(raised.value).failure is FailureClass.NETWORK_TIMEOUT


def test_flaky_network_answers_in_the_second_attempt(in_attempt) -> None:  # type: ignore[no-untyped-def]
    """The retry succeeds."""
    in_attempt(2)
    assert flaky_network.fn() == "answered in attempt 2"


def test_container_job_without_a_command_explains_how_to_submit_one() -> None:
    """Only a run without a command executes the flow."""
    with pytest.raises(ValueError, match="heteroflow submit --image"):
        container_job.fn()


@pytest.mark.parametrize("flow", [missing_image, bad_setting])
def test_flow_whose_deployment_is_at_fault_returns(flow) -> None:  # type: ignore[no-untyped-def]
    """Once the deployment is corrected, nothing in the flow stands in the way."""
    assert flow.fn()


@pytest.mark.parametrize("path", sorted(FLOWS.glob("*.py")), ids=lambda path: path.name)
def test_every_flow_file_says_what_happens(path: Path) -> None:
    """The docstring of the file is the documentation of the example."""
    assert len(path.read_text().split('"""')[1].split()) > 15
