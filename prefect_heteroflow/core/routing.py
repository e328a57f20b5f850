"""Where an attempt can run: the smallest node or declared pool that fits, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from prefect_heteroflow.core.resources import Cluster, Node, Pool, Resources

STARTS_CONTAINERS: MappingProxyType[str, bool] = MappingProxyType(
    {
        "heteroflow": True,
        "docker": True,
        "kubernetes": True,
        "heteroflow-process": False,
        "process": False,
    }
)
"""Worker types whose kind is known: True starts containers, False starts processes."""
OUR_WORKER_TYPES = ("heteroflow", "heteroflow-process")
"""Work pools of other types have workers of their own, whose runs are none of ours."""

_UNKNOWN_GPU_MB = 0
"""Size of a GPU that a pool declares without saying how large it is."""


def awaited_nodes(placement: object) -> frozenset[str]:
    """Nodes for which an attempt was planned, by the job variable `placement`."""
    if not isinstance(placement, Mapping):
        return frozenset()
    found = (placement.get("waits_for"), placement.get("prefer"))
    return frozenset(name for name in found if isinstance(name, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A place that fits."""

    pool: str
    node: str | None
    """`None` for a declared pool without a live node."""
    reason: str
    """Why this one, as a phrase that fits into brackets."""
    waits_for: str | None = None
    """Node that would fit and is away now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoute:
    """Nothing fits."""

    reason: str
    """What is missing, the largest that exists, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A live node, or a declared pool without one, seen as a place for one attempt."""

    pool: str
    node: str | None
    memory_mb: int | None
    gpus_mb: tuple[int, ...]
    """Sizes of the GPUs that can be used, smallest first."""
    containers: bool | None
    obstacle: str | None
    """Why nothing can start there now, `None` if it can."""

    @property
    def label(self) -> str:
        return f"{self.node} (pool {self.pool})" if self.node else f"pool {self.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """What a seat must offer: the request, and floors that must be exceeded."""

    request: Resources
    more_gpu_mb: int | None = None
    more_memory_mb: int | None = None

    def gpus_met_by(self, seat: _Seat) -> bool:
        return len(self.suitable_gpus(seat)) >= self.request.gpu_count

    def memory_met_by(self, seat: _Seat) -> bool:
        if seat.memory_mb is None:  # not declared: it may fit, but nobody knows that it is more
            return self.more_memory_mb is None
        floor = -1 if self.more_memory_mb is None else self.more_memory_mb
        return seat.memory_mb >= self.request.memory_mb and seat.memory_mb > floor

    def met_by(self, seat: _Seat) -> bool:
        return self.gpus_met_by(seat) and self.memory_met_by(seat)

    def suitable_gpus(self, seat: _Seat) -> tuple[int, ...]:
        least = self.request.gpu_memory_mb or 0
        floor = -1 if self.more_gpu_mb is None else self.more_gpu_mb
        return tuple(size for size in seat.gpus_mb if size >= least and size > floor)

    def offered_gpu_mb(self, seat: _Seat) -> int:
        """Size of the GPU that it would take, MiB; if it asks for none, every GPU is waste."""
        if self.request.gpu_count == 0:
            return max(seat.gpus_mb, default=0)
        return self.suitable_gpus(seat)[self.request.gpu_count - 1]

    @property
    def gpu_text(self) -> str:
        count = self.request.gpu_count
        least = self.request.gpu_memory_mb
        size = ""
        if self.more_gpu_mb is not None and self.more_gpu_mb + 1 >= (least or 0):
            size = f" with more than {self.more_gpu_mb} MB"
        elif least is not None:
            size = f" with at least {least} MB"
        return f"{count} GPU{'' if count == 1 else 's'}{size}"

    @property
    def memory_text(self) -> str:
        if self.more_memory_mb is not None and self.more_memory_mb + 1 >= self.request.memory_mb:
            return f"more than {self.more_memory_mb} MB of memory"
        return f"{self.request.memory_mb} MB of memory"


def fits(request: Resources, node: Node) -> bool:
    """Whether the node is large enough for the request; whether it is live is not asked."""
    return _Demand(request=request).met_by(_node_seat(node, None))


def is_declared(pool: Pool) -> bool:
    """Whether `heteroflow pool tag` said anything about the pool's nodes."""
    return (pool.memory_mb, pool.gpu_memory_mb, pool.gpu_count) != (None, None, None)


