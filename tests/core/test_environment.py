"""What goes into an attempt and what comes back is the same on both sides."""

from __future__ import annotations

import pytest

from prefect_heteroflow import environment
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, MemoryFigures
from prefect_heteroflow.core.policy import RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Resources

CONTEXT = environment.AttemptContext(
    given_delays={"retry_delay": 2.0},
    policy=RetryPolicy(retry_strategy=RetryStrategy.RETRY_SAME_NODE, max_retries=-1),
    resources=Resources(memory_mb=4096, shm_mb=128, gpu_count=2, gpu_memory_mb=8192),
    pool="gpu-8gb",
    node="node-a",
    history=(
        Attempt(
            attempt=1,
            flow_run_id="0f",
            status=AttemptStatus.FAILED,
            failure="CpuOutOfMemory",
            memory_mb=2048,
        ),
    ),
    gpu_memory_mb=8192,
    containers=False,
    retry_on=("Checkpoint not found", {"pattern": "x", "class": "NodeLost"}),
    stop_on=("/Assertion.*/",),
    retry_exceptions=("KeyError",),
)


def test_context_survives_its_file() -> None:
    assert environment.AttemptContext.from_json(CONTEXT.to_json()) == CONTEXT


@pytest.mark.parametrize("value", [True, False])
def test_retry_exceptions_may_be_a_bool(value: bool) -> None:
    context = environment.AttemptContext(
        policy=RetryPolicy(), resources=Resources(), pool="p", node="n", retry_exceptions=value
    )
    assert environment.AttemptContext.from_json(context.to_json()).retry_exceptions is value


def test_report_survives_its_file() -> None:
    report = environment.EngineReport(
        diagnosis=Diagnosis(
            failure=FailureClass.GPU_OUT_OF_MEMORY,
            rule="torch",
            reason="why",
            figures=MemoryFigures(requested_bytes=1, total_bytes=2),
            runner_up=FailureClass.NODE_LOST,
        ),
        aborted=True,
        state_message="Flow run encountered an exception",
    )
    assert environment.report_from_json(environment.report_to_json(report)) == report


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"diagnosis": 3}', '{"unknown": 1}', '{"diagnosis": {"failure": "Nope"}}'],
)
def test_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"engine report|Nope"):
        environment.report_from_json(text)


def test_unknown_values_are_left_out_of_the_environment() -> None:
    variables = environment.attempt_variables(
        task_id="t",
        attempt=2,
        node="n",
        resources=Resources(memory_mb=4096),
        gpu_memory_mb=None,
        previous_failure=None,
    )
    assert variables == {
        "HETEROFLOW_TASK_ID": "t",
        "HETEROFLOW_ATTEMPT": "2",
        "HETEROFLOW_NODE": "n",
        "HETEROFLOW_MEMORY_MB": "4096",
    }
