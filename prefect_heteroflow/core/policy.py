"""The retry policy and the decision that follows a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from prefect_heteroflow.core.ranges import (
    MAX_ATTEMPTS,
    MAX_DELAY_SECONDS,
    MAX_MEMORY_MB,
    MIN_MEMORY_MB,
    Range,
)
from prefect_heteroflow.core.resources import Resources

UNLIMITED = -1
"""Value of a budget that never ends."""

BudgetName = Literal["retry", "infrastructure"]

_RETRIES = Range(least=UNLIMITED, most=MAX_ATTEMPTS, whole=True, note="-1 never gives up, 0 is off")
_DELAY = Range(least=0, most=MAX_DELAY_SECONDS, unit="seconds")

POLICY_RANGES: MappingProxyType[str, Range] = MappingProxyType(
    {
        "max_retries": _RETRIES,
        "infrastructure_retries": _RETRIES,
        "retry_delay": _DELAY,
        "backoff_multiplier": Range(least=1, most=1000),
        "max_retry_delay": _DELAY,
        "retry_jitter": _DELAY,
        "escalation_delay": Range(least=0, most=MAX_DELAY_SECONDS, unit="seconds", optional=True),
        "oom_memory_limit": Range(least=MIN_MEMORY_MB, most=MAX_MEMORY_MB, whole=True, unit="MiB"),
    }
)
"""What each number of `RetryPolicy` may be."""


class RetryStrategy(str, Enum):
    """Where a retry may run."""

    RETRY_NEW_NODE = "retry_new_node"
    RETRY_SAME_NODE = "retry_same_node"
    NO_RETRY = "no_retry"


STRATEGIES = "one of " + ", ".join(strategy.value for strategy in RetryStrategy)
"""What `retry_strategy` may be, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how late, how large and where a failed attempt is tried again.

    The delay before retry `n` (1 for the first) is
    `min(retry_delay * backoff_multiplier ** (n - 1), max_retry_delay) + U(0, retry_jitter)`
    seconds: 30, 60, 120, 240, 300, ... with the defaults.

    Args:
        retry_strategy: Where a retry may run.
        max_retries: Retries after the first attempt; -1 never gives up, 0 is off. Both are words
            about the whole task: they hold for the infrastructure budget too.
        infrastructure_retries: Separate budget for attempts that never started and for lost or
            preempted nodes; they do not use up `max_retries`. -1 never ends, 0 is none.
        retry_delay: Seconds before the first retry.
        backoff_multiplier: Factor from one delay to the next, at least 1.
        max_retry_delay: Largest delay in seconds, jitter not included.
        retry_jitter: Largest random addition in seconds.
        escalation_delay: Seconds before a retry of the escalate group; `None` means the same
            delay as any other retry.
        oom_memory_limit: Largest `memory_mb` that growth may reach, MiB.

    Raises:
        ValueError: A value is out of its range; the text names the value, the range and the fix.
    """

    retry_strategy: RetryStrategy = RetryStrategy.RETRY_NEW_NODE
    max_retries: int = 3
    infrastructure_retries: int = 3
    retry_delay: float = 30.0
    backoff_multiplier: float = 2.0
    max_retry_delay: float = 300.0
    retry_jitter: float = 5.0
    escalation_delay: float | None = None
    oom_memory_limit: int = 16384

    def __post_init__(self) -> None:
        problems = [
            f"{name} {value!r}: allowed is {rule.allowed}"
            for name, rule in POLICY_RANGES.items()
            if not rule.holds(value := getattr(self, name))
        ]
        try:
            object.__setattr__(self, "retry_strategy", RetryStrategy(self.retry_strategy))
        except ValueError:
            problems.append(f"retry_strategy {self.retry_strategy!r}: allowed is {STRATEGIES}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRetries:
    """What a task says itself: it bounds all of its retries, whatever budget they come from."""

    allowed: int
    """1 or more."""
    used: int
    """Retries that it has had."""

    @property
    def spent_text(self) -> str:
        """That there are no more, for people."""
        if self.allowed == 1:
            return "the task's only retry is used"
        return f"all {self.allowed} retries of the task are used"

    @property
    def next_text(self) -> str:
        """Which retry comes next, for people."""
        return f"retry {self.used + 1} of {self.allowed}"


def delay_seconds(policy: RetryPolicy, n: int, jitter_fraction: float) -> float:
    """Seconds before retry `n`, 1 for the first, jitter included.

    Each budget counts its own `n`: a lost node does not lengthen the wait after a network error.

    Args:
        policy: Gives the delays and the jitter.
        n: Number of the retry within its budget, 1 or more.
        jitter_fraction: Random number from 0 to 1, drawn by the caller.

    Raises:
        ValueError: `n` is below 1 or `jitter_fraction` is not between 0 and 1.
    """
    if n < 1:
        raise ValueError(f"n {n}: the first retry is 1")
    if not 0 <= jitter_fraction <= 1:
        raise ValueError(f"jitter_fraction {jitter_fraction}: allowed is 0 to 1")
    try:
        grown = policy.retry_delay * policy.backoff_multiplier ** (n - 1)
    except OverflowError:  # after some hundred retries; only with max_retries -1
        grown = policy.max_retry_delay if policy.retry_delay else 0.0
    return min(grown, policy.max_retry_delay) + policy.retry_jitter * jitter_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the next attempt runs."""

    pool: str
    """Work pool; the pool of the failed attempt when it stays."""
    node: str | None = None
    """Node that should take it (the same one, or the one that `route` chose); `None` for any
    node of the pool that fits."""
    avoid_nodes: tuple[str, ...] = ()
    """Nodes that must leave it alone."""
    waits_for: str | None = None
    """Node of the pool that would fit and is away now: the smaller ones leave the run alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try again."""

    resources: Resources
    place: Place
    delay_seconds: float
    reason: str
    """One sentence: cause, what changes, where, when."""
    counts_as: BudgetName = "retry"
    """Which budget it uses up."""


class Ending(str, Enum):
    """Name of the Prefect state in which the front run ends."""

    PERMANENT_FAILURE = "PermanentFailure"
    FAILED = "Failed"
    CRASHED = "Crashed"
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the front run."""

    ending: Ending
    reason: str
    """One sentence: cause and why no further attempt is made."""


Decision = Retry | Stop
