"""Events that automations can match: one for each attempt that failed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.events import emit_event

ATTEMPT_FAILED_EVENT = "prefect-heteroflow.attempt.failed"


def emit_attempt_event(
    flow_run: FlowRun,
    *,
    task_id: UUID,
    attempt: int,
    failure: str,
    rule: str,
    verdict: str,
    node: str,
    pool: str,
) -> None:
    """Emit `prefect-heteroflow.attempt.failed`.

    The failure class and the verdict are labels of the resource, so that an automation can match
    them: `retry`, `stop`, or `runner` for a task's attempt, of which its flow decides. Flow run,
    front run, deployment and pool are related resources.
    """
    related: list[dict[str, str]] = [
        _related("flow-run", flow_run.id, flow_run.name),
        {
            "prefect.resource.id": f"prefect.flow-run.{task_id}",
            "prefect.resource.role": "front-run",
        },
        {
            "prefect.resource.id": f"prefect-heteroflow.pool.{pool}",
            "prefect.resource.role": "pool",
            "prefect.resource.name": pool,
        },
    ]
    if flow_run.deployment_id is not None:
        related.append(_related("deployment", flow_run.deployment_id, None))
    payload: dict[str, Any] = {
        "attempt": attempt,
        "failure": failure,
        "rule": rule,
        "verdict": verdict,
        "node": node,
        "pool": pool,
    }
    emit_event(
        event=ATTEMPT_FAILED_EVENT,
        resource={
            "prefect.resource.id": f"prefect-heteroflow.task.{task_id}",
            "prefect.resource.name": flow_run.name,
            "prefect-heteroflow.failure": failure,
            "prefect-heteroflow.verdict": verdict,
        },
        related=related,
        payload=payload,
    )


def _related(role: str, identifier: UUID, name: str | None) -> dict[str, str]:
    resource = {
        "prefect.resource.id": f"prefect.{role}.{identifier}",
        "prefect.resource.role": role,
    }
    if name is not None:
        resource["prefect.resource.name"] = name
    return resource
