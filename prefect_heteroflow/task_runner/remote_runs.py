"""The runs that carry attempts on other pools: created, read and cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling

from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts
from prefect_heteroflow.orchestration.task_bodies import (
    FLOW_NAME,
    FLOW_RUN_LABEL,
    RUNNER_LABEL,
    SILENT,
    TASK_RUN_LABEL,
)
from prefect_heteroflow.task_runner.remote_body import DEPLOYMENT_NAME, ENTRYPOINT

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.core.policy import Retry
    from prefect_heteroflow.task_runner.attempts_elsewhere import TaskCall

_NOT_FOR_BODIES = ("command", "placement", "max_retries", "retry_strategy", "stream_output")


def is_conflict(error: httpx.HTTPError) -> bool:
    """The server does not know the parent yet."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 409


def _labels(call: TaskCall, sign: str) -> dict[str, str]:
    """Whose body the run carries."""
    task_run = call.context.task_run
    labels = {TASK_RUN_LABEL: str(task_run.id), RUNNER_LABEL: sign}
    if task_run.flow_run_id is not None:
        labels[FLOW_RUN_LABEL] = str(task_run.flow_run_id)
    return labels


async def create_run(
    call: TaskCall, decision: Retry, parameters: dict[str, Any], *, sign: str, has_parent: bool
) -> FlowRun:
    """Create the run of an attempt; the same run, if it is repeated.

    Args:
        call: The attempt.
        decision: Where it runs, and with what.
        parameters: Of the flow `task_body`.
        sign: Name of the Variable in which this process gives its sign of life.
        has_parent: Show it as a subflow of the task run.

    Raises:
        httpx.HTTPError: The API failed, or does not know the task run yet.
    """
    task_run = call.context.task_run
    async with get_client() as client:
        flow_id = await client.create_flow_from_name(FLOW_NAME)
        deployment_id = await client.create_deployment(
            flow_id=flow_id,
            name=DEPLOYMENT_NAME,
            entrypoint=ENTRYPOINT,
            description="Attempts of tasks on other pools. Created by HeteroTaskRunner.",
            tags=["heteroflow"],
            pull_steps=[],
        )
        body = {
            "flow_id": str(flow_id),
            "deployment_id": str(deployment_id),
            "name": f"{task_run.name}-attempt-{call.attempt}",
            "parameters": parameters,
            "parent_task_run_id": str(task_run.id) if has_parent else None,
            "idempotency_key": f"{task_run.id}:{call.attempt}:{parameters['seal'][:8]}",
            "labels": _labels(call, sign),
            "work_pool_name": decision.place.pool,
            "job_variables": await _job_variables(client, call, decision),
            "state": {
                "type": "SCHEDULED",
                "name": "Scheduled",
                "message": decision.reason,
                "state_details": {"scheduled_time": utc_now().isoformat()},
            },
        }
        response = await client.request("POST", "/flow_runs/", json=body)
        response.raise_for_status()
        return FlowRun.model_validate(response.json())


async def _job_variables(client: PrefectClient, call: TaskCall, decision: Retry) -> dict[str, Any]:
    """Those of the flow itself (its image, its environment), with what this attempt needs."""
    flow_run = None if call.flow_context is None else call.flow_context.flow_run
    given: dict[str, Any] = {}
    if flow_run is not None and flow_run.deployment_id is not None:
        deployment = await client.read_deployment(flow_run.deployment_id)
        given.update(deployment.job_variables or {})
    if flow_run is not None:
        given.update(flow_run.job_variables or {})
    resources, place = decision.resources, decision.place
    variables = {name: value for name, value in given.items() if name not in _NOT_FOR_BODIES}
    variables.update(memory_mb=resources.memory_mb, gpu_count=resources.gpu_count)
    # What follows is decided by the runner, once.
    variables["retry_strategy"] = "no_retry"
    for name in ("shm_mb", "gpu_memory_mb"):
        variables.pop(name, None)
        if getattr(resources, name) is not None:
            variables[name] = getattr(resources, name)
    if place.node is not None or place.avoid_nodes or place.waits_for is not None:
        variables["placement"] = {
            "prefer": place.node,
            "avoid": list(place.avoid_nodes),
            "waits_for": place.waits_for,
            "since": utc_now().isoformat(),
            "strict": False,
        }
    return variables


async def read_run(flow_run_id: UUID) -> FlowRun:
    """The run as it is now."""
    async with get_client() as client:
        return await client.read_flow_run(flow_run_id)


async def rows_of(flow_run_id: UUID) -> list[Attempt]:
    """What its worker wrote about it."""
    async with get_client() as client:
        return list(await read_attempts(client, flow_run_id))


async def cancel_run(flow_run_id: UUID, message: str) -> None:
    """Cancel it; its worker ends the process.

    Raises:
        httpx.HTTPError: The API failed.
    """
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Cancelling(message=storable(message)))


async def was_given_up(run: FlowRun) -> bool:
    """It was ended by a worker that took the process that waits, this one, for gone."""
    if run.state is None or run.state.type is not StateType.CANCELLED:
        return False
    async with get_client() as client:
        states = await client.read_flow_run_states(run.id)
    return any((state.message or "").startswith(SILENT) for state in states)
