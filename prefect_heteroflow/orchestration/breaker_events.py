"""Events that automations can match: one for each change of a circuit breaker."""

from __future__ import annotations

from types import MappingProxyType

from prefect.events import emit_event

from prefect_heteroflow.core.breaker import Breaker, BreakerStatus
from prefect_heteroflow.core.valid_text import storable

BREAKER_EVENTS: MappingProxyType[BreakerStatus, str] = MappingProxyType(
    {
        BreakerStatus.OPEN: "prefect-heteroflow.breaker.opened",
        BreakerStatus.HALF_OPEN: "prefect-heteroflow.breaker.half-open",
        BreakerStatus.CLOSED: "prefect-heteroflow.breaker.closed",
    }
)
"""The event that says that a breaker has come to a status."""


def emit_breaker_event(key: str, before: Breaker, after: Breaker) -> None:
    """Emit the event of the new status; nothing if the status is the same.

    The resource is `prefect-heteroflow.breaker.<key>` with the status as a label; the deployment
    or the node is a related resource.
    """
    if before.status is after.status:
        return
    kind, _, rest = key.partition(":")
    related = []
    if kind == "deployment":
        identifier = f"prefect.deployment.{rest.partition(':')[0]}"
        related = [{"prefect.resource.id": identifier, "prefect.resource.role": "deployment"}]
    elif kind == "node":
        identifier = f"prefect-heteroflow.node.{rest}"
        related = [{"prefect.resource.id": identifier, "prefect.resource.role": "node"}]
    emit_event(
        event=BREAKER_EVENTS[after.status],
        resource={
            "prefect.resource.id": f"prefect-heteroflow.breaker.{key}",
            "prefect.resource.name": key,
            "prefect-heteroflow.status": after.status.value,
        },
        related=related,
        payload={"key": key, "before": before.status.value, "reason": storable(after.reason)},
    )
