"""Every change of a flow run's state that this package makes, one function each.

What each one relies on was measured on Prefect 3.9.1 and is pinned by
`tests/surface/test_transitions.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

import anyio
import httpx
from prefect import Task
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Cancelled, Completed, Failed, Pending, Running, Submitting

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.edited_variables import with_edits
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.sent_once import set_state_once, state_as_json

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

ESCALATED = "Escalated"
ATTEMPT_FAILED = "AttemptFailed"
AWAITING_RETRY = str(AwaitingRetry().name)
"""Every attempt that a worker has planned waits in this state."""
NEVER_PLANNED = ("Scheduled", "Late")
"""Runs wait in them that no worker has planned; a planned attempt can wait in any other state."""
AWAITING_END = "AwaitingEnd"
"""Scheduled again while an attempt of the run still runs."""
SUBMITTING = Submitting().name
TASK_ID_LABEL = "heteroflow.task-id"
ATTEMPT_LABEL = "heteroflow.attempt"
NODE_LABEL = "heteroflow.node"
"""Of the node whose worker has taken the run; several workers may have one name."""

# The state `AwaitingRetry` carries under these keys the job variables of the next attempt, and
# those that the run itself had when that was planned: a person may edit them while it waits.
_STATE_DATA_KEY = "heteroflow-job-variables"
_BEFORE_KEY = "heteroflow-job-variables-before"
_SHOWING_SECONDS = 0.5


def task_id_of(flow_run: FlowRun) -> UUID:
    """Id of the front run that this run works for: its own, unless it is an attempt run."""
    label = flow_run.labels.get(TASK_ID_LABEL)
    return flow_run.id if label is None else UUID(str(label))


def has_stood_still(before: FlowRun, now: FlowRun) -> bool:
    """Whether the run is in the very state in which it was read before."""
    if before.state is None or now.state is None:
        return False
    return before.state.id == now.state.id


def is_waiting_pause(state: State[Any]) -> bool:
    """Whether a flow waits in its process for Resume (`pause_flow_run`): it is not suspended."""
    paused = state.type is StateType.PAUSED and not state.state_details.pause_reschedule
    return paused and state.name != ESCALATED


def is_attempt_run(flow_run: FlowRun) -> bool:
    """It was created by a worker to carry an attempt of another run."""
    return TASK_ID_LABEL in flow_run.labels


def job_variables_of(flow_run: FlowRun) -> dict[str, Any]:
    """The run's job variables, those of its next attempt among them, and a person's edits of it."""
    own = dict(flow_run.job_variables or {})
    data = None if flow_run.state is None else flow_run.state.data
    if not isinstance(data, Mapping) or not data.get(_STATE_DATA_KEY):
        return own
    planned, before = data[_STATE_DATA_KEY], data.get(_BEFORE_KEY)
    if before is None:  # planned by an earlier version
        return {**own, **planned}
    return with_edits(planned, before=before, now=own)


def carries_job_variables(flow_run: FlowRun) -> bool:
    """Whether `job_variables_of` knows those of the planned attempt.

    They are lost where the server puts another state in the place of `AwaitingRetry`.
    """
    data = None if flow_run.state is None else flow_run.state.data
    return isinstance(data, Mapping) and bool(data.get(_STATE_DATA_KEY))


def _carrying(state: State[Any], variables: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    data = {_STATE_DATA_KEY: variables, _BEFORE_KEY: own}
    return {**state_as_json(state), "data": data}


async def await_retry(
    client: PrefectClient,
    flow_run: FlowRun,
    *,
    due: datetime,
    message: str,
    job_variables: dict[str, Any],
) -> bool:
    """Schedule the same run again at `due` with new job variables (see `job_variables_of`).

    `False` if the server refused, as it does when the run was cancelled or deleted meanwhile.
    """
    await spare_own_retries(client, flow_run)
    # The variables go with the state, in one request. A PATCH of `job_variables` takes the server
    # 150 ms between its read and its write; on SQLite any write of others in between makes it fail
    # with 503, again and again when many runs fail at once. And no worker can take the run with
    # its old variables in between.
    state: State[Any] = AwaitingRetry(scheduled_time=due, message=message)
    # Read anew: after a retry in place, `flow_run` has the variables that were planned for that.
    own = (await client.read_flow_run(flow_run.id)).job_variables or {}
    body = _carrying(state, job_variables, own)
    return await set_state_once(client, flow_run.id, body)


async def await_end(
    client: PrefectClient, flow_run: FlowRun, *, due: datetime, message: str
) -> bool:
    """Give a run back that has not been started, because an attempt of it runs; as `AwaitingEnd`.

    `False` if the server refused, as it does when the run was cancelled or deleted meanwhile.
    """
    return await _give_back(client, flow_run, AWAITING_END, due, message)


async def stop_awaiting_end(client: PrefectClient, flow_run: FlowRun, *, message: str) -> bool:
    """The attempt has ended: the run is due."""
    return await _give_back(client, flow_run, AWAITING_RETRY, utc_now(), message)


async def _give_back(
    client: PrefectClient, flow_run: FlowRun, name: str, due: datetime, message: str
) -> bool:
    state: State[Any] = AwaitingRetry(scheduled_time=due, message=message)
    state.name = name
    # Whoever takes the run next needs what the state carried that it was taken from.
    body = _carrying(state, job_variables_of(flow_run), flow_run.job_variables or {})
    return await set_state_once(client, flow_run.id, body)


def waits_for_own_retry(flow_run: FlowRun) -> bool:
    """Its process sleeps until a retry of the flow's own `retries` is due.

    The server keeps such a run from all workers: if the process dies, nobody starts the run.
    """
    state, policy = flow_run.state, flow_run.empirical_policy
    return state is not None and state.is_scheduled() and policy.retry_type == "in_process"


async def suspend_paused(client: PrefectClient, flow_run: FlowRun, *, message: str) -> None:
    """Let Resume schedule a run that was paused: the process that waited for it is gone.

    Nothing is done if the run is in another state by now.
    """
    now = await client.read_flow_run(flow_run.id)
    if now.state is None or not has_stood_still(flow_run, now):
        return
    paused = state_as_json(now.state)
    paused["message"] = message
    paused["state_details"]["pause_reschedule"] = True
    # The rules pause only what runs, and suspend no subflow.
    await set_state_once(client, flow_run.id, paused, force=True)


async def let_workers_take(client: PrefectClient, flow_run: FlowRun) -> None:
    """Of a flow that suspended itself: its process has ended, and Resume is to start another one.

    After one of the flow's own retries the server keeps the run from all workers, Resume or not.
    """
    policy = flow_run.empirical_policy
    if policy.retry_type == "in_process":
        policy = policy.model_copy(update={"retry_type": "reschedule"})
        await client.update_flow_run(flow_run.id, empirical_policy=policy)


async def spare_own_retries(client: PrefectClient, flow_run: FlowRun) -> None:
    """Before a retry of ours: it is none of the flow's own `retries`.

    Prefect compares `run_count > retries`: ours must not use up one of them. And after one of them,
    which happens within the process, the server keeps the run from all workers ("in_process").
    """
    policy = flow_run.empirical_policy
    if policy.retries:
        # In the place of one that was still to come ours is that one.
        further = 0 if waits_for_own_retry(flow_run) else 1
        changes = {"retries": policy.retries + further, "retry_type": "reschedule"}
        policy = policy.model_copy(update=changes)
        await client.update_flow_run(flow_run.id, empirical_policy=policy)


async def show_job_variables(
    client: PrefectClient, flow_run_id: UUID, job_variables: dict[str, Any]
) -> None:
    """Put them on the run's page too, if that is to be had quickly; nothing depends on it."""
    with anyio.move_on_after(_SHOWING_SECONDS), contextlib.suppress(httpx.HTTPError):
        await client.update_flow_run(flow_run_id, job_variables=job_variables)


