"""Where an attempt of a task runs: within its flow run, or beside it as a run of its own.

A flow run under a worker has what it was given, its node has more. So the flow run, `home`, and the
worker's node are two places of one name: where the node is known, it takes the place of home among
the nodes, and what does not fit home can go to the very same machine.
"""

from __future__ import annotations

from dataclasses import replace

from prefect_heteroflow.core.policy import Decision, Place, Retry
from prefect_heteroflow.core.ranges import MIN_MEMORY_MB
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.routing import fits


def places_beside(home: Node, known: Cluster) -> Cluster:
    """The nodes for attempts that do not fit home; home itself only if its node is not among them.

    Args:
        home: What the flow run may use, under the name and pool of its node.
        known: The nodes and pools that workers have published.
    """
    if any((node.name, node.pool) == (home.name, home.pool) for node in known.nodes):
        return known
    return Cluster(nodes=(home, *known.nodes), pools=known.pools)


def is_at_home(place: Place, resources: Resources, home: Node) -> bool:
    """Whether an attempt that goes to that place runs within the flow run."""
    same = place.pool == home.pool and place.node in (None, home.name)
    return same and place.waits_for is None and fits(resources, home)


def roomier(at_home: Decision, beside: Decision) -> Decision:
    """The decision that gives the next attempt more; at home in doubt.

    Args:
        at_home: What follows if home is all there is.
        beside: What follows among the nodes of `places_beside`.
    """
    if not isinstance(at_home, Retry):
        return beside
    if not isinstance(beside, Retry) or beside.place.waits_for is not None:
        return at_home
    return beside if beside.resources.memory_mb > at_home.resources.memory_mb else at_home


def room_for_bodies(home: Node, own_mb: int) -> Node:
    """What of the flow run can be promised to its tasks.

    Args:
        home: What the flow run may use.
        own_mb: What its own process uses of that, MiB.
    """
    return replace(home, memory_mb=max(MIN_MEMORY_MB, home.memory_mb - own_mb))


def has_text(home: Node, room: Node | None = None) -> str:
    """What the flow run has, and what of it can be promised to tasks, for people."""
    sizes = ", ".join(f"{gpu.memory_mb} MB" for gpu in home.gpus) or "none"
    memory = f"{home.memory_mb} MB of memory"
    if room is not None and room.memory_mb < home.memory_mb:
        memory += f" ({room.memory_mb} MB of it beside its own process)"
    return f"this flow run has {memory} and GPUs: {sizes} (on {home.name})"


def asks_text(resources: Resources) -> str:
    """What an attempt asks for, as its author wrote it."""
    asked = f"memory_mb={resources.memory_mb}"
    if resources.gpu_count:
        asked += f", gpu_count={resources.gpu_count}"
        if resources.gpu_memory_mb is not None:
            asked += f", gpu_memory_mb={resources.gpu_memory_mb}"
    return asked
