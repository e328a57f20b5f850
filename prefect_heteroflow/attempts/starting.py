"""The start of an attempt, which takes minutes where an image has to be pulled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
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
