"""The attempt history of a task: one table and one Markdown artifact on the front run's page.

Both artifacts are updated in place. The run's page of Prefect 3.9.1 lists every artifact of the
run, not the newest of each key, so that each new version would show there as one more card.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakValueDictionary

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger

from prefect_heteroflow.core.attempts import (
    Attempt,
    AttemptStatus,
    from_row,
    to_markdown,
    to_row,
)
from prefect_heteroflow.orchestration.run_pages import in_parts
from prefect_heteroflow.orchestration.transitions import task_id_of
from prefect_heteroflow.orchestration.variables import read_pages

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Artifact, FlowRun

TABLE_DESCRIPTION = (
    "Every attempt of this run: where it ran, with what, why it failed, what was decided and why."
    " Sizes are in MB (MiB), times in UTC."
)
SUMMARY_DESCRIPTION = "What happened to this run, attempt by attempt."

_FINAL = frozenset({AttemptStatus.COMPLETED, AttemptStatus.FAILED, AttemptStatus.CANCELLED})

# A write trusts what this process read or wrote of the same task so lately, and saves a request.
# Two workers write one task's history one after the other; longer than this they do not hand over.
_TRUST_SECONDS = 2.0
_MAX_KNOWN_TASKS = 1024

# How long a reader waits for the worker of a run that has just ended.
_CLOSING_SECONDS = 5.0
_CLOSING_POLL_SECONDS = 0.2

logger = get_logger("heteroflow.history")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the API holds of one task's history, as last seen by this process."""

    table_id: UUID | None = None
    summary_id: UUID | None = None
    attempts: tuple[Attempt, ...] = ()
    duplicate_ids: tuple[UUID, ...] = ()
    """Older artifacts with the same key: two workers created one at the same moment."""
    seen_at: float = 0.0
    """`time.monotonic()` of the read or write."""


_known: OrderedDict[tuple[str, str], _Stored] = OrderedDict()
_locks: WeakValueDictionary[tuple[int, str, str], asyncio.Lock] = WeakValueDictionary()


def table_key(task_id: UUID | str) -> str:
    """Key of the table artifact of a task. It is part of the public interface."""
    return f"heteroflow-attempts-{task_id}"


def summary_key(task_id: UUID | str) -> str:
    """Key of the Markdown artifact of a task. It is part of the public interface."""
    return f"heteroflow-summary-{task_id}"


async def read_attempts(client: PrefectClient, task_id: UUID | str) -> list[Attempt]:
    """The attempts of a task in their order; empty when it has none yet. One request.

    Args:
        client: A client of the API.
        task_id: Id of the front run; `get_attempts` also takes the id of an attempt run.
    """
    return list((await _read(client, str(task_id))).attempts)


async def read_many_attempts(
    client: PrefectClient, task_ids: Iterable[UUID]
) -> dict[UUID, tuple[Attempt, ...]]:
    """The attempts of each of these tasks that has any. One request for every hundred."""
    found = {}
    for part in in_parts(list(task_ids)):
        keys = ArtifactFilterKey(any_=[table_key(task) for task in part])
        wanted = ArtifactFilter(key=keys)
        artifacts = await read_pages(
            partial(client.read_artifacts, artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC)
        )
        for task in part:
            attempts = _as_stored(str(task), artifacts).attempts
            if attempts:
                found[task] = attempts
    return found


async def write_attempts(
    client: PrefectClient,
    task_id: UUID | str,
    attempts: Sequence[Attempt],
    *,
    summary: bool,
) -> tuple[Attempt, ...]:
    """Store rows of a task's history, and with `summary` its Markdown form too.

    Rows are merged with the stored ones by attempt number, so a caller may pass only the rows that
    it knows, and a late writer neither erases the rows of another worker nor reopens an attempt
    that has ended, nor plans one that runs.

    One request for the table, one for the summary (both at once), and one more to read what is
    stored unless this process did so in the last two seconds.

    Args:
        client: A client of the API.
        task_id: Id of the front run, to which the artifacts are attached.
        attempts: New or changed rows.
        summary: Write the Markdown artifact as well.

    Returns:
        All rows of the task as they are stored now.
    """
    task = str(task_id)
    async with _lock(client, task):
        stored = _trusted(client, task) or await _read(client, task)
        try:
            return await _write(client, task, stored, attempts, summary=summary)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            # Someone deleted an artifact that we knew: look again, and create it anew.
            again = await _read(client, task)
            return await _write(client, task, again, attempts, summary=summary)


