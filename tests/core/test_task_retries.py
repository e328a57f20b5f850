"""What a task says itself over what the policy decides."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.decide import told_with_own_retries
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.policy import (
    Decision,
    Ending,
    OwnRetries,
    Place,
    Retry,
    RetryPolicy,
    Stop,
)
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.task_retries import is_cramped, policy_of_next
from tests.core.policy_cases import cluster, diagnosis, failed, node, what_follows
from tests.core.policy_cases import retry as retry_of
from tests.core.policy_cases import stop as stop_of


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


def after(
    failure: FailureClass, *, own: OwnRetries | None, history: list[Attempt] | None = None
) -> Decision:
    return what_follows(
        failure,
        cluster(node("node-1", "p", 65536)),
        history=history or [],
        own_retries=own,
        policy=RetryPolicy(max_retries=3 if own is None else own.allowed),
    )


@pytest.mark.parametrize(
    ("delays_seconds", "expected"), [(None, 0.0), ([], 0.0), (7, 7.0), ([1, 5], 1.0)]
)
def test_exception_of_a_body_is_retried_at_once_unless_the_task_has_a_delay(
    delays_seconds: float | list[float] | None, expected: float
) -> None:
    policy = policy_of_next(
        RetryPolicy(), retries=2, delays_seconds=delays_seconds, granted=0, of_body=True
    )
    assert policy.retry_delay == expected


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (OwnRetries(allowed=2, used=0), "; the task's own retries: retry 1 of 2 in 3 s"),
        (OwnRetries(allowed=2, used=1), "; the task's own retries: retry 2 of 2 in 3 s"),
        (OwnRetries(allowed=2, used=2), "; all 2 retries of the task are used"),
        (OwnRetries(allowed=1, used=1), "; the task's only retry is used"),
    ],
)
def test_stop_after_an_exception_is_told_with_what_the_task_says(
    own: OwnRetries, said: str
) -> None:
    stop = stop_of(after(FailureClass.APPLICATION_ERROR, own=None))
    told = told_with_own_retries(stop, diagnosis(FailureClass.APPLICATION_ERROR), own, 3.0)
    assert told.reason == f"ApplicationError (a-rule): Because of this{said}"


def test_retry_of_the_policy_is_told_as_it_is() -> None:
    own = OwnRetries(allowed=2, used=0)
    cause = diagnosis(FailureClass.NETWORK_TIMEOUT)
    assert told_with_own_retries(retry(), cause, own, 3.0) == retry()


@pytest.mark.parametrize(
    ("failure", "allowed", "used", "said"),
    [
        (FailureClass.NODE_LOST, 1, 0, "infrastructure retry 1 of 1 in"),
        (FailureClass.NETWORK_TIMEOUT, 1, 0, ", retry 1 of 1 in"),
        (FailureClass.NETWORK_TIMEOUT, 2, 1, ", retry 2 of 2 in"),
        (FailureClass.NODE_LOST, 9, 0, "infrastructure retry 1 of 3 in"),
    ],
    ids=["a lost node", "a network error", "after a lost node", "near miss: the setting is less"],
)
def test_retry_is_counted_by_what_the_task_says_where_that_is_less(
    failure: FailureClass, allowed: int, used: int, said: str
) -> None:
    history = [failed(n, FailureClass.NODE_LOST) for n in range(1, used + 1)]
    own = OwnRetries(allowed=allowed, used=used)
    assert said in retry_of(after(failure, own=own, history=history)).reason


@pytest.mark.parametrize("failure", [FailureClass.NODE_LOST, FailureClass.NETWORK_TIMEOUT])
@pytest.mark.parametrize(
    ("allowed", "said"),
    [(1, "the task's only retry is used"), (2, "all 2 retries of the task are used")],
)
def test_retries_of_the_task_bound_what_the_policy_would_retry(
    failure: FailureClass, allowed: int, said: str
) -> None:
    """Whatever budget the earlier ones came from."""
    history = [failed(n, FailureClass.NODE_LOST) for n in range(1, allowed + 1)]
    own = OwnRetries(allowed=allowed, used=allowed)
    assert said in stop_of(after(failure, own=own, history=history)).reason


def test_task_that_says_nothing_has_the_retries_of_the_policy() -> None:
    assert "infrastructure retry 1 of 3" in retry_of(after(FailureClass.NODE_LOST, own=None)).reason


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
