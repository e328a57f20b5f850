"""Reads all flow runs or task runs of a filter; the server gives no more than a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun

from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.transitions import AWAITING_RETRY, waits_for_own_retry
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
    client: PrefectClient,
    pools: Sequence[str],
    *,
    all_own_retries: bool = True,
    but_for: Sequence[str] | None = None,
) -> list[FlowRun]:
    """The running and pending runs of these pools, and those that wait for a retry of their own.

    Args:
        client: A client in use.
        pools: Names of the work pools.
        all_own_retries: Of the latter also those that are not due yet. The server cannot tell them
            from the retries of ours that wait, of which there may be thousands: nothing for each
            look of each worker.
        but_for: The paused ones too, without those in states of these names.

    Raises:
        httpx.HTTPError: The API failed.
    """
    in_pools = WorkPoolFilter(name=WorkPoolFilterName(any_=list(pools)))
    types = [StateType.RUNNING, StateType.PENDING]
    types += [] if but_for is None else [StateType.PAUSED]
    under_way = FlowRunFilterState(
        type=FlowRunFilterStateType(any_=types),
        name=None if but_for is None else FlowRunFilterStateName(not_any_=list(but_for)),
    )
    runs = await read_all_runs(
        client,
        flow_run_filter=FlowRunFilter(state=under_way),
        work_pool_filter=in_pools,
    )
    due = FlowRunFilterNextScheduledStartTime.model_validate({"before_": utc_now()})
    scheduled = await read_all_runs(
        client,
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(
                type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]),
                name=FlowRunFilterStateName(any_=[AWAITING_RETRY]),
            ),
            next_scheduled_start_time=None if all_own_retries else due,
        ),
        work_pool_filter=in_pools,
    )
    waiting = [run for run in scheduled if waits_for_own_retry(run)]
    # One that goes on between both requests is in both answers.
    return list({run.id: run for run in [*waiting, *runs]}.values())


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