def merge_attempts(stored: Iterable[Attempt], new: Iterable[Attempt]) -> list[Attempt]:
    """Both sets of rows by attempt number; a new row wins, unless it would turn back the clock.

    An attempt that has ended runs no more, and one that runs is not planned any more.
    """
    rows = {row.attempt: row for row in stored}
    for row in new:
        old = rows.get(row.attempt)
        if old is None or not _is_past(old, row):
            rows[row.attempt] = row
    return [rows[number] for number in sorted(rows)]


def _is_past(old: Attempt, row: Attempt) -> bool:
    if old.status is AttemptStatus.RUNNING:
        return row.status is AttemptStatus.SCHEDULED
    return old.status in _FINAL and row.status not in _FINAL


async def aget_attempts(run_id: UUID | str) -> list[Attempt]:
    """The attempts of a run, for asynchronous code; see `get_attempts`."""
    run_uuid = _as_uuid(run_id)
    async with get_client() as client:
        try:
            run = await client.read_flow_run(run_uuid)
        except ObjectNotFound as error:
            raise _no_such_run(run_uuid, error) from error
        deadline = time.monotonic() + _CLOSING_SECONDS
        while True:
            attempts = await read_attempts(client, task_id_of(run))
            if not _is_closing(run, attempts) or time.monotonic() > deadline:
                return attempts
            await asyncio.sleep(_CLOSING_POLL_SECONDS)


def get_attempts(run_id: UUID | str) -> list[Attempt]:
    """The attempts of a run in their order; empty for a run that no heteroflow worker has taken.

    It blocks while it asks the API; asynchronous code has `aget_attempts`.

    Args:
        run_id: Id of the flow run that was submitted, or of the run of one of its attempts.

    Raises:
        ValueError: `run_id` is not the form of an id.
        prefect.exceptions.ObjectNotFound: No run has this id.

    Example:
        ```python
        from prefect_heteroflow import get_attempts

        for attempt in get_attempts("3f1c..."):
            print(attempt.attempt, attempt.node, attempt.failure, attempt.memory_mb)
        ```
    """
    run_uuid = _as_uuid(run_id)
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(run_uuid)
        except ObjectNotFound as error:
            raise _no_such_run(run_uuid, error) from error
        task = str(task_id_of(run))
        deadline = time.monotonic() + _CLOSING_SECONDS
        while True:
            artifacts = client.read_artifacts(**_query(task))
            attempts = list(_as_stored(task, artifacts).attempts)
            if not _is_closing(run, attempts) or time.monotonic() > deadline:
                return attempts
            time.sleep(_CLOSING_POLL_SECONDS)


def _is_closing(run: FlowRun, attempts: Sequence[Attempt]) -> bool:
    """The run has ended and its worker is about to close the last row.

    A flow reports its end itself; its worker hears of it when the process is gone.
    """
    if run.state is None or not run.state.is_final() or not attempts:
        return False
    return attempts[-1].status in (AttemptStatus.RUNNING, AttemptStatus.SCHEDULED)


def _as_uuid(run_id: UUID | str) -> UUID:
    try:
        return run_id if isinstance(run_id, UUID) else UUID(run_id)
    except ValueError:
        raise ValueError(f"{run_id!r} is not the id of a flow run (a UUID).") from None


def _no_such_run(run_id: UUID, error: ObjectNotFound) -> ObjectNotFound:
    return ObjectNotFound(error.http_exc, help_message=f"There is no flow run with id {run_id}.")


async def _read(client: PrefectClient, task: str) -> _Stored:
    stored = _as_stored(task, await client.read_artifacts(**_query(task)))
    _remember(client, task, stored)
    return stored


