"""The circuit breaker: each rule by example, and what holds for every sequence of events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_heteroflow.core.breaker import (
    Admission,
    Admitted,
    Breaker,
    BreakerPolicy,
    BreakerStatus,
    Held,
    Trial,
    Verdict,
    admit,
    approve,
    deployment_key,
    reset,
    retry_keys,
    settle,
    withdraw,
)
from prefect_heteroflow.core.failures import FailureClass

NOW = 1_000_000.0
POLICY = BreakerPolicy()
OPEN = Breaker(status=BreakerStatus.OPEN, opened_at=NOW, reason="Too many restarts.")
HALF_OPEN = replace(
    OPEN, status=BreakerStatus.HALF_OPEN, trial=Trial(holder="trial", since=NOW + 300)
)


def asked(breaker: Breaker, *holders: str, at: float = NOW) -> tuple[Breaker, list[Admission]]:
    answers = []
    for holder in holders:
        breaker, answer = admit(breaker, POLICY, holder=holder, now=at)
        answers.append(answer)
    return breaker, answers


def test_restarts_up_to_the_count_are_let_through() -> None:
    breaker, answers = asked(Breaker(), "a", "b")
    assert [type(it) for it in answers] == [Admitted, Admitted]
    assert breaker.status is BreakerStatus.CLOSED


def test_one_restart_more_opens_it_and_is_held_with_the_reason() -> None:
    breaker, answers = asked(Breaker(), "a", "b", "c")
    reason = "More than 2 restarts within 600 s: the breaker opened."
    assert answers[-1] == Held(reason=reason, retry_at=NOW + 300)
    assert (breaker.status, breaker.opened_at) == (BreakerStatus.OPEN, NOW)


def test_restart_that_left_the_window_does_not_count() -> None:
    """The near miss: one second earlier it still does."""
    breaker, _ = asked(Breaker(), "a", "b")
    assert isinstance(asked(breaker, "c", at=NOW + 599)[1][0], Held)
    assert isinstance(asked(breaker, "c", at=NOW + 600)[1][0], Admitted)


def test_same_attempt_asked_for_twice_counts_once() -> None:
    """A worker that died after asking is followed by one that asks again."""
    breaker, answers = asked(Breaker(), "a", "a", "a", "b")
    assert all(isinstance(it, Admitted) for it in answers)
    assert len(breaker.restarts) == 2


@pytest.mark.parametrize(
    ("seconds", "expected"), [(299, Held), (300, Admitted)], ids=["before", "after"]
)
def test_cooldown_lets_one_trial_through(seconds: float, expected: type) -> None:
    breaker, answers = asked(OPEN, "a", "b", at=NOW + seconds)
    assert isinstance(answers[0], expected)
    assert isinstance(answers[1], Held)
    assert (breaker.trial is not None) is (expected is Admitted)


def test_trial_without_a_verdict_frees_its_place() -> None:
    assert isinstance(asked(HALF_OPEN, "b", at=NOW + 899)[1][0], Held)
    breaker, answers = asked(HALF_OPEN, "b", at=NOW + 900)
    assert answers[0] == Admitted(
        reason="as the breaker's trial: the trial before gave no verdict for 600 s", is_trial=True
    )
    assert breaker.trial == Trial(holder="b", since=NOW + 900)


SETTLED = [
    ("trial", Verdict.SUCCEEDED, BreakerStatus.CLOSED, None),
    ("trial", Verdict.FAILED, BreakerStatus.OPEN, NOW + 400),
    ("trial", Verdict.NONE, BreakerStatus.OPEN, NOW),
    ("another", Verdict.SUCCEEDED, BreakerStatus.HALF_OPEN, NOW),
    ("another", Verdict.FAILED, BreakerStatus.HALF_OPEN, NOW),
]


@pytest.mark.parametrize(
    ("holder", "verdict", "status", "opened_at"),
    SETTLED,
    ids=[f"{holder}-{verdict.value}" for holder, verdict, _, _ in SETTLED],
)
def test_end_of_the_trial_and_of_nothing_else_decides(
    holder: str, verdict: Verdict, status: BreakerStatus, opened_at: float | None
) -> None:
    after = settle(HALF_OPEN, holder=holder, verdict=verdict, now=NOW + 400)
    assert (after.status, after.opened_at) == (status, opened_at)


def test_approval_makes_the_run_the_trial_before_the_cooldown_is_over() -> None:
    after, answer = approve(OPEN, POLICY, holder="a", now=NOW + 1)
    assert answer.is_trial
    assert after.trial == Trial(holder="a", since=NOW + 1)


def test_approval_beside_a_trial_starts_no_second_trial() -> None:
    after, answer = approve(HALF_OPEN, POLICY, holder="a", now=NOW + 301)
    assert (after, answer.is_trial) == (HALF_OPEN, False)


def test_run_that_waited_is_not_counted_once_the_breaker_has_closed() -> None:
    """A crowd that was held must not open it again by going on."""
    breaker = reset("by hand")
    for holder in "abcdefg":
        breaker, answer = admit(breaker, POLICY, holder=holder, now=NOW, waited=True)
        assert isinstance(answer, Admitted)
    assert breaker == reset("by hand")


def test_withdrawn_restart_leaves_the_state_of_before() -> None:
    counted, _ = asked(Breaker(), "a")
    assert withdraw(counted, holder="a") == Breaker()
    trial, _ = asked(OPEN, "a", at=NOW + 300)
    assert withdraw(trial, holder="a") == OPEN
    assert withdraw(HALF_OPEN, holder="another") == HALF_OPEN


def test_breaker_that_is_off_holds_nothing() -> None:
    policy = BreakerPolicy(max_restarts=-1)
    assert isinstance(admit(OPEN, policy, holder="a", now=NOW)[1], Admitted)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_restarts": -2}, "max_restarts -2: allowed is a whole number, from -1 to 50"),
        ({"window_seconds": -1}, "window_seconds -1: allowed is a number of seconds, from 0"),
        ({"cooldown_seconds": float("nan")}, "cooldown_seconds nan"),
        ({"trial_timeout_seconds": -0.5}, "trial_timeout_seconds -0.5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_policy_refuses_what_is_out_of_range(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        BreakerPolicy(**values)  # type: ignore[arg-type]


KEYS = [
    (FailureClass.PROCESS_CRASHED, "node-1", ("deployment:d:ProcessCrashed", "node:node-1")),
    (FailureClass.PROCESS_CRASHED, "node-2", ("deployment:d:ProcessCrashed",)),
    (FailureClass.PROCESS_CRASHED, None, ("deployment:d:ProcessCrashed",)),
    (FailureClass.DISK_PRESSURE, "node-1", ("deployment:d:DiskPressure", "node:node-1")),
    (FailureClass.NETWORK_TIMEOUT, "node-1", ("deployment:d:NetworkTimeout",)),
]


@pytest.mark.parametrize(
    ("failure", "next_node", "keys"), KEYS, ids=[f"{it[0].value}-to-{it[1]}" for it in KEYS]
)
def test_retry_passes_the_breaker_of_a_node_only_if_it_goes_back_to_it(
    failure: FailureClass, next_node: str | None, keys: tuple[str, ...]
) -> None:
    found = retry_keys(deployment="d", failure=failure, failed_node="node-1", next_node=next_node)
    assert found == keys


def test_retry_that_grows_passes_no_breaker() -> None:
    """2048, 4096, 8192, 16384 MB within minutes is no crash loop."""
    keys = retry_keys(
        deployment="d",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        failed_node="node-1",
        next_node="node-1",
        same_resources=False,
    )
    assert keys == ()


def test_jobs_of_one_shared_deployment_have_breakers_of_their_own() -> None:
    one, other = (
        deployment_key("d", FailureClass.UNKNOWN_ERROR, job=job) for job in ("image-a", "image-b")
    )
    assert one != other


# ---- what holds for every sequence of events ----------------------------------------------------

policies = st.builds(
    BreakerPolicy,
    max_restarts=st.integers(0, 3),
    window_seconds=st.sampled_from([0.0, 1.0, 60.0, 600.0]),
    cooldown_seconds=st.sampled_from([0.0, 1.0, 60.0, 600.0]),
    trial_timeout_seconds=st.sampled_from([0.0, 1.0, 60.0, 600.0]),
)
holders = st.sampled_from([f"attempt-{number}" for number in range(5)])
steps = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "waited", "approve", "withdraw", "reset"])
        | st.sampled_from(Verdict),
        holders,
        st.sampled_from([0.0, 0.5, 1.0, 59.0, 60.0, 599.0, 600.0]),
    ),
    # Short lists, which Hypothesis prefers, seldom get as far as a trial.
    min_size=12,
    max_size=40,
)


@dataclass
class World:
    """What an observer notes who sees only questions and answers."""

    policy: BreakerPolicy
    breaker: Breaker = field(default_factory=Breaker)
    now: float = NOW
    trials: dict[str, float] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)

    def play(self, event: str | Verdict, holder: str) -> None:
        if event in ("admit", "waited"):
            self.ask(holder, waited=event == "waited")
        elif event == "approve":
            self.breaker, answer = approve(self.breaker, self.policy, holder=holder, now=self.now)
            self.note(holder, answer)
        elif isinstance(event, Verdict):
            self.breaker = settle(self.breaker, holder=holder, verdict=event, now=self.now)
            self.trials.pop(holder, None)
        elif event == "withdraw":
            self.breaker = withdraw(self.breaker, holder=holder)
            self.trials.pop(holder, None)
            self.counted.pop(holder, None)
        else:
            self.breaker = reset("by hand")
            self.trials.clear()
            self.counted.clear()

    def ask(self, holder: str, *, waited: bool) -> None:
        before = self.breaker
        self.breaker, answer = admit(
            before, self.policy, holder=holder, now=self.now, waited=waited
        )
        closed = before.status is BreakerStatus.CLOSED
        within = [at for at in self.counted.values() if at > self.now - self.policy.window_seconds]
        if closed and self.breaker.status is not BreakerStatus.CLOSED:
            assert len(within) == self.policy.max_restarts
            self.counted.clear()
        is_new = self.counted.get(holder, -1.0) <= self.now - self.policy.window_seconds
        if closed and isinstance(answer, Admitted) and not waited and is_new:
            assert len(within) < self.policy.max_restarts
            self.counted[holder] = self.now
        self.note(holder, answer)

    def note(self, holder: str, answer: Admission) -> None:
        if isinstance(answer, Admitted) and answer.is_trial:
            self.trials.setdefault(holder, self.now)
            if self.breaker.trial is not None:
                self.trials[holder] = self.breaker.trial.since

    def live_trials(self) -> list[str]:
        timeout = self.policy.trial_timeout_seconds
        return [holder for holder, since in self.trials.items() if self.now < since + timeout]


@settings(max_examples=250)
@given(policy=policies, sequence=steps)
def test_there_are_never_two_trials_at_once_and_it_never_opens_without_the_count(
    policy: BreakerPolicy, sequence: list[tuple[str | Verdict, str, float]]
) -> None:
    world = World(policy)
    for event, holder, seconds in sequence:
        world.now += seconds
        world.play(event, holder)
        assert len(world.live_trials()) <= 1


@settings(max_examples=250)
@given(policy=policies, sequence=steps, holder=holders)
def test_whoever_is_held_is_let_through_at_the_time_that_the_answer_names(
    policy: BreakerPolicy, sequence: list[tuple[str | Verdict, str, float]], holder: str
) -> None:
    """So it is never locked for ever: nothing else has to happen for it."""
    world = World(policy)
    for event, other, seconds in sequence:
        world.now += seconds
        world.play(event, other)
    breaker, answer = admit(world.breaker, policy, holder=holder, now=world.now)
    if isinstance(answer, Held):
        _, later = admit(breaker, policy, holder=holder, now=answer.retry_at)
        assert isinstance(later, Admitted)


@settings(max_examples=150)
@given(policy=policies, sequence=steps, holder=holders)
def test_asking_again_for_the_same_attempt_changes_nothing(
    policy: BreakerPolicy, sequence: list[tuple[str | Verdict, str, float]], holder: str
) -> None:
    world = World(replace(policy, window_seconds=600.0, trial_timeout_seconds=600.0))
    for event, other, seconds in sequence:
        world.now += seconds
        world.play(event, other)
    once, first = admit(world.breaker, world.policy, holder=holder, now=world.now)
    if isinstance(first, Admitted):
        again, second = admit(once, world.policy, holder=holder, now=world.now)
        assert again == once
        assert isinstance(second, Admitted)
