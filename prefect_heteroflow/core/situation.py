"""One failed attempt with all that a decision about it depends on, and the places open to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, FailureGroup
from prefect_heteroflow.core.policy import Place, RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.routing import NoRoute, Route, is_declared, route, route_when_back
from prefect_heteroflow.core.units import bytes_to_mb_ceil

_BLAMES_THE_NODE = frozenset({FailureGroup.NODE, FailureGroup.UNKNOWN})
_GROUP_BY_NAME = {failure.value: failure.group for failure in FailureClass}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that a decision about one failed attempt depends on, but the jitter."""

    diagnosis: Diagnosis
    policy: RetryPolicy
    resources: Resources
    """What the failed attempt had."""
    pool: str
    node: str | None
    history: Sequence[Attempt]
    """The attempts before the failed one."""
    cluster: Cluster
    gpu_memory_mb: int | None = None
    """Total memory of the GPU that the attempt used, MiB."""
    containers: bool | None = None

    @property
    def pinned(self) -> bool:
        """The strategy allows no other node."""
        return self.policy.retry_strategy is RetryStrategy.RETRY_SAME_NODE

    @property
    def own_node(self) -> Node | None:
        """The node of the failed attempt, if it is known."""
        return next(
            (n for n in self.cluster.nodes if n.name == self.node and n.pool == self.pool), None
        )

    @property
    def has_moved(self) -> bool:
        """The node of the failed attempt has a worker of another pool by now."""
        return self.own_node is None and any(n.name == self.node for n in self.cluster.nodes)

    @property
    def nothing_known(self) -> bool:
        """No node and no declared pool is known: the cluster could not be read, for example."""
        return not self.cluster.nodes and not any(map(is_declared, self.cluster.pools))

    @property
    def pool_unknown(self) -> bool:
        """Nothing at all is known about the pool, so nothing speaks against staying in it."""
        return not any(node.pool == self.pool for node in self.cluster.places) and not any(
            pool.name == self.pool and is_declared(pool) for pool in self.cluster.pools
        )

    @property
    def suspects(self) -> frozenset[str]:
        """Nodes on which an earlier attempt of this task ended in a way that blames the node."""
        return frozenset(
            row.node
            for row in self.history
            if row.node is not None and _GROUP_BY_NAME.get(row.failure or "") in _BLAMES_THE_NODE
        )

    @property
    def was_last_run(self) -> bool:
        """The failed attempt had grown to less than twice, and not up to the policy's limit.

        It was given all that any node had: a last run.
        """
        had, limit = self.resources.memory_mb, self.policy.oom_memory_limit
        before = max(
            (row for row in self.history if row.memory_mb is not None and row.memory_mb < had),
            key=lambda row: row.attempt,
            default=None,
        )
        if before is None or before.memory_mb is None:
            return False
        out_of_memory = before.failure == FailureClass.CPU_OUT_OF_MEMORY.value
        return out_of_memory and had < min(2 * before.memory_mb, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next attempt."""

    resources: Resources
    place: Place
    change: str
    """What is different and where, for the log line."""
    escalates: bool = False
    """Something grew, so `escalation_delay` applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """No next attempt could succeed."""

    reason: str


def same_place(situation: Situation) -> tuple[Place, str]:
    """The place of the failed attempt, as far as it is still there, and words for it."""
    pool, node = situation.pool, situation.node
    if node is None:
        return Place(pool=pool), f"in pool {pool} (same pool)"
    if situation.pinned:
        others = {n.name for n in situation.cluster.nodes if n.pool == pool} - {node}
        place = Place(pool=pool, node=node, avoid_nodes=tuple(sorted(others)))
        own = situation.own_node
        is_away = situation.has_moved if own is None else not own.live
        back = ", once it is back" if is_away else ""
        return place, f"on {node} (same node{back})"
    own = situation.own_node
    if own is None and situation.cluster.nodes:
        return Place(pool=pool), f"in pool {pool} ({node} is not known)"
    if own is not None and (own.cordoned or not own.live):
        state = "cordoned" if own.cordoned else "not live"
        return Place(pool=pool), f"in pool {pool} ({node} is {state})"
    return Place(pool=pool, node=node), f"on {node} (same node)"


def find_place(
    situation: Situation,
    request: Resources,
    *,
    avoid_current: bool = False,
    more_gpu_memory_than_mb: int | None = None,
) -> tuple[Place, str] | NoRoute:
    """The best place that fits the request, and words for it.

    Nodes that earlier attempts of the task blame, and GPUs smaller than the one it had, are
    taken only when nothing else fits.
    """
    answer: Route | NoRoute | None = None
    for wished, avoided in _wishes(situation, request, avoid_current, more_gpu_memory_than_mb):
        answer = route(
            wished,
            situation.cluster,
            current_pool=situation.pool,
            current_node=situation.node,
            avoid_nodes=avoided,
            more_gpu_memory_than_mb=more_gpu_memory_than_mb,
            containers=situation.containers,
        )
        if isinstance(answer, Route):
            place = Place(pool=answer.pool, node=answer.node, avoid_nodes=tuple(sorted(avoided)))
            return place, _where(answer, situation.pool)
    assert isinstance(answer, NoRoute)  # `_wishes` yields at least one
    return answer


def find_place_when_back(
    situation: Situation, request: Resources, *, more_gpu_memory_than_mb: int | None = None
) -> tuple[Place, str] | None:
    """Where the run can wait for a place that fits and is away just now, and words for it.

    A node whose worker said goodbye does not count: nobody knows whether it ever comes back.
    """
    answer = route_when_back(
        request,
        situation.cluster,
        current_pool=situation.pool,
        more_gpu_memory_than_mb=more_gpu_memory_than_mb,
        containers=situation.containers,
    )
    if isinstance(answer, NoRoute):
        return None
    place = Place(pool=answer.pool, waits_for=answer.waits_for)
    return place, _where(answer, situation.pool)


def _wishes(
    situation: Situation, request: Resources, avoid_current: bool, more_gpu_mb: int | None
) -> Iterator[tuple[Resources, frozenset[str]]]:
    """Requests and nodes to avoid, from the dearest wish to the bare need."""
    current = frozenset({situation.node} if situation.node is not None else ())
    base = current if avoid_current else frozenset()
    avoidances = (base | (situation.suspects - current), base)
    had = gpu_memory_had_mb(situation)
    if request.gpu_count and had is not None and more_gpu_mb is None:
        as_large = replace(request, gpu_memory_mb=max(had, request.gpu_memory_mb or 0))
        for avoided in avoidances:
            yield as_large, avoided
    for avoided in avoidances:
        yield request, avoided


def _where(chosen: Route, current_pool: str) -> str:
    if chosen.node is None:
        return f"in pool {chosen.pool} ({chosen.reason})"
    pool = "" if chosen.pool == current_pool else f" of pool {chosen.pool}"
    return f"on {chosen.node}{pool} ({chosen.reason})"


def gpu_memory_had_mb(situation: Situation) -> int | None:
    """Total memory of the GPU that the attempt used, MiB; `None` if nothing tells.

    CUDA reports up to about 3 % less than NVML for the same GPU, so a figure that comes from the
    attempt stands for the node's GPU of that size: else the same class would pass as larger.
    """
    own = situation.own_node
    sizes = sorted(gpu.memory_mb for gpu in own.gpus) if own is not None else []
    observed = situation.gpu_memory_mb
    figures = situation.diagnosis.figures
    if observed is None and figures is not None and figures.total_bytes is not None:
        observed = bytes_to_mb_ceil(figures.total_bytes)
    if observed is not None:
        return next((size for size in sizes if observed <= size <= observed * 1.05), observed)
    request = situation.resources
    usable = [size for size in sizes if size >= (request.gpu_memory_mb or 0)]
    if usable:
        return usable[min(max(request.gpu_count, 1), len(usable)) - 1]
    return request.gpu_memory_mb
