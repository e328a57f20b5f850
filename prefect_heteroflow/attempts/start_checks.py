"""What a worker checks before it starts, and what of its surroundings it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.backend import WorkerCannotStart
from prefect_heteroflow.infra.node_probe import parse_declared_gpus
from prefect_heteroflow.user_rules_file import load_user_rules

if TYPE_CHECKING:
    from prefect.client.schemas.objects import WorkPool

    from prefect_heteroflow.core.user_rules import UserRule
    from prefect_heteroflow.settings import HeteroflowSettings


async def check_pool_type_of(pool_name: str, worker_type: str) -> None:
    """`check_pool_type` for a worker that has no client yet.

    A pool that does not exist is fine: Prefect creates it for the worker. So is an API that does
    not answer: the check is made again with the first heartbeat.

    Raises:
        WorkerCannotStart: The pool is for workers of another type.
    """
    try:
        async with get_client() as client:
            pool = await client.read_work_pool(pool_name)
    except (ObjectNotFound, httpx.HTTPError):
        return
    check_pool_type(pool, worker_type)


def check_pool_type(pool: WorkPool, worker_type: str) -> None:
    """Refuse a pool of another type, of which Prefect itself only warns.

    Where a run may be placed follows from the type of its pool: under another worker, images would
    be sent where nothing starts containers, and lost attempts would be nobody's.

    Raises:
        WorkerCannotStart: The pool is for workers of another type.
    """
    if pool.type != worker_type:
        raise WorkerCannotStart(
            f"Work pool {pool.name!r} is of type {pool.type!r} and this worker of type"
            f" {worker_type!r}: start it with `--type {pool.type}`, or for a pool of its own type"
            f" (`prefect work-pool create NAME --type {worker_type}`)."
        )


def declared_gpus(settings: HeteroflowSettings) -> tuple[int, ...] | None:
    """Memory of each GPU that the settings declare, MiB; `None` if they declare nothing.

    Raises:
        WorkerCannotStart: The declaration cannot be read.
    """
    text = settings.node_gpus
    try:
        return None if text is None else parse_declared_gpus(text)
    except ValueError as error:
        raise WorkerCannotStart(str(error)) from error


def rules_of_file(settings: HeteroflowSettings) -> tuple[UserRule, ...]:
    """The rules of the file that the settings name; none if they name none.

    Raises:
        WorkerCannotStart: The file cannot be read, or a rule of it is wrong.
    """
    path = settings.rules_file
    if path is None:
        return ()
    try:
        return load_user_rules(path)
    except ValueError as error:
        raise WorkerCannotStart(str(error)) from error
