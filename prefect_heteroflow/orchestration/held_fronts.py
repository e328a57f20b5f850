"""Front runs whose attempt run a circuit breaker holds: what they say, and how they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled, Cancelling

from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient


async def say_held(client: PrefectClient, attempt_run: FlowRun, keys: Sequence[str]) -> None:
    """Say on the front run that its attempt waits for approval, and how to give it.

    Raises:
        httpx.HTTPError: The API failed.
    """
    front_id = transitions.task_id_of(attempt_run)
    await _say(client, front_id, held_message(attempt_run, front_id, keys))


async def say_goes_on(client: PrefectClient, attempt_run: FlowRun) -> None:
    """Say on the front run that its attempt waits no more.

    Raises:
        httpx.HTTPError: The API failed.
    """
    front_id = transitions.task_id_of(attempt_run)
    pool = attempt_run.work_pool_name
    await _say(client, front_id, f"Goes on in pool {pool}, as run {attempt_run.name}.")


def held_message(attempt_run: FlowRun, front_id: UUID, keys: Sequence[str] = ()) -> str:
    """What the front run of a held attempt run says."""
    breakers = f" by the circuit breaker{'s' if len(keys) > 1 else ''} {' and '.join(keys)}"
    return (
        f"Its attempt on pool {attempt_run.work_pool_name}, run {attempt_run.name}, is held"
        f"{breakers if keys else ''}. `heteroflow breaker approve {front_id}`, or Resume of that"
        " run, lets it go on once; Cancel ends it."
    )


async def held_as(client: PrefectClient, held: Sequence[FlowRun], named: str) -> list[FlowRun]:
    """Those of the held runs that somebody names: by id or name, their own or of the front run.

    Raises:
        httpx.HTTPError: The API failed.
    """
    found = [run for run in held if named in (str(run.id), run.name)]
    if found:
        return found
    below = [run for run in held if transitions.is_attempt_run(run)]
    fronts = set()
    for part in in_parts(sorted({transitions.task_id_of(run) for run in below})):
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(part)))
        for front in await read_all_runs(client, flow_run_filter=wanted):
            if named in (str(front.id), front.name):
                fronts.add(front.id)
    return [run for run in below if transitions.task_id_of(run) in fronts]


async def _say(client: PrefectClient, front_id: UUID, message: str) -> None:
    front = await client.read_flow_run(front_id)
    if front.state is None or front.state.name != transitions.ESCALATED:
        return
    await transitions.escalate(client, front_id, message)
    # That is forced: a cancel of this very moment must not get lost.
    states = await client.read_flow_run_states(front_id)
    before = sorted(states, key=lambda state: state.timestamp)[-2]
    if before.type is StateType.CANCELLING:
        await client.set_flow_run_state(front_id, Cancelling(message=before.message))
    elif before.type is StateType.CANCELLED:
        await client.set_flow_run_state(front_id, Cancelled(message=before.message), force=True)
