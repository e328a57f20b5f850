"""Runs that an open circuit breaker holds: paused as `AwaitingApproval` until a person decides.

The state is PAUSED with `pause_reschedule`, as that of a suspended flow. So the server itself does
what is needed: `Resume` schedules the run (`Resuming`) and a worker takes it, `Cancel` ends it at
once as `Cancelled`, since there is no infrastructure; without a `pause_timeout` nothing expires
it. What holds the run stands in one of its labels. All of it is pinned by
`tests/surface/test_approval.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateDetails, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import AwaitingRetry, Cancelled

from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.run_pages import read_all_runs
from prefect_heteroflow.orchestration.sent_once import set_state_once, state_as_json
from prefect_heteroflow.orchestration.transitions import spare_own_retries

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

AWAITING_APPROVAL = "AwaitingApproval"
RESUMING = "Resuming"
"""Name that the server gives the state after Resume."""
HELD_LABEL = "heteroflow.held"
REFUSALS_ARE_SEEN_FOR = timedelta(days=1)
_SEEN_AGAIN = timedelta(minutes=30)  # clocks of nodes may differ by less

_OUT_OF_REACH = timedelta(seconds=120)  # see `transitions`: no worker looks there yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What holds a run."""

    holder: str
    """Name of the attempt that waits, `<task id>:<attempt>`."""
    keys: tuple[str, ...]
    """The breakers that it has to pass."""
    released: bool = False
    """They have let it go on, and no worker has started it yet."""


async def await_approval(
    client: PrefectClient,
    flow_run: FlowRun,
    *,
    hold: Hold,
    message: str,
    job_variables: dict[str, Any],
    now: datetime,
) -> bool:
    """Park a run instead of scheduling its retry; takes the place of `transitions.await_retry`.

    Job variables can be changed only while a run is scheduled, so it is scheduled where no worker
    looks yet, patched, and then paused.

    Args:
        client: A client in use.
        flow_run: The run. It needs a deployment, as any run that is to be scheduled again.
        hold: What holds it.
        message: Why, for whoever looks at the run.
        job_variables: Those of the attempt that waits; all of them.
        now: The time, with a time zone.

    Returns:
        `False` if the server refused, as it does when the run was cancelled or has ended.

    Raises:
        httpx.HTTPError: The API failed.
    """
    current = (await client.read_flow_run(flow_run.id)).state
    if current is not None and current.is_final():
        return False  # the rules would let a run that has ended be scheduled again
    await write_hold(client, flow_run, hold)
    await spare_own_retries(client, flow_run)
    message = storable(message)
    out_of_reach: State[Any] = AwaitingRetry(scheduled_time=now + _OUT_OF_REACH, message=message)
    if not await set_state_once(client, flow_run.id, state_as_json(out_of_reach)):
        return False
    try:
        await client.update_flow_run(flow_run.id, job_variables=job_variables)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (400, 404, 409, 422):
            return False
        raise
    paused = State[Any](
        type=StateType.PAUSED,
        name=AWAITING_APPROVAL,
        message=message,
        state_details=StateDetails(pause_reschedule=True),
    )
    # Forced, because the rules pause only what runs; so a cancel of this very moment is checked.
    await set_state_once(client, flow_run.id, state_as_json(paused), force=True)
    return not await _cancelled_before_pause(client, flow_run)


async def _cancelled_before_pause(client: PrefectClient, flow_run: FlowRun) -> bool:
    """Whether the forced pause came after a cancel; the run is cancelled again then."""
    states = await client.read_flow_run_states(flow_run.id)
    before = sorted(states, key=lambda state: state.timestamp)[-2]
    if before.type not in (StateType.CANCELLING, StateType.CANCELLED):
        return False
    await client.set_flow_run_state(flow_run.id, Cancelled(message=before.message), force=True)
    return True


