"""The one clock of all machines, that of the Prefect server, for what is written to the API.

Durations on one machine are taken from `time.monotonic()`.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.core.clock_difference import ClockDifference, note_date, text_of_change

if TYPE_CHECKING:
    import httpx
    from prefect.client.orchestration import PrefectClient
    from prefect.client.orchestration.routes import ServerRoutes

# One per process: whatever it writes goes to one server.
_known = ClockDifference()
_said = 0.0


def utc_now() -> datetime:
    """The server's time, in UTC, as far as answers of it have told the difference.

    In a process that has had no answer yet it is this machine's: `request` notes the difference.
    It goes back or forth when that machine's clock is found to be wrong, or was set right.
    """
    return datetime.now(timezone.utc) + timedelta(seconds=_known.seconds)


async def request(
    client: PrefectClient, method: Any, path: ServerRoutes, **options: Any
) -> httpx.Response:
    """`client.request`, and the `Date` of the answer is noted.

    Raises:
        httpx.HTTPError: The API failed.
    """
    global _known
    sent = time.time()
    response = await client.request(method, path, **options)
    _known = note_date(_known, response.headers.get("date"), sent=sent, received=time.time())
    return response


def warn_of_difference(logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
    """Say that this machine's clock differs from the server's; again when it changed by much."""
    global _said
    text = text_of_change(_said, _known.seconds)
    if text is not None:
        _said = _known.seconds
        logger.warning("%s", text)
