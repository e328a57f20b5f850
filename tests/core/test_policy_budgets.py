"""Budgets, delays, and the values that a policy refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prefect_heteroflow.core.attempts import AttemptStatus
from prefect_heteroflow.core.decide import why_no_retry
from prefect_heteroflow.core.failures import Diagnosis
from prefect_heteroflow.core.failures import FailureClass as C
from prefect_heteroflow.core.policy import Ending, RetryPolicy, RetryStrategy, delay_seconds
from prefect_heteroflow.core.resources import Resources
from tests.core.policy_cases import NO, cluster, failed, node, policy, retry, stop, what_follows

BIG = cluster(node("node-1", "p", 2**20, 24576), node("node-2", "p", 2**20, 81920))


def test_delays_are_30_60_120_240_300():
    """The series of the defaults, without jitter and with all of it."""
    delays = [delay_seconds(RetryPolicy(), n, 0.0) for n in range(1, 7)]
    assert delays == [30, 60, 120, 240, 300, 300]
    assert delay_seconds(RetryPolicy(), 1, 1.0) == 35
    assert delay_seconds(RetryPolicy(), 6, 0.5) == 302.5


def test_delay_of_a_very_late_retry_is_the_largest():
    """With max_retries -1 the power would pass what a float holds."""
    assert delay_seconds(RetryPolicy(), 100_000, 0.0) == 300
    assert delay_seconds(RetryPolicy(retry_delay=0), 100_000, 0.0) == 0


@pytest.mark.parametrize(("n", "fraction"), [(0, 0.5), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_delay_refuses_what_has_no_meaning(n, fraction):
    """The first retry is 1 and the fraction lies between 0 and 1."""
    with pytest.raises(ValueError, match=r"first retry is 1|0 to 1"):
        delay_seconds(RetryPolicy(), n, fraction)


def test_decide_refuses_a_fraction_outside_of_0_to_1():
    """A caller's mistake is not a delay."""
    with pytest.raises(ValueError, match="jitter_fraction"):
        what_follows(C.NETWORK_TIMEOUT, BIG, jitter_fraction=1.5)


@pytest.mark.parametrize("failure", [c for c in C if c.group.value == "escalate"])
def test_escalation_delay_holds_for_the_escalate_group_only(failure):
    """It replaces the delay and its jitter."""
    now = policy(escalation_delay=0)
    gpu = Resources(memory_mb=4096, gpu_count=1)
    answer = retry(what_follows(failure, BIG, policy=now, resources=gpu, jitter_fraction=1.0))
    assert answer.delay_seconds == 0
    assert answer.reason.endswith("retry 1 of 3 in 0 s")
    other = retry(what_follows(C.NETWORK_TIMEOUT, BIG, policy=now, jitter_fraction=1.0))
    assert other.delay_seconds == 35


def test_lost_nodes_do_not_use_up_max_retries():
    """Three lost nodes, and the first retry of another cause is still the first."""
    history = [failed(n, C.NODE_LOST) for n in (1, 2, 3)]
    answer = retry(what_follows(C.NETWORK_TIMEOUT, BIG, history=history))
    assert answer.counts_as == "retry"
    assert answer.reason.endswith("retry 1 of 3 in 30 s")


def test_other_causes_do_not_use_up_infrastructure_retries():
    """Three network errors, and a lost node is retried."""
    history = [failed(n, C.NETWORK_TIMEOUT) for n in (1, 2, 3)]
    answer = retry(what_follows(C.PREEMPTED, BIG, history=history))
    assert answer.counts_as == "infrastructure"
    assert answer.reason.endswith("infrastructure retry 1 of 3 in 30 s")
    stop(what_follows(C.NETWORK_TIMEOUT, BIG, history=history))


def test_attempts_that_never_started_count_as_infrastructure():
    """Whatever their class."""
    history = [failed(n, C.CONTAINER_RUNTIME_ERROR, never_started=True) for n in (1, 2)]
    answer = retry(
        what_follows(C.CONTAINER_RUNTIME_ERROR, BIG, history=history, never_started=True)
    )
    assert (answer.counts_as, answer.delay_seconds) == ("infrastructure", 120)


@pytest.mark.parametrize(
    ("failure", "never_started", "ending"),
    [
        (C.NODE_LOST, False, Ending.CRASHED),
        (C.PREEMPTED, True, Ending.CRASHED),
        (C.CONTAINER_RUNTIME_ERROR, True, Ending.FAILED),
    ],
)
def test_spent_infrastructure_budget_ends_by_its_class(failure, never_started, ending):
    """The message names the budget that is spent."""
    history = [failed(n, C.NODE_LOST) for n in (1, 2, 3)]
    end = stop(what_follows(failure, BIG, history=history, never_started=never_started))
    assert end.ending is ending
    assert "all 3 retries of infrastructure_retries are used" in end.reason


def test_minus_one_never_gives_up():
    """Both budgets, after any number of attempts."""
    now = policy(max_retries=-1)
    for failure in (C.NETWORK_TIMEOUT, C.NODE_LOST):
        history = [failed(n, failure) for n in range(1, 2000)]
        answer = retry(what_follows(failure, BIG, policy=now, history=history))
        assert "retry 2000 (no limit) in 300 s" in answer.reason