async def approve_run(client: PrefectClient, flow_run: FlowRun) -> bool:
    """What `Resume` in the UI does; `False` if the run does not wait any more.

    Raises:
        httpx.HTTPError: The API failed.
    """
    result = await client.resume_flow_run(flow_run.id)
    return result.status.value == "ACCEPT"


def is_held(flow_run: FlowRun) -> bool:
    """It waits for approval."""
    return flow_run.state is not None and flow_run.state.name == AWAITING_APPROVAL


async def was_resumed(client: PrefectClient, flow_run: FlowRun) -> bool:
    """A held run that a person let go on and that no worker has started yet.

    Since Resume it may have waited for a slot of a concurrency limit, or been given back.

    Raises:
        httpx.HTTPError: The API failed.
    """
    state, hold = flow_run.state, hold_of(flow_run)
    if hold is None or hold.released or state is None or is_held(flow_run):
        return False
    if state.name == RESUMING:
        return True
    states = await client.read_flow_run_states(flow_run.id)
    names = [it.name for it in sorted(states, key=lambda it: it.timestamp)]
    if AWAITING_APPROVAL in names:
        names = names[len(names) - names[::-1].index(AWAITING_APPROVAL) :]
    return RESUMING in names


def hold_of(flow_run: FlowRun) -> Hold | None:
    """What holds the run, or held it until a worker starts it; `None` if nothing does."""
    try:
        value = json.loads(str(flow_run.labels.get(HELD_LABEL) or "null"))
        return Hold(
            holder=str(value["holder"]),
            keys=tuple(map(str, value["keys"])),
            released=value.get("released") is True,
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


async def write_hold(client: PrefectClient, flow_run: FlowRun, hold: Hold | None) -> None:
    """Note on the run what holds it, or that nothing does any more.

    Raises:
        httpx.HTTPError: The API failed.
    """
    value: dict[str, Any] = {}
    if hold is not None:
        value = {"holder": hold.holder, "keys": list(hold.keys)}
        value |= {"released": True} if hold.released else {}
    text = json.dumps(value) if value else ""
    await client.update_flow_run_labels(flow_run.id, {HELD_LABEL: text})


async def read_held(client: PrefectClient) -> list[FlowRun]:
    """Runs that wait for approval, in the order in which they were due.

    Raises:
        httpx.HTTPError: The API failed.
    """
    state = FlowRunFilterState(name=FlowRunFilterStateName(any_=[AWAITING_APPROVAL]))
    return await _read(client, FlowRunFilter(state=state), FlowRunSort.EXPECTED_START_TIME_ASC)


async def read_cancelled(
    client: PrefectClient, *, now: datetime, seen_until: datetime | None = None
) -> list[FlowRun]:
    """Runs that were cancelled lately.

    The server ends those itself that wait, so no worker hears a `Cancelling`.

    Args:
        client: A client in use.
        now: The time, with a time zone.
        seen_until: When the caller last closed all of them. Without it every cancelled run of the
            last day comes back.

    Raises:
        httpx.HTTPError: The API failed.
    """
    since = now - REFUSALS_ARE_SEEN_FOR
    if seen_until is not None:
        since = max(since, seen_until - _SEEN_AGAIN)
    return await _read(
        client,
        FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLED])),
            end_time=FlowRunFilterEndTime.model_validate({"after_": since}),
        ),
        FlowRunSort.END_TIME_DESC,
    )


async def _read(client: PrefectClient, where: FlowRunFilter, sort: FlowRunSort) -> list[FlowRun]:
    return await read_all_runs(client, flow_run_filter=where, sort=sort)


def waiting_message(reason: str, keys: Sequence[str]) -> str:
    """The message of `AwaitingApproval`: why, and what to press."""
    held_by = f"the circuit breaker{'s' if len(keys) > 1 else ''} {' and '.join(keys)}"
    return (
        f"Not restarted, held by {held_by}. {reason} Resume lets it go on once; Cancel ends it;"
        " `heteroflow breaker ls` shows the breakers."
    )
