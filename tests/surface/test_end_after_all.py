"""An attempt that others had given up and that comes to its end after all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.states import Running

from prefect_heteroflow.attempts.ending import AttemptEnding
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, current_series
from prefect_heteroflow.core.breaker import BreakerPolicy
from prefect_heteroflow.core.policy import RetryPolicy
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts
from tests.support.prefect_server import PrefectServer, connected
from tests.support.workers import Api

POOL = "end-after-all"


@pytest.fixture
async def rows(server: PrefectServer, api: Api) -> tuple[Attempt, ...]:
    """Those of a task whose attempt 1 succeeded when attempt 2 was planned already."""
    api.create_pool(POOL, "heteroflow-process")
    run_id = UUID(api.submit(api.deploy("sleepy", POOL, name="end-after-all")))
    first = Attempt(attempt=1, flow_run_id=str(run_id), status=AttemptStatus.RUNNING, pool=POOL)
    second = Attempt(attempt=2, flow_run_id="", status=AttemptStatus.SCHEDULED, pool=POOL)
    async with connected(server) as client:
        await client.set_flow_run_state(run_id, Running(), force=True)
        await write_attempts(client, run_id, [first, second], summary=False)
        worker: Any = SimpleNamespace(
            client=client,
            node=SimpleNamespace(name="a", pool=POOL),
            heteroflow_settings=SimpleNamespace(breaker_policy=BreakerPolicy()),
        )
        await AttemptEnding(
            worker=worker,
            flow_run=await client.read_flow_run(run_id),
            task_id=run_id,
            history=(),
            row=first,
            resources=Resources(),
            policy=RetryPolicy(),
            is_plain_job=True,
            job=None,
            was_cancelled=lambda: False,
            has_gone_on=lambda decision: pytest.fail(str(decision)),
        ).completed()
        return tuple(await read_attempts(client, run_id))


def test_the_attempt_that_was_planned_in_its_place_is_closed(rows: tuple[Attempt, ...]) -> None:
    assert [row.status for row in rows] == [AttemptStatus.COMPLETED, AttemptStatus.CANCELLED]


def test_the_closed_attempt_costs_no_retry_when_a_person_runs_the_task_again(
    rows: tuple[Attempt, ...],
) -> None:
    assert list(current_series(rows)) == []
