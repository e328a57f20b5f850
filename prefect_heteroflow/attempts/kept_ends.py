"""How attempts ended is kept on disk until the API has taken what follows from it.

A container keeps its evidence until it is removed. A child process keeps none: if its worker dies
while the API is away, this is all that is known of its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio.to_thread
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow.attempts.backend import AttemptEnd
from prefect_heteroflow.attempts.outcome import went_on
from prefect_heteroflow.attempts.settling import AttemptSettling
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, from_row, to_row
from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.environment import EngineReport, report_from_json, report_to_json
from prefect_heteroflow.infra.journal import Journal
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_OPEN = (AttemptStatus.SCHEDULED, AttemptStatus.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEnd:
    """All that the decision about an ended attempt needs."""

    task_id: UUID
    row: Attempt
    end: AttemptEnd
    report: EngineReport | None
    log: str
    """What the scanner had kept of its output."""
    progress: Progress | None
    gpu_uuids: tuple[str, ...]
    gpu_memory_mb: int | None

    def to_values(self) -> dict[str, Any]:
        """As JSON has it, with secrets masked."""
        report = None if self.report is None else json.loads(report_to_json(self.report))
        values = {
            "task_id": str(self.task_id),
            "row": to_row(self.row),
            "end": dataclasses.asdict(self.end),
            "report": report,
            "log": self.log,
            "progress": None if self.progress is None else dataclasses.asdict(self.progress),
            "gpu_uuids": list(self.gpu_uuids),
            "gpu_memory_mb": self.gpu_memory_mb,
        }
        masked: dict[str, Any] = _masked(values)
        return masked

    @classmethod
    def from_values(cls, values: Any) -> KeptEnd:
        """What `to_values` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            report, progress = values["report"], values["progress"]
            return cls(
                task_id=UUID(values["task_id"]),
                row=from_row(values["row"]),
                end=AttemptEnd(**values["end"]),
                report=None if report is None else report_from_json(json.dumps(report)),
                log=values["log"],
                progress=None if progress is None else Progress(**progress),
                gpu_uuids=tuple(values["gpu_uuids"]),
                gpu_memory_mb=values["gpu_memory_mb"],
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the end of an attempt: {error!r}") from error

    def is_open(self, run: FlowRun, rows: Sequence[Attempt], node: str) -> bool:
        """Whether nobody has gone on without it."""
        number = self.row.attempt
        if any(row.attempt > number for row in rows):
            return False
        own = next((row for row in rows if row.attempt == number), None)
        runs_elsewhere = own is not None and own.node not in (None, node)
        if own is not None and own.status is AttemptStatus.RUNNING and runs_elsewhere:
            return False
        if own is not None and own.status not in _OPEN:
            return False
        return not went_on(run.state, since=self.row.ended, is_retry=False)

    def restore(self, settling: AttemptSettling) -> AttemptEnd:
        """Put into a settling what only the worker that saw the end knew; gives that end."""
        settling.row = self.row
        settling.scanner.feed(self.log.encode())
        settling.progress = self.progress
        settling.gpu_uuids = self.gpu_uuids
        settling.gpu_memory_mb = self.gpu_memory_mb
        return self.end


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return {name: _masked(part) for name, part in value.items()}
    return [_masked(part) for part in value] if isinstance(value, list) else value


class KeptEnds:
    """The ends that one worker has not been able to tell yet.

    Args:
        folder: Of this node alone; `None` keeps nothing.
        logger: The worker's.
    """

    def __init__(
        self, folder: Path | None, logger: logging.Logger | logging.LoggerAdapter[Any]
    ) -> None:
        self._journal = None if folder is None else Journal(folder)
        self._logger = logger

    @contextlib.asynccontextmanager
    async def keep(
        self, settling: AttemptSettling, end: AttemptEnd, report: EngineReport | None
    ) -> AsyncIterator[None]:
        """Keep an end for the time of a `with` block, and for longer if the worker is ended."""
        if self._journal is None:
            yield
            return
        row = dataclasses.replace(settling.row, ended=utc_now().isoformat())
        kept = KeptEnd(
            task_id=settling.task_id,
            row=row,
            end=end,
            report=report,
            log=settling.scanner.evidence_text(),
            progress=settling.progress,
            gpu_uuids=settling.gpu_uuids,
            gpu_memory_mb=settling.gpu_memory_mb,
        )
        name = f"{row.flow_run_id}-{row.attempt}"
        write = functools.partial(self._journal.write, name, kept.to_values())
        try:
            await anyio.to_thread.run_sync(write)
        except OSError as error:
            self._logger.warning("The end of an attempt is not kept on disk: %s", error)
        try:
            yield
        except Exception:
            # The run ends as `Crashed`: no later process is to go on from here. A worker that is
            # ended instead raises no `Exception`, and the end stays.
            self._journal.remove(name)
            raise
        self._journal.remove(name)

    async def settle_all(self, worker: RetryingWorker) -> None:
        """Settle what an earlier process of this worker has kept, in the order in which it ended.

        Raises:
            httpx.HTTPError: The API is away; what has not been settled is still kept.
        """
        if self._journal is None:
            return
        found: list[tuple[str, KeptEnd]] = []
        for name, values in (await anyio.to_thread.run_sync(self._journal.read_all)).items():
            try:
                found.append((name, KeptEnd.from_values(values)))
            except ValueError as error:
                self._logger.warning("The kept end %s cannot be read: %s", name, error)
                self._journal.remove(name)
        for name, kept in sorted(found, key=lambda each: each[1].row.ended or ""):
            await self._settle(worker, kept)
            self._journal.remove(name)

    async def _settle(self, worker: RetryingWorker, kept: KeptEnd) -> None:
        run_id = UUID(kept.row.flow_run_id)
        if worker.lives.is_busy_with(run_id):
            return
        try:
            run = await worker.client.read_flow_run(run_id)
        except ObjectNotFound:
            return
        rows = await read_attempts(worker.client, kept.task_id)
        if not kept.is_open(run, rows, worker.node.name):
            return
        worker.get_flow_run_logger(run).info(
            "Attempt %d had ended before its worker did; what was seen of its end counts.",
            kept.row.attempt,
        )
        earlier = tuple(row for row in rows if row.attempt < kept.row.attempt)
        await worker.settle_lost(run, (*earlier, kept.row), kept=kept)
