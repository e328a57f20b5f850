"""An attempt before its start: its first row, and all that its process is told."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.admission import described
from prefect_heteroflow.attempts.backend import AttemptPlan, OnOutput
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, current_series
from prefect_heteroflow.core.job_values import DELAY_NAMES, JobValues
from prefect_heteroflow.core.resources import Gpu, Node, Resources
from prefect_heteroflow.core.user_rules import UserRule, combine_user_rules
from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.orchestration.transitions import task_id_of

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker


def new_row(flow_run: FlowRun, node: Node, attempt: int) -> Attempt:
    """The row of an attempt on this node, before it is known what it is given."""
    return Attempt(
        attempt=attempt,
        flow_run_id=str(flow_run.id),
        status=AttemptStatus.RUNNING,
        pool=node.pool,
        node=node.name,
        started=None,
        log=f"/runs/flow-run/{flow_run.id}?tab=Logs",
    )


def with_resources(row: Attempt, resources: Resources) -> Attempt:
    """The row, with what the attempt asks for."""
    return dataclasses.replace(
        row,
        memory_mb=resources.memory_mb,
        shm_mb=resources.shm_mb,
        gpu_count=resources.gpu_count,
        gpu_memory_mb=resources.gpu_memory_mb,
    )


def smallest_gpu_mb(gpus: Sequence[Gpu]) -> int | None:
    """Memory of the smallest GPU, MiB; `None` without GPUs."""
    return min((gpu.memory_mb for gpu in gpus), default=None)


def plan_attempt(
    worker: RetryingWorker,
    flow_run: FlowRun,
    configuration: RetryConfiguration,
    *,
    attempt: int,
    history: Sequence[Attempt],
    values: JobValues,
    resources: Resources,
    gpus: tuple[Gpu, ...],
    on_output: OnOutput,
    logger: logging.LoggerAdapter[Any],
) -> AttemptPlan:
    """All that starting the attempt takes; its variables are set in the configuration too.

    Args:
        worker: Its node, rules and settings are used.
        flow_run: The run of the attempt.
        configuration: The run's. Its `env` gets the variables of the attempt.
        attempt: Its number.
        history: The earlier attempts of the task, of all series.
        values: The job variables, as they were read.
        resources: What it is given of memory.
        gpus: The GPUs that it is given.
        on_output: Gets its output.
        logger: The run's: its log says on which node the attempt starts and what it is given.
    """
    task_id = str(task_id_of(flow_run))
    variables = environment.attempt_variables(
        task_id=task_id,
        attempt=attempt,
        node=worker.node.name,
        resources=resources,
        gpu_memory_mb=smallest_gpu_mb(gpus),
        previous_failure=next((row.failure for row in reversed(history) if row.failure), None),
        scratch=worker.scratch_of(task_id),
    )
    configuration.env = {**configuration.env, **variables}
    plan = AttemptPlan(
        flow_run=flow_run,
        configuration=configuration,
        task_id=task_id,
        attempt=attempt,
        resources=resources,
        gpus=gpus,
        context_json=None
        if configuration.is_plain_job
        else _context(worker, configuration, history, values, resources, gpus).to_json(),
        on_output=on_output,
    )
    logger.info(
        "Run '%s', attempt %d on node %s: %s",
        flow_run.name,
        attempt,
        worker.node.name,
        described(resources),
    )
    return plan


def rules_of(worker: RetryingWorker, values: JobValues) -> tuple[UserRule, ...]:
    """The user's own rules for an attempt: of the job, then those of the worker's file."""
    return combine_user_rules(values.retry_on, values.stop_on, worker.file_rules)


def _context(
    worker: RetryingWorker,
    configuration: RetryConfiguration,
    history: Sequence[Attempt],
    values: JobValues,
    resources: Resources,
    gpus: Sequence[Gpu],
) -> environment.AttemptContext:
    """What the engine entry decides by."""
    return environment.AttemptContext(
        policy=values.policy,
        resources=resources,
        pool=worker.node.pool,
        node=worker.node.name,
        history=tuple(current_series(history)),
        gpu_memory_mb=smallest_gpu_mb(gpus),
        containers=worker.containers,
        retry_on=(*values.retry_on, *worker.raw_file_rules),
        stop_on=tuple(values.stop_on),
        retry_exceptions=values.retry_exceptions
        if isinstance(values.retry_exceptions, bool)
        else tuple(values.retry_exceptions),
        liveness_seconds=worker.heteroflow_settings.node_liveness_seconds,
        given_delays={
            name: getattr(values.policy, name)
            for name in DELAY_NAMES
            if getattr(configuration, name) is not None
        },
    )
