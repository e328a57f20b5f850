"""Cleans up what an earlier attempt of a task left on this node, before the next one starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from prefect_heteroflow.attempts.backend import AttemptPlan, CleanupRequest
from prefect_heteroflow.attempts.gpu_shares import GpuShares
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.cleanup import CleanupReport
from prefect_heteroflow.core.job_values import JobValues
from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.infra.nvml import NvmlUnavailable, read_gpus
from prefect_heteroflow.infra.removal import remove
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# What nobody is to wait for: it never ran, or it ended as it should.
_LEFT_NOTHING = {AttemptStatus.SCHEDULED, AttemptStatus.COMPLETED, AttemptStatus.SUSPENDED}
_MOST_REMEMBERED = 1000


class RetryCleanup:
    """Cleans up on one node, and remembers how much GPU memory was free before each attempt.

    What it remembers does not outlast the worker: then nothing is waited for.
    """

    def __init__(self, gpu_shares: GpuShares) -> None:
        self._gpu_shares = gpu_shares
        self._free_mb: dict[str, Mapping[str, int]] = {}

    async def before(
        self,
        worker: RetryingWorker,
        plan: AttemptPlan,
        history: Sequence[Attempt],
        values: JobValues,
        is_cancelled: Callable[[], bool],
    ) -> str | None:
        """What was cleaned up for this attempt, as a sentence; `None` if there was nothing to do.

        Nothing that goes wrong here keeps the attempt from starting; a cancel breaks it off.
        """
        text = None
        if left_something(history, worker.node.name):
            request = CleanupRequest(
                plan=plan,
                patterns=values.cleanup_patterns,
                hook=values.cleanup_hook,
                hook_timeout_seconds=worker.heteroflow_settings.cleanup_hook_timeout,
                gpu_free_mb=self._waited_for(plan),
                is_cancelled=is_cancelled,
            )
            report = await _clean_up(worker, request)
            text = mask_secrets(report.text()) or None
            if text is not None:
                worker.get_flow_run_logger(plan.flow_run).info("%s", text)
        await self._remember(plan)
        return text

    def _waited_for(self, plan: AttemptPlan) -> Mapping[str, int]:
        # Whoever shares a GPU and came later holds memory of it for as long as it likes.
        shared = self._gpu_shares.in_use(but_for=str(plan.flow_run.id))
        known = self._free_mb.get(plan.task_id, {})
        return {uuid: free_mb for uuid, free_mb in known.items() if uuid not in shared}

    async def _remember(self, plan: AttemptPlan) -> None:
        self._free_mb.pop(plan.task_id, None)
        uuids = {gpu.uuid for gpu in plan.gpus if gpu.uuid.startswith(("GPU-", "MIG-"))}
        if not uuids:
            return
        found = await anyio.to_thread.run_sync(read_gpus)
        if isinstance(found, NvmlUnavailable):
            return
        while len(self._free_mb) >= _MOST_REMEMBERED:
            self._free_mb.pop(next(iter(self._free_mb)))
        self._free_mb[plan.task_id] = {
            gpu.uuid: gpu.free_mb for gpu in found if gpu.uuid in uuids and gpu.free_mb is not None
        }


def left_something(history: Sequence[Attempt], node: str) -> bool:
    """Whether the newest attempt that ran on this node may have left something there."""
    here = [row for row in history if row.node == node and not row.never_started]
    return bool(here) and here[-1].status not in _LEFT_NOTHING


async def remove_scratch_of_ended(worker: RetryingWorker, logger: Any) -> None:
    """Remove the scratch folders on this node of tasks that have ended, here or elsewhere."""
    folders = worker.scratch_folders
    if folders is None:
        return
    tasks = await anyio.to_thread.run_sync(folders.tasks)
    idle = [task_id for task_id in tasks if not worker.lives.has_task(task_id)]
    for asked in in_parts(idle):
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(asked)))
        runs = await read_all_runs(worker.client, flow_run_filter=wanted)
        under_way = {run.id for run in runs if run.state is None or not run.state.is_final()}
        for task_id in asked:
            if task_id in under_way or worker.lives.has_task(task_id):
                continue
            aside = folders.set_aside(task_id)
            if aside is not None:
                removal = await anyio.to_thread.run_sync(partial(remove, aside))
                if removal.problem is not None:
                    logger.warning("%s could not be removed: %s", aside, removal.problem)


async def _clean_up(worker: RetryingWorker, request: CleanupRequest) -> CleanupReport:
    try:
        return await worker.clean_up(request)
    except Exception as error:
        # A fault of the cleanup, whatever it is, must not keep the retry from starting.
        said = f"it broke off ({type(error).__name__}: {error})"
        return CleanupReport(problems=(said,))
