"""What an attempt asks for and what nodes and pools have. MB means MiB (1024 * 1024 bytes)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from prefect_heteroflow.core.ranges import MAX_MEMORY_MB, MIN_MEMORY_MB, Range

DEFAULT_MEMORY_MB = 2048
DEFAULT_SHM_MB = 64
"""What the container engine gives `/dev/shm` when nothing is said, MiB."""
BOOSTED_GPU_INFERENCE_MEMORY_MB = 8192
MOST_FORMER_POOLS = 8
"""A machine that serves more pools in turns than that is none that we know of."""

RESOURCE_RANGES: MappingProxyType[str, Range] = MappingProxyType(
    {
        "memory_mb": Range(least=MIN_MEMORY_MB, most=MAX_MEMORY_MB, whole=True, unit="MiB"),
        "shm_mb": Range(least=1, most=MAX_MEMORY_MB, whole=True, unit="MiB", optional=True),
        "gpu_count": Range(least=0, most=1024, whole=True),
        "gpu_memory_mb": Range(least=1, most=MAX_MEMORY_MB, whole=True, unit="MiB", optional=True),
    }
)
"""What each number of `Resources` may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one attempt is given.

    Args:
        memory_mb: Memory limit in MiB, at least 6 (the Docker engine's own floor).
        shm_mb: Size of `/dev/shm` in MiB; `None` leaves the engine's default of 64.
        gpu_count: Number of GPUs, 0 for none.
        gpu_memory_mb: Least total memory of each GPU in MiB; `None` means any GPU.

    Raises:
        ValueError: A value is out of its range; the text names the value and what is allowed.
    """

    memory_mb: int = DEFAULT_MEMORY_MB
    shm_mb: int | None = None
    gpu_count: int = 0
    gpu_memory_mb: int | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} {value!r}: allowed is {rule.allowed}"
            for name, rule in RESOURCE_RANGES.items()
            if not rule.holds(value := getattr(self, name))
        ]
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a node."""

    uuid: str
    name: str
    memory_mb: int
    """Total memory, MiB."""
    free_mb: int | None = None
    """Free memory when it was last looked at, MiB."""
    healthy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with one worker."""

    name: str
    pool: str
    memory_mb: int
    """Memory that an attempt can be given at most, MiB."""
    gpus: tuple[Gpu, ...] = ()
    live: bool = True
    """Its worker was heard of lately; the adapter that reads nodes judges that."""
    stopped: bool = False
    """Its worker said goodbye; then it is not live."""
    cordoned: bool = False
    cordon_reason: str | None = None
    last_error: str | None = None
    docker: bool | None = None
    """It starts containers (a `heteroflow` worker), not processes."""
    former_pools: tuple[str, ...] = ()
    """Pools in which earlier workers of its name were, the newest first."""

    @property
    def takes_runs(self) -> bool:
        """It is live and not cordoned."""
        return self.live and not self.cordoned

    def after(self, earlier: Node) -> Node:
        """This node with the pools of an earlier worker of its name, which it takes over."""
        known = (*self.former_pools, earlier.pool, *earlier.former_pools)
        others = [pool for pool in dict.fromkeys(known) if pool != self.pool]
        return replace(self, former_pools=tuple(others[:MOST_FORMER_POOLS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A work pool: nodes of one class, or a declaration by `heteroflow pool tag`."""

    name: str
    memory_mb: int | None = None
    """Declared memory of its nodes, MiB; `None` if nothing is declared."""
    gpu_memory_mb: int | None = None
    gpu_count: int | None = None
    """Declared GPUs of each node; with `gpu_memory_mb` declared and this `None`, 1."""
    worker_type: str | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes and pools that are known at one moment."""

    nodes: tuple[Node, ...] = ()
    pools: tuple[Pool, ...] = ()

    @property
    def places(self) -> tuple[Node, ...]:
        """The nodes, and each again as a stopped one of the pools that it has left."""
        left = [
            replace(node, pool=pool, live=False, stopped=True, docker=None, former_pools=())
            for node in self.nodes
            for pool in node.former_pools
        ]
        return (*self.nodes, *left)

    @property
    def pools_without_takers(self) -> frozenset[str]:
        """Pools that have or had nodes, none of which takes runs: not live, cordoned, or moved."""
        takers = {node.pool for node in self.nodes if node.takes_runs}
        return frozenset(node.pool for node in self.places) - takers
