"""What a person reads about an attempt says each thing once."""

from __future__ import annotations

import dataclasses

import pytest

from prefect_heteroflow.core.attempts import Attempt, to_markdown
from prefect_heteroflow.core.endings import message_with_line, what_followed
from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.core.policy import RetryStrategy
from tests.core.policy_cases import cluster, diagnosis, failed, node, policy, what_follows

C = FailureClass
BIG = cluster(node("node-1", "p", 65536, 24576), node("node-2", "p", 65536, 81920))
REASON = diagnosis(C.UNKNOWN_ERROR).reason


def row(failure: FailureClass, decision: str) -> Attempt:
    return failed(1, failure, rule="a-rule", reason=REASON, decision=decision)


@pytest.mark.parametrize("retries", [3, 1, 0])
@pytest.mark.parametrize("strategy", list(RetryStrategy))
@pytest.mark.parametrize("failure", list(C))
def test_decision_beside_class_and_reason_repeats_neither(
    failure: FailureClass, strategy: RetryStrategy, retries: int
) -> None:
    """They stand in columns of their own; what is left is never empty."""
    before = [failed(1, C.UNKNOWN_ERROR)]
    rules = policy(strategy, max_retries=retries)
    shown = what_followed(
        row(failure, what_follows(failure, BIG, policy=rules, history=before).reason)
    )
    assert shown
    for said in (failure.value, "a-rule", REASON.rstrip(".")):
        assert said not in shown


@pytest.mark.parametrize(
    ("failure", "more", "shown"),
    [
        (
            C.CPU_OUT_OF_MEMORY,
            {},
            "memory 4096 -> 8192 MB on node-1 (same node, it fits), retry 1 of 3 in 30 s",
        ),
        (C.NETWORK_TIMEOUT, {}, "again on node-1 (same node), retry 1 of 3 in 30 s"),
        (C.IMAGE_NOT_FOUND, {}, "not retried, it would fail again"),
        (C.NETWORK_TIMEOUT, {"verdict": "stop"}, "not retried, as the rule wants it"),
        (C.NETWORK_TIMEOUT, {"policy": policy(max_retries=0)}, "retries are off (max_retries 0)"),
    ],
    ids=["cpu oom", "transient", "permanent", "a rule of the user", "off"],
)
def test_what_followed_is_the_decision_alone(failure, more, shown):
    """One short clause."""
    assert what_followed(row(failure, what_follows(failure, BIG, **more).reason)) == shown


def test_end_that_the_flow_reported_repeats_nothing() -> None:
    """Its message holds the decision of the engine entry, with all of its parts."""
    decided = what_follows(C.IMAGE_NOT_FOUND, BIG).reason
    assert what_followed(row(C.IMAGE_NOT_FOUND, f"Stopped: {decided}")) == (
        "not retried, it would fail again"
    )


@pytest.mark.parametrize(
    ("decision", "shown"),
    [
        (None, None),
        ("Cancelled by a user; nothing is retried.", "Cancelled by a user; nothing is retried."),
        ("UnknownError (other-rule): again", "UnknownError (other-rule): again"),
        (REASON, REASON),
    ],
    ids=["none", "no head", "head of another rule", "nothing but the reason"],
)
def test_other_text_is_shown_as_it_is(decision: str | None, shown: str | None) -> None:
    """Near misses: only what the row says already is taken away."""
    attempt = failed(1, C.UNKNOWN_ERROR, rule="a-rule", reason=REASON, decision=decision)
    assert what_followed(attempt) == shown


def test_page_says_the_reason_once() -> None:
    """Under `what happened`, not again under `then`."""
    attempt = row(C.IMAGE_NOT_FOUND, what_follows(C.IMAGE_NOT_FOUND, BIG).reason)
    assert to_markdown([attempt]).count("Because of this") == 1
    assert "| not retried, it would fail again |" in to_markdown([attempt])


@pytest.mark.parametrize(
    ("line", "tail"),
    [("it is gone", ". It shows in: it is gone"), ("Because of this", ""), (None, "")],
    ids=["another line", "a line that stands in the reason", "no line"],
)
def test_message_ends_with_the_line_unless_it_says_so_already(line: str | None, tail: str) -> None:
    """The state's message stands alone: class, rule, reason, decision and line."""
    seen: Diagnosis = dataclasses.replace(diagnosis(C.IMAGE_NOT_FOUND), line=line)
    decided = what_follows(C.IMAGE_NOT_FOUND, BIG).reason
    assert message_with_line(decided, seen) == (
        "ImageNotFound (a-rule): Because of this; not retried, it would fail again" + tail
    )
