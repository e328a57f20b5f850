"""The attempt that a retry plans: its row, closed too if it never starts, and its job variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.policy import Ending, Retry, RetryStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """The attempt that follows at once on the same node."""

    flow_run: FlowRun
    """The run as it was scheduled again, with its new job variables."""
    history: tuple[Attempt, ...]


def planned_row(decision: Retry, attempt: int, *, flow_run_id: UUID | None) -> Attempt:
    """The row of an attempt that is scheduled.

    Args:
        decision: What it is to have, and where.
        attempt: Its number.
        flow_run_id: Its run; `None` if that is yet to be created on another pool.
    """
    return Attempt(
        attempt=attempt,
        flow_run_id="" if flow_run_id is None else str(flow_run_id),
        status=AttemptStatus.SCHEDULED,
        pool=decision.place.pool,
        node=decision.place.node,
        memory_mb=decision.resources.memory_mb,
        shm_mb=decision.resources.shm_mb,
        gpu_count=decision.resources.gpu_count,
        gpu_memory_mb=decision.resources.gpu_memory_mb,
    )


def next_row_like(last: Attempt) -> Attempt:
    """The row of an attempt that follows one that has ended, in the same pool and of the same size.

    Args:
        last: The one before it.
    """
    return Attempt(
        attempt=last.attempt + 1,
        flow_run_id=last.flow_run_id,
        status=AttemptStatus.SCHEDULED,
        pool=last.pool,
        memory_mb=last.memory_mb,
        shm_mb=last.shm_mb,
        gpu_count=last.gpu_count,  # its GPU memory is what it got, not what it asked for
    )


def never_started_row(
    planned: Attempt,
    why: str,
    *,
    flow_run_id: UUID,
    now: datetime,
    ended_task: bool = False,
    ending: Ending | None = None,
) -> Attempt:
    """The row of a planned attempt that is closed before its start.

    Args:
        planned: Its row.
        why: For a person.
        flow_run_id: The run that waited for it, if the row names none.
        now: When it is closed.
        ended_task: Whether nothing follows.
        ending: How the task ends with it; `None` if an attempt before it, or a person, ended it.
    """
    return dataclasses.replace(
        planned,
        flow_run_id=planned.flow_run_id or str(flow_run_id),
        status=AttemptStatus.CANCELLED,
        decision=why,
        ended=now.isoformat(),
        ended_task=ended_task,
        ending=None if ending is None else ending.value,
        never_started=True,
    )


def next_job_variables(
    given: Mapping[str, Any], decision: Retry, strategy: RetryStrategy, *, now: datetime
) -> dict[str, Any]:
    """The job variables with which the next attempt is scheduled.

    Args:
        given: Those of the run so far.
        decision: What it is to have, and where.
        strategy: `retry_same_node` keeps it off all nodes that the decision avoids.
        now: From then on the preferred node has its time of grace (see `placement`).
    """
    resources, place = decision.resources, decision.place
    variables: dict[str, Any] = {
        **given,
        "memory_mb": resources.memory_mb,
        "gpu_count": resources.gpu_count,
    }
    for name in ("shm_mb", "gpu_memory_mb"):
        value = getattr(resources, name)
        if value is not None:
            variables[name] = value
    variables.pop("placement", None)
    if place.node is not None or place.avoid_nodes or place.waits_for is not None:
        variables["placement"] = {
            "prefer": place.node,
            "avoid": list(place.avoid_nodes),
            "waits_for": place.waits_for,
            "since": now.isoformat(),
            "strict": strategy is RetryStrategy.RETRY_SAME_NODE,
        }
    return variables
