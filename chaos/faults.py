"""What goes wrong: planned from a seed, done to the bed, and put right again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from chaos.bed import Bed, Node
from chaos.kinds import DOCKER
from tests.support.stand_in import stand_in


class FaultKind(str, Enum):
    """What can go wrong."""

    WORKER_KILLED = "worker killed"
    """SIGKILL; a new one starts a moment later."""
    WORKER_PAUSED = "worker paused"
    """SIGSTOP, and SIGCONT a moment later."""
    SERVER_KILLED = "server killed"
    """kill -9 of the Prefect server, which starts again on the same database; meanwhile nothing
    answers, or something that says 500 or 429 to everything."""
    ENGINE_RESTARTED = "engine restarted"
    """dockerd stops, which stops its containers, and starts again."""
    ENGINE_KILLED = "engine killed"
    """kill -9 of dockerd alone, and a start."""
    NODE_LOST = "node lost for a moment"
    """Worker and all that it runs die; the node is back before anybody gives it up."""
    NODE_LOST_FOR_LONG = "node lost"
    """The same, and it stays away until others have moved its runs."""


_AWAY_SECONDS = {
    FaultKind.WORKER_KILLED: (0.0, 4.0),
    FaultKind.WORKER_PAUSED: (5.0, 12.0),
    FaultKind.SERVER_KILLED: (0.0, 10.0),
    FaultKind.ENGINE_RESTARTED: (0.0, 0.0),
    FaultKind.ENGINE_KILLED: (0.0, 0.0),
    FaultKind.NODE_LOST: (3.0, 12.0),
    FaultKind.NODE_LOST_FOR_LONG: (80.0, 110.0),
}
_SHARES = {FaultKind.WORKER_KILLED: 4, FaultKind.WORKER_PAUSED: 2, FaultKind.SERVER_KILLED: 2}
_ANSWERS = (None, None, 500, 429)
_OF_ENGINES = (FaultKind.ENGINE_RESTARTED, FaultKind.ENGINE_KILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planned fault."""

    kind: FaultKind
    after: float
    """Seconds after the start; later if the one before it took longer."""
    pool: str | None
    """Whose node; `None` for the server."""
    away: float
    """Seconds until it is put right."""
    status: int | None = None
    """What every request gets while the server is away; `None`: no answer."""


def plan_faults(
    rng: random.Random, *, first: float, until: float, gap: float, pools: list[str]
) -> list[Fault]:
    """The faults between two times, about `gap` seconds apart, each kind at least once if it fits.

    The same seed gives the same faults.
    """
    kinds = [kind for kind in FaultKind if kind not in _OF_ENGINES or DOCKER in pools]
    due: list[FaultKind] = []
    planned, at = [], first
    while at < until:
        if not due:
            due = [kind for kind in kinds for _ in range(_SHARES.get(kind, 1))]
            rng.shuffle(due)
        kind = due.pop()
        pool = rng.choice(pools)
        if kind in _OF_ENGINES:
            pool = DOCKER
        planned.append(
            Fault(
                kind=kind,
                after=at,
                pool=None if kind is FaultKind.SERVER_KILLED else pool,
                away=rng.uniform(*_AWAY_SECONDS[kind]),
                status=rng.choice(_ANSWERS) if kind is FaultKind.SERVER_KILLED else None,
            )
        )
        at += rng.uniform(0.5 * gap, 1.5 * gap)
    return planned


def one_outage(*, after: float, seconds: float, status: int | None) -> list[Fault]:
    """Nothing goes wrong but the server, once and for long."""
    return [
        Fault(kind=FaultKind.SERVER_KILLED, after=after, pool=None, away=seconds, status=status)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that was done."""

    fault: Fault
    at: float
    """Seconds since the epoch."""
    victims: tuple[str, ...]
    """Runs whose attempt ran on the node."""
    put_right: Callable[[], None] | None
    """To be called when it is over; `None` if it is over."""


def inject(bed: Bed, fault: Fault, runs: list[str]) -> Injected | None:
    """Do it now; `None` if it cannot be done, because its node is down."""
    if fault.pool is None:
        return _kill_server(bed, fault)
    node = bed.nodes[fault.pool]
    if not node.is_up:
        return None
    victims = tuple(run for run in runs if _runs_on(bed, run, node))
    at = time.time()
    return Injected(fault=fault, at=at, victims=victims, put_right=_do(fault.kind, node))


def _do(kind: FaultKind, node: Node) -> Callable[[], None] | None:
    if kind is FaultKind.WORKER_PAUSED:
        return node.pause()
    if kind is FaultKind.WORKER_KILLED:
        node.kill_worker()
        return node.start
    if kind in (FaultKind.NODE_LOST, FaultKind.NODE_LOST_FOR_LONG):
        node.burn()
        return node.start
    assert node.engine is not None
    if kind is FaultKind.ENGINE_KILLED:
        node.engine.kill()
        node.engine.start()
    else:
        node.engine.restart()
    return None


def _kill_server(bed: Bed, fault: Fault) -> Injected:
    at = time.time()
    bed.server.kill()
    # Nobody can be asked meanwhile, so it is put right at once.
    with stand_in(bed.server.port, fault.status):
        time.sleep(fault.away)
    bed.server.start()
    return Injected(fault=fault, at=at, victims=(), put_right=None)


def _runs_on(bed: Bed, run: str, node: Node) -> bool:
    mark = bed.marks.running(run)
    return mark is not None and mark["node"] == node.name
