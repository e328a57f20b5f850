"""Bodies of tasks whose flow is gone: ended by any worker.

The flow's process ends them itself when it can. After a SIGKILL, or when its run was cancelled
where no worker heard of it, nobody waits for them, and they would hold their GPU to the end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.attempts.guard import Guard
from prefect_heteroflow.orchestration import task_bodies

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

# Looks come with `reconcile`, about every 15 s. After a longer pause the silence of others is as
# likely our own.
_LONGEST_PAUSE_SECONDS = 60.0


class UnwantedBodies:
    """What one worker knows of those who wait for bodies.

    Args:
        worker: Its client and settings are used.
        logger: For what is ended.
    """

    def __init__(self, worker: RetryingWorker, logger: Any) -> None:
        self._worker = worker
        self._logger = logger
        self._guard = Guard()
        self._heard: dict[str, tuple[str | None, float]] = {}
        """Variable -> its last token, and since when by our own clock."""
        self._looked_at = 0.0

    async def look(self) -> None:
        """End each body that nobody waits for.

        Raises:
            httpx.HTTPError: The API failed.
        """
        now = time.monotonic()
        if now - self._looked_at > _LONGEST_PAUSE_SECONDS:
            self._heard.clear()
        client = self._worker.client
        runs = await task_bodies.read_open(client)
        names = {str(run.labels.get(task_bodies.RUNNER_LABEL)) for run in runs}
        self._heard = {name: heard for name, heard in self._heard.items() if name in names}
        for run in runs:
            with self._guard.over(f"The body '{run.name}'", self._logger):
                why = await task_bodies.why_unwanted(client, run)
                why = why or await self._why_silent(run, now)
                if why is not None:
                    self._logger.warning("Run '%s' is ended: %s", run.name, why)
                    await task_bodies.end(client, run, why)
        self._looked_at = now

    async def _why_silent(self, run: FlowRun, now: float) -> str | None:
        label = run.labels.get(task_bodies.RUNNER_LABEL)
        if label is None:
            return None
        name = str(label)
        token = await task_bodies.read_sign(self._worker.client, name)
        before, since = self._heard.get(name, (token, now))
        if token != before:
            since = now
        self._heard[name] = token, since
        limit = self._worker.heteroflow_settings.node_liveness_seconds
        if now - since <= limit:
            return None
        return f"{task_bodies.SILENT} for {now - since:.0f} s."
