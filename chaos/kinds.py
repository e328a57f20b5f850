"""The kinds of runs, and how each of them has to end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

SMALL, LARGE, DOCKER = "chaos-small", "chaos-large", "chaos-docker"
"""Pools: processes with a GPU of 8 GB, processes with one of 24 GB, containers."""

CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a run does and how it ends if nothing is lost and nothing done twice."""

    name: str
    ends_as: str
    """Name of its one final state."""
    does: str
    """The argument of `job.py` or `flow.py`."""
    number: int = 0
    """Megabytes or planned failures, as `does` needs."""
    is_flow: bool = False
    pools: tuple[str, ...] = (SMALL, LARGE, DOCKER)
    seconds: tuple[float, float] = (1.0, 8.0)
    """Bounds of the time that an attempt works."""
    share: int = 1
    """How often it is drawn."""
    fewest_attempts: int = 1
    job_variables: Mapping[str, object] = field(default_factory=dict)


_PROCESSES = (SMALL, LARGE)
_COMPLETED = "Completed"

KINDS: tuple[Kind, ...] = (
    Kind(name="success", ends_as=_COMPLETED, does="success", share=3),
    Kind(name="long", ends_as=_COMPLETED, does="success", seconds=(20.0, 45.0), share=4),
    Kind(
        name="memory",
        ends_as=_COMPLETED,
        does="memory",
        number=200,
        fewest_attempts=2,
        share=3,
        job_variables={"memory_mb": 128},
    ),
    Kind(
        name="transient",
        ends_as=_COMPLETED,
        does="transient",
        number=2,
        fewest_attempts=3,
        share=2,
    ),
    Kind(
        name="transient-later",
        ends_as=_COMPLETED,
        does="transient",
        number=1,
        fewest_attempts=2,
        share=2,
        job_variables={"retry_delay": 4},
    ),
    Kind(
        name="gpu",
        ends_as=_COMPLETED,
        does="gpu",
        number=20000,
        fewest_attempts=2,
        pools=(SMALL,),
        share=3,
        job_variables={"gpu_count": 1},
    ),
    Kind(name="permanent", ends_as="PermanentFailure", does="permission"),
    Kind(name="cancelled", ends_as=CANCELLED, does="success", seconds=(600.0, 600.0), share=2),
    Kind(name="flow", ends_as=_COMPLETED, does="success", is_flow=True, pools=_PROCESSES, share=2),
    Kind(
        name="flow-transient",
        ends_as=_COMPLETED,
        does="transient",
        number=1,
        fewest_attempts=2,
        is_flow=True,
        pools=_PROCESSES,
    ),
    Kind(
        name="flow-permanent",
        ends_as="PermanentFailure",
        does="permission",
        is_flow=True,
        pools=_PROCESSES,
    ),
    Kind(name="flow-error", ends_as="Failed", does="application", is_flow=True, pools=_PROCESSES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One run of the plan."""

    name: str
    """Different for each run of the plan."""
    kind: Kind
    pool: str
    seconds: float
    submit_after: float
    """Seconds after the start."""
    cancel_after: float | None
    """Seconds after it was submitted, for a run that a user cancels."""


def plan_runs(rng: random.Random, count: int, *, within: float, pools: set[str]) -> list[Planned]:
    """The runs of one chaos run, in the order in which they are submitted.

    Args:
        rng: Gives the same runs for the same seed.
        count: How many.
        within: Seconds over which they are submitted; a third of them comes at once.
        pools: Those that exist.
    """
    able = [kind for kind in KINDS if pools.intersection(kind.pools)]
    # Each kind once before any comes twice, as far as `count` goes.
    drawn = [*able, *rng.choices(able, weights=[kind.share for kind in able], k=count)][:count]
    rng.shuffle(drawn)
    planned = []
    for index, kind in enumerate(drawn):
        planned.append(
            Planned(
                name=f"run-{index}",
                kind=kind,
                pool=rng.choice([pool for pool in kind.pools if pool in pools]),
                seconds=round(rng.uniform(*kind.seconds), 1),
                submit_after=0.0 if index * 3 < count else rng.uniform(0.0, within),
                cancel_after=rng.uniform(2.0, 40.0) if kind.ends_as == CANCELLED else None,
            )
        )
    return sorted(planned, key=lambda run: run.submit_after)
