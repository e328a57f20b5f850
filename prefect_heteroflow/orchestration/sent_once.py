"""Changes of a run's state that are not made a second time when the answer to the first is lost.

Prefect's client sends a request again when no answer came. In between another worker may have
taken the run that was scheduled, or the run may have ended: the server would put it back to what
was asked for first. So each change is sent once, and the run's history says what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import anyio
import httpx
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.insisting import is_passing

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import State

_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)


def state_as_json(state: State[Any]) -> dict[str, Any]:
    """A state as the API takes it, with a message that can be stored.

    Prefect's own client would drop `data`.
    """
    data = state.data
    if data is not None and hasattr(data, "model_dump"):
        data = data.model_dump(mode="json")
    return {
        "type": state.type.value,
        "name": state.name,
        "message": storable(state.message) if state.message else state.message,
        "data": data,
        "state_details": state.state_details.model_dump(mode="json", exclude_defaults=True),
    }


async def set_state_once(
    client: PrefectClient,
    flow_run_id: UUID,
    state: dict[str, Any],
    *,
    force: bool = False,
    transition_id: UUID | None = None,
) -> bool:
    """Change the state of a run; `False` if the server refused.

    Args:
        client: A client in use.
        flow_run_id: The run.
        state: The state (see `state_as_json`).
        force: Pass over Prefect's rules.
        transition_id: The same for all workers that may make this change: the server takes it once.

    Raises:
        httpx.HTTPError: The API failed, and the change was not made as far as can be known.
    """
    sent = str(transition_id or uuid4())
    details = {**state.get("state_details", {}), "transition_id": sent}
    body = {"state": {**state, "state_details": details}, "force": force}
    pauses = iter(_PAUSES_SECONDS)
    while True:
        try:
            return await _send(client, flow_run_id, body)
        except httpx.HTTPError as error:
            pause_seconds = next(pauses, None)
            if not is_passing(error) or pause_seconds is None:
                raise
            await anyio.sleep(pause_seconds)
            if await _was_made(client, flow_run_id, sent):
                return True


async def _send(client: PrefectClient, flow_run_id: UUID, body: dict[str, Any]) -> bool:
    route: dict[str, Any] = {"path_params": {"id": flow_run_id}, "json": body}
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        try:
            response = await client.request("POST", "/flow_runs/{id}/set_state", **route)
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise
            # The CSRF token was too old: nothing was changed, and the client has a new one now.
            response = await client.request("POST", "/flow_runs/{id}/set_state", **route)
            response.raise_for_status()
    return bool(response.json()["status"] == "ACCEPT")


async def _was_made(client: PrefectClient, flow_run_id: UUID, transition_id: str) -> bool:
    states = await client.read_flow_run_states(flow_run_id)
    return any(str(state.state_details.transition_id) == transition_id for state in states)
