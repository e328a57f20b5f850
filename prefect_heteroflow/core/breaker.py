"""A circuit breaker as a value: what may be restarted, and what waits for a trial or a person.

    CLOSED --more than max_restarts restarts within the window--> OPEN
    OPEN --after the cooldown, or when a person approves a run--> HALF_OPEN with one trial
    HALF_OPEN --trial succeeded--> CLOSED
    HALF_OPEN --trial failed--> OPEN
    HALF_OPEN --no verdict within the trial timeout--> the next who asks is the trial

Times are seconds on one clock that all workers share (Unix time). A holder is the name of one
attempt; asking again for the same holder gives the same answer and counts once, so that a step
that a dying worker left half-way can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from prefect_heteroflow.core.failures import FailureClass, FailureGroup
from prefect_heteroflow.core.ranges import MAX_DELAY_SECONDS, Range

UNLIMITED = -1
MAX_RESTARTS = 50
"""More restarts than this within one window would not fit into what is stored."""

_SECONDS = Range(least=0, most=MAX_DELAY_SECONDS, unit="seconds")

BREAKER_RANGES: MappingProxyType[str, Range] = MappingProxyType(
    {
        "max_restarts": Range(least=UNLIMITED, most=MAX_RESTARTS, whole=True, note="-1 is off"),
        "window_seconds": _SECONDS,
        "cooldown_seconds": _SECONDS,
        "trial_timeout_seconds": _SECONDS,
    }
)
"""What each number of `BreakerPolicy` may be."""


class BreakerStatus(str, Enum):
    """How a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Verdict(str, Enum):
    """How the attempt of a trial ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NONE = "none"
    """Cancelled or never begun: it says nothing about the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a breaker opens, and how it closes again.

    Args:
        max_restarts: Restarts within the window that are let through; one more opens the breaker.
            -1 never opens.
        window_seconds: Length of the window.
        cooldown_seconds: Time after opening until a trial is let through.
        trial_timeout_seconds: A trial that has given no verdict for so long frees its place.

    Raises:
        ValueError: A value is out of its range; the text names the value and the range.
    """

    max_restarts: int = 2
    window_seconds: float = 600.0
    cooldown_seconds: float = 300.0
    trial_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} {value!r}: allowed is {rule.allowed}"
            for name, rule in BREAKER_RANGES.items()
            if not rule.holds(value := getattr(self, name))
        ]
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One restart that was let through."""

    holder: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The one restart that is to show whether the cause is gone."""

    holder: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The state of one breaker; the default is a closed one that has seen nothing."""

    status: BreakerStatus = BreakerStatus.CLOSED
    restarts: tuple[Restart, ...] = ()
    """Those of the window, oldest first; only while it is closed."""
    opened_at: float | None = None
    """When it opened last; `None` while it is closed."""
    reason: str = ""
    """Why it stands as it does, one sentence; empty for one that has seen nothing."""
    trial: Trial | None = None
    """Only while it is half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The restart may go on."""

    reason: str
    is_trial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The restart waits."""

    reason: str
    retry_at: float
    """Asking again before this is in vain, unless a person or a trial's end changes the state."""


Admission = Admitted | Held


def admit(
    breaker: Breaker,
    policy: BreakerPolicy,
    *,
    holder: str,
    now: float,
    waited: bool = False,
) -> tuple[Breaker, Admission]:
    """Whether a restart may go on, and the state after it was asked for.

    Args:
        breaker: How it stands.
        policy: When it opens.
        holder: Name of the attempt that is to be started.
        now: The time.
        waited: It was held before. It was asked for once already, so a breaker that has closed
            meanwhile lets it through without counting it.
    """
    if policy.max_restarts == UNLIMITED:
        return breaker, Admitted(reason="the breaker is off (max_restarts -1)")
    if breaker.status is BreakerStatus.CLOSED:
        return _admit_closed(breaker, policy, holder, now, waited)
    trial, opened_at = breaker.trial, breaker.opened_at or 0.0
    if trial is None:
        ready_at = opened_at + policy.cooldown_seconds
        if now < ready_at:
            return breaker, Held(reason=breaker.reason, retry_at=ready_at)
        return _begin_trial(breaker, holder, now, "the cooldown is over")
    if trial.holder == holder:
        return breaker, _trial_admitted("it is the trial")
    free_at = trial.since + policy.trial_timeout_seconds
    if now < free_at:
        reason = f"{breaker.reason} One trial is under way."
        return breaker, Held(reason=reason, retry_at=free_at)
    why = f"the trial before gave no verdict for {policy.trial_timeout_seconds:g} s"
    return _begin_trial(breaker, holder, now, why)


