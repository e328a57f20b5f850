"""When a flow run was last heard of by Prefect's own heartbeat events."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.events.filters import (
    EventFilter,
    EventNameFilter,
    EventOrder,
    EventResourceFilter,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_HEARTBEAT = "prefect.flow-run.heartbeat"


async def last_heartbeat(client: PrefectClient, flow_run_id: UUID) -> float | None:
    """Time of the newest heartbeat of a run, seconds since the epoch on the run's own clock.

    The engine sends one every `PREFECT_FLOWS_HEARTBEAT_FREQUENCY` seconds, 180 at first; a plain
    job sends none.

    Raises:
        httpx.HTTPError: The API failed.
    """
    wanted = EventFilter(
        event=EventNameFilter(name=[_HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{flow_run_id}"]),
        order=EventOrder.DESC,
    )
    response = await client.request(
        "POST", "/events/filter", json={"filter": wanted.model_dump(mode="json"), "limit": 1}
    )
    response.raise_for_status()
    events = response.json()["events"]
    if not events:
        return None
    return _epoch(events[0]["occurred"])


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
