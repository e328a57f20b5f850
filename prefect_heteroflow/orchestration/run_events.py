"""Hears of flow runs as their states change, through the API's event stream."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import anyio
from prefect.events import Event
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter

DUE = frozenset({"prefect.flow-run.Scheduled", "prefect.flow-run.AwaitingRetry"})
AWAITING_END = "prefect.flow-run.AwaitingEnd"
CANCELLING = "prefect.flow-run.Cancelling"
CANCELLED = "prefect.flow-run.Cancelled"
_FLOW_RUN = "prefect.flow-run."
_RECONNECT_SECONDS = 5.0


def flow_run_id_of(event: Event) -> UUID | None:
    """Id of the flow run that the event is about."""
    identifier = event.resource.id
    if not identifier.startswith(_FLOW_RUN):
        return None
    try:
        return UUID(identifier.removeprefix(_FLOW_RUN))
    except ValueError:
        return None


def concerns_pool(event: Event, pool_id: UUID) -> bool:
    """Whether the event's run belongs to the pool."""
    wanted = f"prefect.work-pool.{pool_id}"
    return any(related.id == wanted for related in event.related)


async def listen(
    on_event: Callable[[Event], Awaitable[None]],
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> None:
    """Pass each event on until cancelled; reconnects when the stream breaks.

    Whatever is missed meanwhile is found by the regular polls: this is only the fast way.
    """
    wanted = EventFilter(
        event=EventNameFilter(name=sorted(DUE | {AWAITING_END, CANCELLING, CANCELLED}))
    )
    while True:
        try:
            async with get_events_subscriber(filter=wanted) as subscriber:
                async for event in subscriber:
                    await _handle(event, on_event, logger)
        except Exception as error:
            logger.debug("The event stream broke (%s); connecting again.", error)
        await anyio.sleep(_RECONNECT_SECONDS)


async def _handle(
    event: Event,
    on_event: Callable[[Event], Awaitable[None]],
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> None:
    """One event that cannot be handled must not cost the stream; the polls find what it missed."""
    try:
        await on_event(event)
    except Exception as error:
        logger.warning("The event %s could not be handled: %s", event.event, error)
