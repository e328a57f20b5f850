"""The start of an attempt, which takes minutes where an image has to be pulled; and its telling."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import httpx
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.insisting import insist

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.attempts.backend import AttemptBackend, AttemptHandle, AttemptPlan


async def start_unless_cancelled(
    backend: AttemptBackend, plan: AttemptPlan, cancelled: anyio.Event
) -> AttemptHandle | None:
    """Start the attempt; `None` if a cancel came while nothing of it had been started.

    Raises:
        AttemptNotStarted: The engine refused.
    """
    handle: AttemptHandle | None = None
    failed: Exception | None = None

    async with anyio.create_task_group() as group:

        async def give_up() -> None:
            await cancelled.wait()
            if backend.give_up_start(plan):
                group.cancel_scope.cancel()

        group.start_soon(give_up)
        try:
            handle = await backend.start_attempt(plan)
        except Exception as error:
            failed = error  # raised below, where no task group wraps it
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return handle


async def say_command_runs(client: PrefectClient, flow_run_id: UUID, message: str) -> bool:
    """Set the state of a plain job's run, whose command reports no state of its own.

    Returns:
        `False` if the run was cancelled meanwhile: the server would let it run on from there.

    Raises:
        httpx.HTTPError: The API failed.
    """
    run = await client.read_flow_run(flow_run_id)
    if run.state is not None and (run.state.is_cancelled() or run.state.is_cancelling()):
        return False
    await transitions.finish(client, flow_run_id, transitions.running_state(message))
    return True


async def tell_start(
    step: Callable[[], Awaitable[None]],
    logger: logging.LoggerAdapter[Any],
    ended: anyio.Event,
) -> None:
    """Tell the API that the attempt runs, again and again until it takes it or that has ended."""
    try:
        await insist(step, logger, "its start", until=ended)
    except (ObjectNotFound, httpx.HTTPStatusError) as error:
        # Deleted, perhaps. The process runs: what it comes to is seen at its end.
        logger.warning("The start of the attempt could not be told: %s", error)


async def store_identifier(
    client: PrefectClient,
    flow_run_id: UUID,
    identifier: str,
    logger: logging.LoggerAdapter[Any],
) -> None:
    """As core stores it for the attempts that it has submitted itself."""
    try:
        await client.update_flow_run(flow_run_id, infrastructure_pid=identifier)
    except httpx.HTTPError as error:
        logger.warning("The identifier of the attempt could not be stored: %s", error)
