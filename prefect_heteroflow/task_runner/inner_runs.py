"""Runs of the tasks that a body submits, as the flow's process knows them.

They live in the child, and only it tells the API how they end. If it dies, we do.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.events.schemas.events import Event, Resource
from prefect.events.worker import EventsWorker

_PREFIX = "prefect.task-run."
_FINAL = frozenset(kind.value for kind in TERMINAL_STATES)


class InnerRuns:
    """Those of one body that have not ended yet, each with the last event of it."""

    def __init__(self) -> None:
        self._open: dict[str, Event] = {}

    def note(self, event: Event) -> None:
        """Take up an event on its way from the child to the API."""
        if not event.event.startswith(_PREFIX):
            return
        name = event.resource.id
        if event.resource.get("prefect.state-type") in _FINAL:
            self._open.pop(name, None)
        else:
            self._open[name] = event

    def end(self, why: str) -> None:
        """The child is gone: tell the API that what is open has crashed."""
        for event in self._open.values():
            EventsWorker.instance().send(_crashed(event, why))
        self._open.clear()


def _crashed(last: Event, why: str) -> Event:
    """As the engine would have told it."""
    # By this machine's clock: the server orders the states of a task run by their stamps.
    now: Any = datetime.now(timezone.utc)
    crashed = {"type": StateType.CRASHED.value, "name": "Crashed", "message": why}
    before: dict[str, Any] = dict(last.payload["validated_state"])
    before.pop("data", None)
    labels = {
        **last.resource.root,
        "prefect.state-message": why,
        "prefect.state-name": "Crashed",
        "prefect.state-timestamp": now.isoformat(),
        "prefect.state-type": StateType.CRASHED.value,
    }
    return Event(
        id=uuid4(),
        occurred=now,
        event=f"{_PREFIX}Crashed",
        resource=Resource(root=labels),
        related=last.related,
        payload={
            "intended": {"from": before["type"], "to": StateType.CRASHED.value},
            "initial_state": before,
            "validated_state": {**crashed, "state_details": {}, "data": None},
            "task_run": {**last.payload["task_run"], "end_time": now.isoformat()},
        },
    )