def route(
    request: Resources,
    cluster: Cluster,
    *,
    current_pool: str | None,
    current_node: str | None = None,
    avoid_nodes: Collection[str] = (),
    more_gpu_memory_than_mb: int | None = None,
    more_memory_than_mb: int | None = None,
    containers: bool | None = None,
) -> Route | NoRoute:
    """The smallest place that fits, with the reason; equal input in any order, equal answer.

    Only live nodes that are not cordoned count, in pools that are not paused, and declared pools
    that have no live node (each as one node of the declared size; memory that is not declared is
    taken to be enough). The order of preference is: the current node, the current pool, then the
    smallest GPU, the least memory, a live node before a declared pool, the name. With
    `more_gpu_memory_than_mb` the smallest GPU comes first of all, so that a larger class is not
    skipped because a still larger one stands in the same pool.

    Args:
        request: What the attempt needs.
        cluster: The nodes and pools that are known.
        current_pool: Pool of the last attempt.
        current_node: Node of the last attempt.
        avoid_nodes: Names of nodes that must not be chosen.
        more_gpu_memory_than_mb: Each GPU must have more than this, MiB.
        more_memory_than_mb: The node must have more memory than this, MiB.
        containers: `True` for an attempt that needs a container, `False` for one that runs as a
            process; a place of unknown kind suits both.
    """
    demand = _Demand(
        request=request, more_gpu_mb=more_gpu_memory_than_mb, more_memory_mb=more_memory_than_mb
    )
    seats = _seats(cluster, containers)
    fitting = [seat for seat in seats if seat.obstacle is None and demand.met_by(seat)]
    allowed = [seat for seat in fitting if seat.node not in avoid_nodes]
    if not allowed:
        return NoRoute(reason=_why_none(demand, seats, fitting))
    best = min(allowed, key=lambda seat: _preference(seat, demand, current_pool, current_node))
    return Route(
        pool=best.pool, node=best.node, reason=_why(best, demand, current_pool, current_node)
    )


def route_when_back(
    request: Resources,
    cluster: Cluster,
    *,
    current_pool: str | None,
    avoid_nodes: Collection[str] = (),
    more_gpu_memory_than_mb: int | None = None,
    containers: bool | None = None,
    stopped_too: bool = False,
) -> Route | NoRoute:
    """The pool in which a run can wait for a place that fits and is away: not live, or paused.

    For runs that nothing fits now: a node that is being restarted is no reason to end them for
    good. Cordoned nodes do not count, because somebody said that nothing is to run there.

    Args:
        request: What the attempt needs.
        cluster: The nodes and pools that are known.
        current_pool: Pool of the last attempt.
        avoid_nodes: Names of nodes that must not be chosen.
        more_gpu_memory_than_mb: Each GPU must have more than this, MiB.
        containers: As for `route`.
        stopped_too: Nodes whose worker said goodbye count as well.
    """
    back = Cluster(
        nodes=tuple(
            replace(node, live=node.live or stopped_too or not node.stopped)
            for node in cluster.nodes
        ),
        pools=tuple(replace(pool, paused=False) for pool in cluster.pools),
    )
    found = route(
        request,
        back,
        current_pool=current_pool,
        avoid_nodes=avoid_nodes,
        more_gpu_memory_than_mb=more_gpu_memory_than_mb,
        containers=containers,
    )
    if isinstance(found, NoRoute):
        return found
    size = f"{found.node} would fit" if found.node else "it would fit"
    return Route(
        pool=found.pool,
        node=None,
        reason=f"{size} and is not live or paused now, so the run waits for it",
        waits_for=found.node,
    )


def largest_memory_mb(
    request: Resources, cluster: Cluster, *, containers: bool | None = None
) -> int | None:
    """Most memory that a place has which meets the request in all but memory, MiB."""
    demand = _Demand(request=request)
    sizes = [
        seat.memory_mb
        for seat in _seats(cluster, containers)
        if seat.obstacle is None and seat.memory_mb is not None and demand.gpus_met_by(seat)
    ]
    return max(sizes, default=None)


def _seats(cluster: Cluster, containers: bool | None) -> list[_Seat]:
    pools = {pool.name: pool for pool in cluster.pools}
    with_live_node = {node.pool for node in cluster.nodes if node.live}
    seats = [_node_seat(node, pools.get(node.pool)) for node in cluster.nodes]
    seats += [
        _pool_seat(pool)
        for pool in cluster.pools
        if is_declared(pool) and pool.name not in with_live_node
    ]
    return [seat for seat in seats if _kind_suits(seat, containers)]


def _node_seat(node: Node, pool: Pool | None) -> _Seat:
    obstacle = None
    if not node.live:
        obstacle = "is not live"
    elif node.cordoned:
        obstacle = f"is cordoned ({node.cordon_reason})" if node.cordon_reason else "is cordoned"
    elif pool is not None and pool.paused:
        obstacle = "is in a paused pool"
    kind = node.docker
    if kind is None and pool is not None:
        kind = _kind_of(pool)
    return _Seat(
        pool=node.pool,
        node=node.name,
        memory_mb=node.memory_mb,
        gpus_mb=tuple(sorted(gpu.memory_mb for gpu in node.gpus if gpu.healthy is not False)),
        containers=kind,
        obstacle=obstacle,
    )


def _pool_seat(pool: Pool) -> _Seat:
    count = pool.gpu_count
    if count is None:
        count = 0 if pool.gpu_memory_mb is None else 1
    return _Seat(
        pool=pool.name,
        node=None,
        memory_mb=pool.memory_mb,
        gpus_mb=(pool.gpu_memory_mb or _UNKNOWN_GPU_MB,) * count,
        containers=_kind_of(pool),
        obstacle="is paused" if pool.paused else None,
    )


