"""What a run asks for at first, whether it fits this node, and where it goes if it does not."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.attempts.rerouting import planned as planned_resources
from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.job_values import JobValues, boost_gpu_inference_memory
from prefect_heteroflow.core.policy import RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Cluster, Resources
from prefect_heteroflow.core.routing import NoRoute, Route, fits, route, route_when_back

if TYPE_CHECKING:
    from prefect_heteroflow.job_configuration import RetryConfiguration
    from prefect_heteroflow.retrying_worker import RetryingWorker


def first_resources(
    configuration: RetryConfiguration,
    values: JobValues,
    logger: logging.Logger | logging.LoggerAdapter[Any],
    planned: Attempt | None = None,
) -> Resources:
    """What the run asks for, and more where an inference server said nothing of memory.

    Args:
        configuration: Of the run.
        values: What it says.
        logger: Of the run.
        planned: The row of a planned retry. Its resources travel in the data of the run's state,
            which is lost where the server puts another one in its place (no slot of a concurrency
            limit); the attempt gets no less than was planned.
    """
    if planned is not None:
        values = dataclasses.replace(values, resources=_no_less(values.resources, planned))
    boosted = boost_gpu_inference_memory(
        getattr(configuration, "image", None),
        values.resources,
        configuration.memory_mb_was_set,
        limit_mb=values.policy.oom_memory_limit,
    )
    if boosted is None:
        return values.resources
    logger.info(
        "Auto-boost GPU inference memory: %d → %dMB",
        values.resources.memory_mb,
        boosted.memory_mb,
    )
    return boosted


def _no_less(resources: Resources, planned: Attempt) -> Resources:
    grown = {
        name: max(value, getattr(resources, name) or 0)
        for name, value in planned_resources(planned).items()
    }
    return dataclasses.replace(resources, **grown)


async def find_place(
    worker: RetryingWorker, resources: Resources, policy: RetryPolicy
) -> Route | str | None:
    """`None` if the run fits this node, else the route to where it fits, or why there is none."""
    node = worker.node
    if fits(resources, node):
        return None
    for fresh in (False, True):  # a node may have come up a moment ago
        cluster = await worker.read_cluster(fresh=fresh)
        found = route(
            resources,
            cluster,
            current_pool=node.pool,
            current_node=node.name,
            containers=worker.containers,
        )
        if isinstance(found, Route):
            break
    if isinstance(found, NoRoute):
        found = _wait_for_one_that_is_away(worker, resources, cluster) or found
    asked = described(resources)
    if isinstance(found, NoRoute):
        return f"The run asks for {asked}: {found.reason}"
    if policy.retry_strategy is not RetryStrategy.RETRY_NEW_NODE and found.pool != node.pool:
        return (
            f"The run asks for {asked}, more than node {node.name} has, and"
            f" {policy.retry_strategy.value} keeps it on pool {node.pool}. Run it on pool"
            f" {found.pool}, or ask for less."
        )
    return found


def _wait_for_one_that_is_away(
    worker: RetryingWorker, resources: Resources, cluster: Cluster
) -> Route | None:
    own = worker.node.pool
    for stopped_too in (False, True):
        later = route_when_back(
            resources,
            cluster,
            current_pool=own,
            containers=worker.containers,
            stopped_too=stopped_too,
        )
        if not isinstance(later, Route):
            continue
        # In the own pool this node has to leave it alone from now on: see `placement`.
        if later.pool != own or (later.waits_for is not None and not stopped_too):
            return later
    return None


def described(resources: Resources) -> str:
    """The request as a person would say it."""
    parts = [f"{resources.memory_mb} MB of memory"]
    if resources.gpu_count:
        size = (
            "" if resources.gpu_memory_mb is None else f" of at least {resources.gpu_memory_mb} MB"
        )
        parts.append(f"{resources.gpu_count} GPU{'s' if resources.gpu_count > 1 else ''}{size}")
    if resources.shm_mb is not None:
        parts.append(f"{resources.shm_mb} MB of shared memory")
    return ", ".join(parts)
