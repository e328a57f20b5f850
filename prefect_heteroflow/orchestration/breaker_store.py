"""Circuit breakers that all workers share, kept in Prefect Variables.

The API has no compare-and-swap for a Variable, but creates a name only once. So each change of a
breaker is a new Variable under the next number, its generation: of two workers that read the same
state and change it at the same moment, one creates the number, and the other reads again. What
was superseded is deleted later, when no request that began before can still be under way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import httpx
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.logging import get_logger

from prefect_heteroflow.core.breaker import (
    Admission,
    Admitted,
    Breaker,
    BreakerPolicy,
    BreakerStatus,
    Held,
    Verdict,
    admit,
    approve,
    held_reason,
    settle,
    withdraw,
)
from prefect_heteroflow.orchestration import clock
from prefect_heteroflow.orchestration.breaker_events import emit_breaker_event
from prefect_heteroflow.orchestration.breaker_values import (
    BREAKER_PREFIX,
    BreakerRecord,
    breaker_prefix,
    breaker_to_value,
    breaker_variable_name,
    generation_of,
    parse_breaker_value,
)
from prefect_heteroflow.orchestration.variables import read_pages

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

__all__ = [
    "BreakerBusy",
    "admit_retry",
    "change_breaker",
    "note_approval",
    "note_outcome",
    "read_breakers",
    "read_holding",
]

KEEP_SUPERSEDED = timedelta(minutes=15)
"""Longer than any request of a writer that read an old generation can take."""
MAX_TRIES = 50
_PAUSE_SECONDS = 0.05

logger = get_logger("heteroflow.breaker")
Answer = TypeVar("Answer")
Change = Callable[[Breaker], tuple[Breaker, Answer]]


class BreakerBusy(Exception):
    """So many workers changed one breaker at once that this one never got its turn."""


async def admit_retry(
    client: PrefectClient,
    keys: Sequence[str],
    *,
    holder: str,
    policy: BreakerPolicy,
    now: datetime,
    waited: bool = False,
) -> Admission:
    """Ask whether a retry may be scheduled. To be called before it is.

    It has to pass every one of its breakers. Asking again for the same holder counts once.

    Args:
        client: A client in use.
        keys: The breakers, from `core.breaker.retry_keys`.
        holder: Name of the attempt that is to be started, `<task id>:<attempt>`.
        policy: When breakers open.
        now: The time, with a time zone.
        waited: It was held before and asks again.

    Returns:
        `Admitted`, or `Held` with the reason: the run is to wait for approval then.

    Raises:
        BreakerBusy: Too many workers at once; ask again.
        httpx.HTTPError: The API failed.
    """
    reasons, is_trial = [], False
    for index, key in enumerate(keys):

        def ask(breaker: Breaker) -> tuple[Breaker, Admission]:
            return admit(breaker, policy, holder=holder, now=now.timestamp(), waited=waited)

        answer = await change_breaker(client, key, ask, now=now)
        if isinstance(answer, Held):
            await _withdraw(client, keys[:index], holder=holder, now=now)
            return Held(reason=held_reason([(key, answer)]), retry_at=answer.retry_at)
        reasons.append(answer.reason)
        is_trial = is_trial or answer.is_trial
    return Admitted(reason="; ".join(reasons), is_trial=is_trial)


async def _withdraw(
    client: PrefectClient, keys: Sequence[str], *, holder: str, now: datetime
) -> None:
    for key in keys:
        await change_breaker(
            client, key, lambda breaker: (withdraw(breaker, holder=holder), None), now=now
        )


async def note_approval(
    client: PrefectClient,
    keys: Sequence[str],
    *,
    holder: str,
    policy: BreakerPolicy,
    now: datetime,
) -> None:
    """Tell the breakers that a person let this attempt go on: it is their trial if they have none.

    Raises:
        BreakerBusy: Too many workers at once; tell it again.
        httpx.HTTPError: The API failed.
    """
    for key in keys:
        await change_breaker(
            client,
            key,
            lambda breaker: approve(breaker, policy, holder=holder, now=now.timestamp()),
            now=now,
        )


async def note_outcome(
    client: PrefectClient, *, holder: str, verdict: Verdict, now: datetime
) -> tuple[str, ...]:
    """Tell the breakers how an attempt ended. To be called at the end of every attempt.

    Only the end of a trial changes something; for all others this is one request.

    Args:
        client: A client in use.
        holder: Name of the attempt that ended, `<task id>:<attempt>`.
        verdict: `Verdict.NONE` for one that was cancelled.
        now: The time, with a time zone.

    Returns:
        The keys of the breakers whose trial it was.

    Raises:
        BreakerBusy: Too many workers at once; tell it again.
        httpx.HTTPError: The API failed.
    """
    mine = [
        record.key
        for record in await read_breakers(client)
        if record.breaker.trial is not None and record.breaker.trial.holder == holder
    ]
    for key in mine:
        await change_breaker(
            client,
            key,
            lambda breaker: (
                settle(breaker, holder=holder, verdict=verdict, now=now.timestamp()),
                None,
            ),
            now=now,
        )
    return tuple(mine)


async def read_breakers(client: PrefectClient) -> tuple[BreakerRecord, ...]:
    """Every breaker that was ever changed, as it stands now, by key; one request.

    Values that cannot be used are logged and left out.

    Raises:
        httpx.HTTPError: The API failed.
    """
    newest: dict[str, BreakerRecord] = {}
    for row in await _read_rows(client, BREAKER_PREFIX):
        record = _parse(row)
        if record is not None:
            known = newest.get(record.key)
            if known is None or known.generation < record.generation:
                newest[record.key] = record
    return tuple(newest[key] for key in sorted(newest))


async def read_holding(client: PrefectClient, keys: Sequence[str]) -> tuple[str, ...]:
    """Those of a held run's breakers that are not closed; all, if none is open any more.

    Raises:
        httpx.HTTPError: The API failed.
    """
    not_closed = {
        record.key
        for record in await read_breakers(client)
        if record.breaker.status is not BreakerStatus.CLOSED
    }
    return tuple(key for key in keys if key in not_closed) or tuple(keys)


async def change_breaker(
    client: PrefectClient, key: str, change: Change[Answer], *, now: datetime
) -> Answer:
    """Apply a pure change to the shared state of one breaker, and emit the event of a new status.

    The change is computed again from what another worker has written meanwhile, until it is
    written or changes nothing.

    Raises:
        BreakerBusy: Somebody else was first every time.
        httpx.HTTPError: The API failed.
    """
    token = uuid4().hex
    for _ in range(MAX_TRIES):
        rows = await _read_generations(client, key)
        generation, row = rows[-1] if rows else (0, None)
        record = None if row is None else _parse(row)
        if record is not None and record.token == token:
            break  # the answer to our own request was lost, and the client had sent it again
        before = Breaker() if record is None else record.breaker
        after, answer = change(before)
        if after == before:
            return answer
        value = BreakerRecord(
            key=key, generation=generation + 1, token=token, breaker=after, updated=now
        )
        if not await _create(client, value):
            await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS))
            continue
        break
    else:
        raise BreakerBusy(f"The breaker {key} was changed by others {MAX_TRIES} times in a row.")
    emit_breaker_event(key, before, after)
    await _delete_superseded(client, rows, now)
    return answer


async def _create(client: PrefectClient, record: BreakerRecord) -> bool:
    name = breaker_variable_name(record.key, record.generation)
    try:
        await client.create_variable(VariableCreate(name=name, value=breaker_to_value(record)))
    except ObjectAlreadyExists:
        return False
    return True


async def _read_generations(client: PrefectClient, key: str) -> list[tuple[int, dict[str, Any]]]:
    rows = await _read_rows(client, breaker_prefix(key))
    numbered = [(generation_of(row["name"], key), row) for row in rows]
    return sorted(((n, row) for n, row in numbered if n is not None), key=lambda it: it[0])


async def _read_rows(client: PrefectClient, prefix: str) -> list[dict[str, Any]]:
    async def read_page(*, offset: int) -> list[dict[str, Any]]:
        body = {"offset": offset, "variables": {"name": {"like_": prefix}}}
        response = await clock.request(client, "POST", "/variables/filter", json=body)
        return list(response.json())

    # `like_` takes `_` for any character and matches anywhere in the name.
    return [row for row in await read_pages(read_page) if row["name"].startswith(prefix)]


async def _delete_superseded(
    client: PrefectClient, rows: Sequence[tuple[int, dict[str, Any]]], now: datetime
) -> None:
    for _, row in rows:
        record = _parse(row)
        if record is not None and now - record.updated < KEEP_SUPERSEDED:
            continue
        try:
            await client.request("DELETE", "/variables/{id}", path_params={"id": row["id"]})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise


def _parse(row: dict[str, Any]) -> BreakerRecord | None:
    try:
        return parse_breaker_value(row["value"])
    except ValueError as error:
        logger.warning("The Variable %s is left out: %s.", row["name"], error)
        return None
