"""What `heteroflow pool tag` declares of a work pool, and its line in the pool's description."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.core.resources import Cluster, Pool
from prefect_heteroflow.orchestration.node_values import (
    parse_pool_value,
    pool_to_value,
    pool_variable_name,
)
from prefect_heteroflow.orchestration.nodes import read_cluster
from prefect_heteroflow.orchestration.pool_line import pool_line, with_tag_line
from prefect_heteroflow.orchestration.variables import delete_variable, write_variable

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool

DEFAULT_LIVENESS_SECONDS = 90.0
SHOWN_POOLS = 20


class PoolNotFound(Exception):
    """No work pool of this name; the text lists those that exist."""

    def __init__(self, name: str, existing: list[str]) -> None:
        self.name = name
        shown = ", ".join(sorted(existing)[:SHOWN_POOLS])
        more = f" and {len(existing) - SHOWN_POOLS} more" if len(existing) > SHOWN_POOLS else ""
        there = f"There are: {shown}{more}." if existing else "There is none yet."
        super().__init__(
            f"There is no work pool {name!r}. {there} Create it with"
            f" `prefect work-pool create {name} --type heteroflow`."
        )


async def tag_pool(
    client: PrefectClient,
    name: str,
    *,
    memory_mb: int | None = None,
    gpu_memory_mb: int | None = None,
    gpu_count: int | None = None,
    now: datetime | None = None,
    liveness_seconds: float = DEFAULT_LIVENESS_SECONDS,
) -> Pool:
    """Declare what the nodes of a pool have, and show it in the pool's description.

    Args:
        client: A client in use.
        name: The work pool.
        memory_mb: Memory of each node, MiB; `None` keeps what was declared before.
        gpu_memory_mb: Memory of each GPU, MiB; `None` keeps what was declared before.
        gpu_count: GPUs of each node; `None` keeps what was declared before.
        now: The time, for the live nodes in the description; `None` takes the server's.
        liveness_seconds: Age from which on a node does not count as live there.

    Returns:
        All that is declared now.

    Raises:
        ValueError: Nothing is given, or a number is too small; names the value.
        PoolNotFound: There is no such pool.
        httpx.HTTPError: The API failed.
    """
    given = {"memory_mb": memory_mb, "gpu_memory_mb": gpu_memory_mb, "gpu_count": gpu_count}
    if all(value is None for value in given.values()):
        raise ValueError("Nothing to declare: give memory_mb, gpu_memory_mb or gpu_count.")
    for key, value in given.items():
        least = 0 if key == "gpu_count" else 1
        if value is not None and (isinstance(value, bool) or value < least):
            raise ValueError(f"{key} is {value}; allowed are whole numbers from {least} on.")
    work_pool = await _read_work_pool(client, name)
    before = await read_pool_tags(client, name) or Pool(name=name)
    pool = Pool(
        name=name,
        memory_mb=before.memory_mb if memory_mb is None else memory_mb,
        gpu_memory_mb=before.gpu_memory_mb if gpu_memory_mb is None else gpu_memory_mb,
        gpu_count=before.gpu_count if gpu_count is None else gpu_count,
    )
    await write_variable(client, pool_variable_name(name), pool_to_value(pool))
    await _refresh_now(client, work_pool, now, liveness_seconds)
    return pool


async def untag_pool(
    client: PrefectClient,
    name: str,
    *,
    now: datetime | None = None,
    liveness_seconds: float = DEFAULT_LIVENESS_SECONDS,
) -> bool:
    """Take back what was declared of a pool; its line goes, or shows only what live nodes have.

    Works for a pool that was deleted meanwhile, too.

    Returns:
        False if nothing was declared.

    Raises:
        PoolNotFound: There is no such pool and nothing was declared of one.
        httpx.HTTPError: The API failed.
    """
    removed = await delete_variable(client, pool_variable_name(name))
    try:
        work_pool = await _read_work_pool(client, name)
    except PoolNotFound:
        if removed:
            return True
        raise
    await _refresh_now(client, work_pool, now, liveness_seconds)
    return removed


async def read_pool_tags(client: PrefectClient, name: str) -> Pool | None:
    """What is declared of a pool; `None` if nothing is, or if it cannot be read.

    Raises:
        httpx.HTTPError: The API failed.
    """
    variable = await client.read_variable_by_name(pool_variable_name(name))
    if variable is None:
        return None
    try:
        return parse_pool_value(variable.value)
    except ValueError:
        return None


async def refresh_pool_line(
    client: PrefectClient, pool_name: str, cluster: Cluster, *, known: WorkPool | None = None
) -> bool:
    """Bring our line in the pool's description up to date; the user's text stays as it is.

    Args:
        client: A client in use.
        pool_name: The work pool.
        cluster: From `read_cluster`.
        known: The pool as the caller read it lately. If its description is right already, no
            request is sent; else the pool is read again first, for a text that the user has just
            changed.

    Returns:
        True if the description was changed. Also False for a pool that is gone.

    Raises:
        httpx.HTTPError: The API failed (on Prefect Cloud: 403 for a key that may not edit pools).
    """
    pool = next((pool for pool in cluster.pools if pool.name == pool_name), Pool(name=pool_name))
    line = pool_line(pool, cluster.nodes)
    if known is not None and _is_shown(known.description, line):
        return False
    try:
        work_pool = await client.read_work_pool(pool_name)
        if _is_shown(work_pool.description, line):
            return False
        description = with_tag_line(work_pool.description, line)
        await client.update_work_pool(pool_name, WorkPoolUpdate(description=description))
    except ObjectNotFound:
        return False
    return True


def _is_shown(description: str | None, line: str | None) -> bool:
    return with_tag_line(description, line) == (description or "")


async def _read_work_pool(client: PrefectClient, name: str) -> WorkPool:
    try:
        return await client.read_work_pool(name)
    except ObjectNotFound:
        existing = await client.read_work_pools()
        raise PoolNotFound(name, [pool.name for pool in existing]) from None


async def _refresh_now(
    client: PrefectClient, work_pool: WorkPool, now: datetime | None, liveness_seconds: float
) -> None:
    cluster = await read_cluster(client, now=now, liveness_seconds=liveness_seconds)
    await refresh_pool_line(client, work_pool.name, cluster)