async def propose_pending(client: PrefectClient, flow_run_id: UUID) -> bool:
    """Take a scheduled run for this worker; `False` if somebody else has it or it must wait."""
    # As core does. The first is what refuses all but one of those who want the run; the server
    # takes `Submitting` also over the `Pending` that another worker has just set.
    return await _took(client, flow_run_id, Pending()) and await _took(
        client, flow_run_id, Submitting()
    )


async def _took(
    client: PrefectClient,
    flow_run_id: UUID,
    state: State[Any],
    transition_id: UUID | None = None,
) -> bool:
    """Whether the run is in the proposed state by this very request.

    The client sends it again when no answer came. The server tells such a second one apart by its
    id only, and answers it with the state that the first one has set.
    """
    sent = str(transition_id or uuid4())
    body = {
        "state": {
            "type": state.type.value,
            "name": state.name,
            "state_details": {"transition_id": sent},
        },
    }
    response = await client.request(
        "POST", "/flow_runs/{id}/set_state", path_params={"id": flow_run_id}, json=body
    )
    response.raise_for_status()
    result = OrchestrationResult[Any].model_validate(response.json())
    if result.state is None or result.state.type is not state.type:
        return False
    is_ours = str(result.state.state_details.transition_id) == sent
    return result.status.value == "ACCEPT" or is_ours


async def escalate(client: PrefectClient, flow_run_id: UUID, message: str) -> None:
    """Park the front run as `Escalated`: not final, and it holds no concurrency slot."""
    state = State[Any](type=StateType.PAUSED, name=ESCALATED, message=message)
    await set_state_once(client, flow_run_id, state_as_json(state), force=True)