def test_minus_one_still_stops_at_the_cap():
    """Growth has an end whatever the budget."""
    end = stop(
        what_follows(
            C.CPU_OUT_OF_MEMORY,
            BIG,
            policy=policy(max_retries=-1),
            resources=Resources(memory_mb=16384),
        )
    )
    assert end.ending is Ending.PERMANENT_FAILURE


@pytest.mark.parametrize("failure", list(C))
def test_zero_is_off_for_every_class(failure):
    """As `no_retry`, lost nodes included: attempts = 1 + max_retries."""
    off = stop(what_follows(failure, BIG, policy=policy(max_retries=0), never_started=True))
    none = stop(what_follows(failure, BIG, policy=policy(NO)))
    assert off.ending is none.ending


def test_retries_that_are_off_are_said_before_a_place_that_is_missing():
    """A larger node would not help while retries are off."""
    full = cluster(node("node-1", "p", 4096))
    end = stop(what_follows(C.CPU_OUT_OF_MEMORY, full, policy=policy(max_retries=0)))
    assert end.reason == (
        "CpuOutOfMemory (a-rule): Because of this; retries are off (max_retries 0)"
    )


def test_no_infrastructure_retries_ends_with_the_first_lost_node():
    """0 is none, while other causes are still retried."""
    now = policy(infrastructure_retries=0)
    assert stop(what_follows(C.NODE_LOST, BIG, policy=now)).ending is Ending.CRASHED
    retry(what_follows(C.NETWORK_TIMEOUT, BIG, policy=now))


@pytest.mark.parametrize("status", [s for s in AttemptStatus if s is not AttemptStatus.FAILED])
def test_attempts_that_did_not_fail_use_up_nothing(status):
    """A flow that paused itself three times has lost no retry."""
    history = [failed(n, C.NETWORK_TIMEOUT, status=status) for n in (1, 2, 3)]
    assert "retry 1 of 3" in retry(what_follows(C.NETWORK_TIMEOUT, BIG, history=history)).reason


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_retries": -2}, r"max_retries -2: allowed is a whole number, from -1 to 100000 "),
        ({"max_retries": 100_001}, r"max_retries 100001: allowed is a whole number, from -1 to"),
        ({"infrastructure_retries": 10**18}, r"from -1 to 100000 \(-1 never gives up, 0 is off\)"),
        ({"max_retries": True}, r"max_retries True"),
        ({"max_retries": 1.5}, r"max_retries 1.5"),
        ({"infrastructure_retries": "3"}, r"infrastructure_retries '3'"),
        ({"retry_delay": -1}, r"retry_delay -1: allowed is a number of seconds"),
        ({"retry_delay": math.nan}, r"retry_delay nan"),
        ({"max_retry_delay": math.inf}, r"max_retry_delay inf"),
        ({"retry_jitter": None}, r"retry_jitter None"),
        ({"backoff_multiplier": 0.5}, r"backoff_multiplier 0.5: allowed is a number, from 1"),
        ({"escalation_delay": 1e30}, r"escalation_delay 1e\+30"),
        ({"oom_memory_limit": 5}, r"oom_memory_limit 5: .* from 6"),
        ({"retry_strategy": "elsewhere"}, r"allowed is one of retry_new_node, retry_same_node"),
    ],
)
def test_policy_refuses_values_out_of_range(values: dict[str, Any], text: str):
    """The text names the value and what is allowed."""
    with pytest.raises(ValueError, match=text):
        RetryPolicy(**values)


def test_policy_names_every_bad_value_at_once():
    """Nobody corrects them one by one."""
    with pytest.raises(ValueError, match=r"max_retries -9.*retry_delay -1.*retry_strategy 'x'"):
        RetryPolicy(max_retries=-9, retry_delay=-1, retry_strategy="x")  # type: ignore[arg-type]


def test_policy_takes_the_name_of_a_strategy():
    """As it stands in a setting."""
    strategy: Any = "retry_same_node"
    assert RetryPolicy(retry_strategy=strategy).retry_strategy is RetryStrategy.RETRY_SAME_NODE


@pytest.mark.parametrize(
    ("changes", "verdict", "attempts", "why"),
    [
        ({"max_retries": 1}, "retry", 1, "the only retry of max_retries is used"),
        ({"max_retries": 2}, "retry", 2, "all 2 retries of max_retries are used"),
        ({"max_retries": 0}, "retry", 0, "retries are off (max_retries 0)"),
        ({"max_retries": 2}, "retry", 1, None),
        ({"max_retries": 1}, "stop", 1, None),
        ({"max_retries": 1}, None, 1, None),
    ],
)
def test_exception_that_was_to_be_retried_says_why_it_is_not(changes, verdict, attempts, why):
    """The flow ends by it: no decision of ours would tell."""
    failure = C.APPLICATION_ERROR
    diagnosis = Diagnosis(failure=failure, rule="r", reason="It raised.", verdict=verdict)
    history = [failed(n, failure) for n in range(1, attempts + 1)]
    assert why_no_retry(diagnosis, policy(**changes), history) == why