def _admit_closed(
    breaker: Breaker, policy: BreakerPolicy, holder: str, now: float, waited: bool
) -> tuple[Breaker, Admission]:
    within = tuple(it for it in breaker.restarts if it.at > now - policy.window_seconds)
    known = any(it.holder == holder for it in within)
    if known or waited:
        return breaker, Admitted(reason="the breaker is closed")
    if len(within) < policy.max_restarts:
        count = f"restart {len(within) + 1} of {policy.max_restarts} in {policy.window_seconds:g} s"
        kept = (*within, Restart(holder=holder, at=now))
        return replace(breaker, restarts=kept), Admitted(reason=count)
    reason = (
        f"More than {policy.max_restarts} restarts within {policy.window_seconds:g} s:"
        " the breaker opened."
    )
    opened = Breaker(status=BreakerStatus.OPEN, opened_at=now, reason=reason)
    return opened, Held(reason=reason, retry_at=now + policy.cooldown_seconds)


def _begin_trial(breaker: Breaker, holder: str, now: float, why: str) -> tuple[Breaker, Admission]:
    half_open = replace(
        breaker, status=BreakerStatus.HALF_OPEN, trial=Trial(holder=holder, since=now)
    )
    return half_open, _trial_admitted(why)


def _trial_admitted(why: str) -> Admitted:
    return Admitted(reason=f"as the breaker's trial: {why}", is_trial=True)


def approve(
    breaker: Breaker, policy: BreakerPolicy, *, holder: str, now: float
) -> tuple[Breaker, Admitted]:
    """Let a restart go on because a person said so.

    It is the trial, if no other is under way: its end then closes the breaker or opens it again.
    Otherwise it runs without changing anything.
    """
    if breaker.status is BreakerStatus.CLOSED:
        return breaker, Admitted(reason="approved by a person; the breaker is closed")
    trial = breaker.trial
    if trial is not None and trial.holder == holder:
        return breaker, _trial_admitted("it is the trial")
    if trial is not None and now < trial.since + policy.trial_timeout_seconds:
        return breaker, Admitted(reason="approved by a person, beside the trial under way")
    after, _ = _begin_trial(breaker, holder, now, "")
    return after, _trial_admitted("approved by a person")


def settle(breaker: Breaker, *, holder: str, verdict: Verdict, now: float) -> Breaker:
    """The state after an attempt ended; only the end of the trial changes it.

    A trial without a verdict (cancelled) leaves its place to the next who asks, at once.
    """
    if breaker.trial is None or breaker.trial.holder != holder:
        return breaker
    if verdict is Verdict.SUCCEEDED:
        return Breaker(reason="The trial succeeded: the breaker closed.")
    if verdict is Verdict.NONE:
        return replace(breaker, status=BreakerStatus.OPEN, trial=None)
    return Breaker(
        status=BreakerStatus.OPEN,
        opened_at=now,
        reason="The trial failed: the breaker is open again.",
    )


def withdraw(breaker: Breaker, *, holder: str) -> Breaker:
    """The state as if this holder had not been admitted: another breaker held it back."""
    if breaker.trial is not None and breaker.trial.holder == holder:
        return replace(breaker, status=BreakerStatus.OPEN, trial=None)
    kept = tuple(it for it in breaker.restarts if it.holder != holder)
    return breaker if kept == breaker.restarts else replace(breaker, restarts=kept)


def reset(reason: str) -> Breaker:
    """A closed breaker, because a person said so."""
    return Breaker(reason=reason)


# --- which breakers a retry has to pass ---------------------------------------------------------

_BLAMES_NODE = frozenset(
    {FailureClass.CONTAINER_RUNTIME_ERROR, FailureClass.DISK_PRESSURE}
    | {failure for failure in FailureClass if failure.group is FailureGroup.NODE}
)


def deployment_key(deployment: str, failure: FailureClass, *, job: str | None = None) -> str:
    """Key of the breaker of one deployment and failure class.

    Args:
        deployment: Its id.
        failure: Why the attempt before failed.
        job: Tells jobs apart that share one deployment, as plain jobs do: a digest of image and
            command, for example.
    """
    return ":".join(["deployment", deployment, *([job] if job else []), failure.value])


def node_key(node: str) -> str:
    """Key of a node's breaker."""
    return f"node:{node}"


def retry_keys(
    *,
    deployment: str | None,
    failure: FailureClass,
    failed_node: str | None,
    next_node: str | None,
    same_resources: bool = True,
    job: str | None = None,
) -> tuple[str, ...]:
    """The breakers that a retry has to pass.

    That of its deployment and failure class; that of the node if the failure blames the node and
    the retry goes there again, so one that moves away from a bad node passes. A retry with more
    memory or a larger GPU passes none: it does not start the same thing again, and has a limit of
    its own.
    """
    if not same_resources:
        return ()
    keys = [] if deployment is None else [deployment_key(deployment, failure, job=job)]
    if failure in _BLAMES_NODE and failed_node is not None and failed_node == next_node:
        keys.append(node_key(failed_node))
    return tuple(keys)


def held_reason(held: Iterable[tuple[str, Held]]) -> str:
    """One sentence for several breakers that hold a run."""
    return " ".join(f"{key}: {it.reason}" for key, it in held)