async def create_attempt_run(
    client: PrefectClient,
    front: FlowRun,
    *,
    attempt: int,
    pool: str,
    job_variables: dict[str, Any],
    due: datetime,
    message: str,
) -> FlowRun:
    """Create the run of an attempt on another pool, as a subflow run of the front run.

    Repeating the call for the same attempt returns the same run.
    """
    task_run = await client.create_task_run(
        task=Task(fn=_attempt, name=f"attempt on {pool}"),
        flow_run_id=front.id,
        dynamic_key=f"heteroflow-attempt-{attempt}",
        name=f"attempt {attempt} on {pool}",
    )
    # After one of the user's own retries the server would keep this run too from all workers.
    policy = front.empirical_policy.model_copy(update={"retry_type": None})
    if policy.retries is not None:
        # What the user's own retries have left: run_count - 1 of them are used.
        left = max(0, policy.retries - max(0, front.run_count - 1))
        policy = policy.model_copy(update={"retries": left})
    state: State[None] = AwaitingRetry(scheduled_time=due, message=storable(message))
    body = {
        "flow_id": str(front.flow_id),
        "deployment_id": None if front.deployment_id is None else str(front.deployment_id),
        "name": f"{front.name}-attempt-{attempt}",
        "parameters": front.parameters,
        "context": front.context or {},
        "tags": list(front.tags),
        "parent_task_run_id": str(task_run.id),
        "idempotency_key": f"{front.id}:{attempt}",
        "labels": {TASK_ID_LABEL: str(front.id), ATTEMPT_LABEL: attempt},
        "work_pool_name": pool,
        "job_variables": job_variables,
        "empirical_policy": policy.model_dump(mode="json"),
        "state": {
            "type": state.type.value,
            "name": state.name,
            "message": state.message,
            "state_details": {"scheduled_time": due.isoformat()},
        },
    }
    # `create_flow_run_from_deployment` knows no pool and `create_flow_run` no deployment.
    response = await client.request("POST", "/flow_runs/", json=body)
    response.raise_for_status()
    return FlowRun.model_validate(response.json())


def _attempt() -> None:
    """Stands for an attempt in the front run's timeline; never called."""


async def finish(
    client: PrefectClient, flow_run_id: UUID, state: State[Any], *, force: bool = False
) -> bool:
    """End a run. `False` when the server refused, as it does for a run that has ended already."""
    return await set_state_once(client, flow_run_id, state_as_json(state), force=force)


async def cancel_for_good(client: PrefectClient, flow_run_id: UUID, message: str) -> None:
    """End a run as `Cancelled`, also from `Escalated` or `AwaitingRetry`; not if it has ended."""
    run = await client.read_flow_run(flow_run_id)
    if run.state is not None and run.state.is_final():
        return
    await _set_once(client, flow_run_id, Cancelled(message=message), once="cancelled")


async def take_over(client: PrefectClient, front_id: UUID, state: State[Any]) -> None:
    """End the front run as its attempt run ended: same type, name, message and result.

    A front run that has ended already keeps its end.
    """
    front = await client.read_flow_run(front_id)
    if front.state is not None and front.state.is_final():
        return
    await _set_once(client, front_id, state, once=f"ends as {state.id}")


async def _set_once(
    client: PrefectClient, flow_run_id: UUID, state: State[Any], *, once: str
) -> None:
    """Set a state that several workers may set at the same moment.

    The server takes a transition with the same id only once; the Python client would give each
    request an id of its own.
    """
    # What else the details say is of the run from which the state was read.
    body = {**state_as_json(state), "state_details": {}}
    await set_state_once(client, flow_run_id, body, transition_id=uuid5(flow_run_id, once))


def ended_state(ending: str, message: str) -> State[Any]:
    """The terminal state for the name of an ending (`core.policy.Ending`)."""
    if ending == "Cancelled":
        return Cancelled(message=message)
    if ending == "Crashed":
        return State(type=StateType.CRASHED, name="Crashed", message=message)
    return Failed(name=ending, message=message)


def end_by(row: Attempt) -> State[Any]:
    """The terminal state of a task that has ended with this attempt (`core.attempts.ending_row`).

    What a flow has returned is not in it: that is known to the state of its own run alone.
    """
    if row.status is AttemptStatus.COMPLETED:
        return completed_state(f"Attempt {row.attempt} ended well.")
    otherwise = "Cancelled" if row.status is AttemptStatus.CANCELLED else "Failed"
    return ended_state(row.ending or otherwise, row.decision or "")


def running_state(message: str | None = None) -> State[Any]:
    """The state of a plain job whose container has started."""
    return Running(message=message)


def completed_state(message: str) -> State[Any]:
    """The state of a plain job that ended well."""
    return Completed(message=message)
