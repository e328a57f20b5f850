"""Reads all flow runs or task runs of a filter; the server gives no more than a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun

from prefect_heteroflow.orchestration.variables import read_pages

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

MOST_RUNS = 10_000
"""Of one look. Every worker looks four times a minute: more would keep the server from its work."""
IDS_AT_ONCE = 100
"""Ids in one filter; SQLite takes no more than some thousands of values in a query."""
T = TypeVar("T")


async def read_all_runs(client: PrefectClient, **query: Any) -> list[FlowRun]:
    """The runs of a query, page by page, `MOST_RUNS` at most.

    A run that joins or leaves them meanwhile may hide another one until the next look.

    Args:
        client: A client in use.
        **query: What `client.read_flow_runs` takes, without `limit` and `offset`.

    Raises:
        httpx.HTTPError: The API failed.
    """
    rows = await read_pages(partial(client.read_flow_runs, **query), most=MOST_RUNS)
    return list({run.id: run for run in rows}.values())


async def read_runs_under_way(
    client: PrefectClient, pools: Sequence[str], *, but_for: Sequence[str] | None = None
) -> list[FlowRun]:
    """The running and pending runs of these work pools.

    Args:
        client: A client in use.
        pools: Names of the pools.
        but_for: The paused ones too, without those in states of these names.

    Raises:
        httpx.HTTPError: The API failed.
    """
    types = [StateType.RUNNING, StateType.PENDING]
    types += [] if but_for is None else [StateType.PAUSED]
    under_way = FlowRunFilterState(
        type=FlowRunFilterStateType(any_=types),
        name=None if but_for is None else FlowRunFilterStateName(not_any_=list(but_for)),
    )
    return await read_all_runs(
        client,
        flow_run_filter=FlowRunFilter(state=under_way),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=list(pools))),
    )


async def read_all_task_runs(client: PrefectClient, **query: Any) -> list[TaskRun]:
    """As `read_all_runs`, for `client.read_task_runs`.

    Raises:
        httpx.HTTPError: The API failed.
    """
    rows = await read_pages(partial(client.read_task_runs, **query), most=MOST_RUNS)
    return list({run.id: run for run in rows}.values())


def in_parts(ids: Sequence[T]) -> list[Sequence[T]]:
    """Parts of a list of ids that fit into one filter each."""
    return [ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE)]
