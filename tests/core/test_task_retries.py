"""What a task says itself over what the policy decides."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.core.policy import Decision, Ending, Place, Retry, RetryPolicy, Stop
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.task_retries import is_cramped, policy_of_next, within_retries

DIAGNOSIS = Diagnosis(failure=FailureClass.NODE_LOST, rule="r", reason="Killed")


def retry(memory_mb: int = 2048) -> Retry:
    return Retry(
        resources=Resources(memory_mb=memory_mb),
        place=Place(pool="p"),
        delay_seconds=30.0,
        reason="again",
    )


@pytest.mark.parametrize(
    ("retries", "delays_seconds", "granted", "expected"),
    [
        (2, 7, 0, 7.0),
        (2, [1, 5], 1, 5.0),
        (4, [1, 5], 3, 5.0),
        (2, 900, 0, 900.0),
        (2, None, 0, 30.0),
        (2, [], 0, 30.0),
        (0, 7, 0, 30.0),
    ],
    ids=[
        "one for all",
        "the second of two",
        "the last for all that follow",
        "above the policy's largest",
        "says nothing",
        "an empty list",
        "near miss: a delay without retries",
    ],
)
def test_delay_of_the_task_takes_the_place_of_the_policys(
    retries: int, delays_seconds: float | list[float] | None, granted: int, expected: float
) -> None:
    policy = policy_of_next(
        RetryPolicy(), retries=retries, delays_seconds=delays_seconds, granted=granted
    )
    assert policy.retry_delay == expected


@pytest.mark.parametrize(
    ("decision", "retries", "granted", "stops"),
    [
        (retry(), 1, 1, True),
        (retry(), 2, 1, False),
        (retry(), 0, 5, False),
        (Stop(ending=Ending.FAILED, reason="no"), 1, 1, False),
    ],
    ids=["used up", "near miss: one is left", "the task says nothing", "stopped already"],
)
def test_retries_of_the_task_bound_what_the_policy_would_retry(
    decision: Decision, retries: int, granted: int, stops: bool
) -> None:
    found = within_retries(decision, DIAGNOSIS, retries=retries, granted=granted)
    assert (found != decision) is stops


@pytest.mark.parametrize(
    ("decision", "cramped"),
    [
        (retry(3000), True),
        (retry(4096), False),
        (retry(2048), False),
        (Stop(ending=Ending.PERMANENT_FAILURE, reason="no"), True),
        (Stop(ending=Ending.FAILED, reason="no"), False),
    ],
    ids=[
        "it has grown by less than twice",
        "near miss: doubled",
        "it has not grown",
        "nothing fits here",
        "stopped for another reason",
    ],
)
def test_node_is_cramped_where_it_cannot_give_what_is_wanted(
    decision: Decision, cramped: bool
) -> None:
    assert is_cramped(decision, Resources(memory_mb=2048), RetryPolicy()) is cramped