async def _write(
    client: PrefectClient,
    task: str,
    stored: _Stored,
    attempts: Sequence[Attempt],
    *,
    summary: bool,
) -> tuple[Attempt, ...]:
    # Forgotten until it is written: after a failure or a cancel nobody knows what the API holds.
    _known.pop(_cache_key(client, task), None)
    rows = merge_attempts(stored.attempts, attempts)
    table = json.dumps([to_row(row) for row in rows])
    writes = [_put(client, task, stored.table_id, "table", table)]
    if summary:
        writes.append(_put(client, task, stored.summary_id, "markdown", to_markdown(rows)))
    written: list[UUID] = []
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        written.append(outcome)
    for artifact_id in stored.duplicate_ids:
        await _delete(client, artifact_id)
    fresh = _Stored(
        table_id=written[0],
        summary_id=written[1] if summary else stored.summary_id,
        attempts=tuple(rows),
        seen_at=time.monotonic(),
    )
    _remember(client, task, fresh)
    return fresh.attempts


async def _put(
    client: PrefectClient, task: str, artifact_id: UUID | None, kind: str, data: str
) -> UUID:
    if artifact_id is not None:
        await client.update_artifact(artifact_id, ArtifactUpdate(data=data))
        return artifact_id
    is_table = kind == "table"
    created = await client.create_artifact(
        ArtifactCreate(
            key=table_key(task) if is_table else summary_key(task),
            type=kind,
            description=TABLE_DESCRIPTION if is_table else SUMMARY_DESCRIPTION,
            data=data,
            flow_run_id=UUID(task),
        )
    )
    return created.id


async def _delete(client: PrefectClient, artifact_id: UUID) -> None:
    try:
        await client.delete_artifact(artifact_id)
    except ObjectNotFound:
        logger.debug("Artifact %s was deleted by somebody else", artifact_id)


def _query(task: str) -> Any:
    """Arguments that ask for both artifacts of a task, the newest first."""
    keys = [table_key(task), summary_key(task)]
    return {
        "artifact_filter": ArtifactFilter(key=ArtifactFilterKey(any_=keys)),
        "sort": ArtifactSort.CREATED_DESC,
    }


def _as_stored(task: str, artifacts: Sequence[Artifact]) -> _Stored:
    """The history in a listing of artifacts, the newest first."""
    tables = [artifact for artifact in artifacts if artifact.key == table_key(task)]
    summaries = [artifact for artifact in artifacts if artifact.key == summary_key(task)]
    attempts: list[Attempt] = []
    for table in reversed(tables):
        attempts = merge_attempts(attempts, _rows(table))
    return _Stored(
        table_id=tables[0].id if tables else None,
        summary_id=summaries[0].id if summaries else None,
        attempts=tuple(attempts),
        duplicate_ids=tuple(artifact.id for artifact in (*tables[1:], *summaries[1:])),
        seen_at=time.monotonic(),
    )


def _rows(table: Artifact) -> list[Attempt]:
    """The attempts in a table artifact. A row that is not ours is left out, and logged."""
    try:
        data = json.loads(table.data) if isinstance(table.data, str) else table.data
    except ValueError:
        data = None
    if not isinstance(data, list):
        logger.warning("Artifact %s (%s) holds no table", table.key, table.id)
        return []
    attempts = [_attempt(table, row) for row in data]
    return [attempt for attempt in attempts if attempt is not None]


def _attempt(table: Artifact, row: object) -> Attempt | None:
    try:
        if not isinstance(row, Mapping):
            raise TypeError(f"{type(row).__name__} instead of an object")
        return from_row(row)
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("Artifact %s (%s) has a foreign row: %s", table.key, table.id, error)
        return None


def _cache_key(client: PrefectClient, task: str) -> tuple[str, str]:
    return str(client.api_url), task


def _remember(client: PrefectClient, task: str, stored: _Stored) -> None:
    key = _cache_key(client, task)
    _known[key] = stored
    _known.move_to_end(key)
    while len(_known) > _MAX_KNOWN_TASKS:
        _known.popitem(last=False)


def _trusted(client: PrefectClient, task: str) -> _Stored | None:
    """What is known of the task, if it was seen so lately that reading it again can be saved."""
    stored = _known.get(_cache_key(client, task))
    if stored is None or time.monotonic() - stored.seen_at > _TRUST_SECONDS:
        return None
    return stored


def _lock(client: PrefectClient, task: str) -> asyncio.Lock:
    """One lock per event loop and task: two coroutines of a worker write one after the other."""
    key = (id(asyncio.get_running_loop()), *_cache_key(client, task))
    lock = _locks.get(key)
    if lock is None:
        lock = _locks[key] = asyncio.Lock()
    return lock