def _kind_of(pool: Pool) -> bool | None:
    return STARTS_CONTAINERS.get(pool.worker_type or "")


def _kind_suits(seat: _Seat, containers: bool | None) -> bool:
    return containers is None or seat.containers is None or seat.containers is containers


def _preference(
    seat: _Seat, demand: _Demand, current_pool: str | None, current_node: str | None
) -> tuple[object, ...]:
    gpu_mb = demand.offered_gpu_mb(seat)
    size_unknown = seat.memory_mb is None or (
        demand.request.gpu_count > 0 and gpu_mb == _UNKNOWN_GPU_MB
    )
    nearness = (not _is_here(seat, current_pool, current_node), seat.pool != current_pool)
    gpu_size = (size_unknown, gpu_mb)
    tie = (seat.memory_mb or 0, seat.node is None, seat.node or "", seat.pool)
    if demand.more_gpu_mb is not None:
        return (*gpu_size, *nearness, *tie)
    return (*nearness, *gpu_size, *tie)


def _is_here(seat: _Seat, current_pool: str | None, current_node: str | None) -> bool:
    return (
        seat.node is not None
        and seat.node == current_node
        and (current_pool is None or seat.pool == current_pool)
    )


def _why(seat: _Seat, demand: _Demand, current_pool: str | None, current_node: str | None) -> str:
    if _is_here(seat, current_pool, current_node):
        return "same node, it fits"
    size = f"memory {'not declared' if seat.memory_mb is None else f'{seat.memory_mb} MB'}"
    if demand.request.gpu_count:
        gpu_mb = demand.offered_gpu_mb(seat)
        size = f"GPU {'not declared' if gpu_mb == _UNKNOWN_GPU_MB else f'{gpu_mb} MB'}, {size}"
    where = (
        "another node of the same pool" if seat.pool == current_pool else "the smallest that fits"
    )
    if seat.node is None:
        where = f"{'same pool' if seat.pool == current_pool else where}, no live node yet, declared"
    return f"{where}: {size}"


def _why_none(demand: _Demand, seats: list[_Seat], fitting: list[_Seat]) -> str:
    """One sentence: what is missing, the largest that exists, what to do."""
    if fitting:
        names = ", ".join(sorted({seat.label for seat in fitting}))
        return f"every place that fits is avoided: {names}; add a node"
    advice = "add a node or declare a pool with `heteroflow pool tag`"
    blocked = sorted(
        f"{seat.label} would fit but {seat.obstacle}"
        for seat in seats
        if seat.obstacle is not None and demand.met_by(seat)
    )
    if blocked:
        return f"no place is free that fits: {'; '.join(blocked)}; bring it back, or {advice}"
    usable = [seat for seat in seats if seat.obstacle is None]
    if not usable:
        return f"no live node and no declared pool of the right kind is known; {advice}"
    return f"{_shortage(demand, usable)}; {advice}"


def _shortage(demand: _Demand, usable: list[_Seat]) -> str:
    if not any(demand.gpus_met_by(seat) for seat in usable):
        return f"no known node has {demand.gpu_text}; {_largest_gpu(demand, usable)}"
    if not any(demand.memory_met_by(seat) for seat in usable):
        largest = _first_of_largest(usable, lambda seat: seat.memory_mb or 0)
        return (
            f"no known node has {demand.memory_text}; "
            f"the largest has {largest.memory_mb} MB: {largest.label}"
        )
    with_gpu = [seat for seat in usable if demand.gpus_met_by(seat)]
    largest = _first_of_largest(with_gpu, lambda seat: seat.memory_mb or 0)
    return (
        f"no known node has both {demand.gpu_text} and {demand.memory_text}; "
        f"of those with such GPUs the largest has {largest.memory_mb} MB of memory: {largest.label}"
    )


def _largest_gpu(demand: _Demand, usable: list[_Seat]) -> str:
    with_gpus = [seat for seat in usable if seat.gpus_mb]
    if not with_gpus:
        return "none has a GPU"
    best = _first_of_largest(with_gpus, lambda seat: len(demand.suitable_gpus(seat)))
    if enough := len(demand.suitable_gpus(best)):
        return f"the most is {enough}, on {best.label}"
    largest = _first_of_largest(with_gpus, lambda seat: seat.gpus_mb[-1])
    if largest.gpus_mb[-1] == _UNKNOWN_GPU_MB:
        return f"{largest.label} declares GPUs without their memory"
    return f"the largest is {largest.gpus_mb[-1]} MB on {largest.label}"


def _first_of_largest(seats: Iterable[_Seat], size: Callable[[_Seat], int]) -> _Seat:
    return min(seats, key=lambda seat: (-size(seat), seat.node is None, seat.node or "", seat.pool))
