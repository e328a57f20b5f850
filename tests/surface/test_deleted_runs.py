"""Runs that a person deletes, or ends by hand, while an attempt of them runs or waits elsewhere."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.states import Scheduled

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer, connected
from tests.support.workers import Api, Worker

SMALL, LARGE = "deleted-small", "deleted-large"
TOO_MUCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 70.00 GiB."


@pytest.fixture(scope="module", autouse=True)
def workers(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    for pool in (SMALL, LARGE):
        api.create_pool(pool, "heteroflow-process")
    small = Worker(
        server,
        tmp_path_factory.mktemp("small"),
        pool=SMALL,
        node=SMALL,
        memory_mb=512,
        gpus="8192",
    )
    large = Worker(
        server,
        tmp_path_factory.mktemp("large"),
        pool=LARGE,
        node=LARGE,
        memory_mb=512,
        gpus="81920",
    )
    with small, large:
        yield


def submit(api: Api, seen: Path, **variables: object) -> str:
    """Attempt 1 needs a larger GPU, attempt 2 takes long, attempt 3 ends well."""
    script = (
        f"echo $HETEROFLOW_ATTEMPT >> {seen}; case $HETEROFLOW_ATTEMPT in"
        f' 1) echo "{TOO_MUCH}"; exit 1;; 2) sleep 300; echo end >> {seen};; esac'
    )
    values = {"memory_mb": 64, "gpu_count": 1, "command": f"sh -c {shlex.quote(script)}"}
    deployment = api.deploy("sleepy", SMALL, name="deleted")
    return api.submit(deployment, job_variables={**values, **variables})


def attempts_in(seen: Path) -> list[str]:
    return seen.read_text().split() if seen.exists() else []


def attempt_run(api: Api, run: str) -> dict[str, Any]:
    found: dict[str, Any] = wait_until(
        lambda: (api.subflow_runs(run) or [None])[0], what="the attempt run", timeout_seconds=60
    )
    return found


def wait_for_second(api: Api, run: str, seen: Path) -> str:
    """Id of the attempt run, once attempt 2 runs and its row says so."""
    wait_until(lambda: attempts_in(seen) == ["1", "2"], what="attempt 2", timeout_seconds=90)
    wait_until(lambda: api.rows(run)[-1]["status"] == "running", what="its row")
    return str(attempt_run(api, run)["id"])


def test_attempt_whose_run_was_deleted_while_it_ran_is_ended_and_tried_again(
    api: Api, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    run = submit(api, seen)
    api.delete(f"/flow_runs/{wait_for_second(api, run, seen)}")
    assert api.wait_end(run).name == "Completed"
    assert attempts_in(seen) == ["1", "2", "3"]
    rows = api.rows(run)
    assert [row["status"] for row in rows] == ["failed", "failed", "completed"]
    assert rows[1]["failure"] == "NodeLost"
    assert rows[1]["reason"] == "The run of attempt 2 was deleted while it ran."


def test_attempt_whose_run_was_deleted_ends_the_task_when_no_retry_is_left(
    api: Api, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    run = submit(api, seen, infrastructure_retries=0)
    api.delete(f"/flow_runs/{wait_for_second(api, run, seen)}")
    end = api.wait_end(run)
    assert end.type in ("FAILED", "CRASHED")
    assert "The run of attempt 2 was deleted while it ran" in end.message
    assert [row["status"] for row in api.rows(run)] == ["failed", "failed"]


@pytest.mark.parametrize("how", ["deleted", "failed"])
@pytest.mark.parametrize("when", ["planned", "running"])
def test_attempt_of_a_run_that_a_person_has_ended_does_not_run(
    api: Api, tmp_path: Path, how: str, when: str
) -> None:
    seen = tmp_path / "seen"
    run = submit(api, seen, **({"escalation_delay": 30} if when == "planned" else {}))
    if when == "running":
        attempt = wait_for_second(api, run, seen)
    else:
        attempt = str(attempt_run(api, run)["id"])
    if how == "deleted":
        api.delete(f"/flow_runs/{run}")
    else:
        api.post(
            f"/flow_runs/{run}/set_state",
            {"state": {"type": "FAILED", "message": "by a person"}, "force": True},
        )
    ended = api.wait_state(attempt, "Cancelled")
    said = "deleted" if how == "deleted" else "ended: Failed"
    if when == "planned":
        assert said in ended["state"]["message"]
        assert attempts_in(seen) == ["1"]
    else:
        assert any(said in state.message for state in api.states(attempt))
        assert attempts_in(seen) == ["1", "2"]
    wait_until(
        lambda: [row["status"] for row in api.rows(run)] in ([], ["failed", "cancelled"]),
        what="the closed row",
        timeout_seconds=30,
    )
    if how == "failed":
        assert api.run(run)["state"]["name"] == "Failed"


COMPLETED, FAILED, CANCELLED = (
    AttemptStatus.COMPLETED,
    AttemptStatus.FAILED,
    AttemptStatus.CANCELLED,
)


def row(attempt: int, status: AttemptStatus, run: str, **values: Any) -> Attempt:
    return Attempt(attempt=attempt, status=status, flow_run_id=run, pool=LARGE, **values)


NO_RUN = str(uuid4())
"""An id that no run has any more."""


ENDS = {
    "ended-well": (
        [row(2, COMPLETED, NO_RUN, ended_task=True)],
        ("Completed", "Attempt 2 ended well."),
    ),
    "failed-for-good": (
        [row(2, FAILED, NO_RUN, ended_task=True, ending="PermanentFailure", decision="Why.")],
        ("PermanentFailure", "Why."),
    ),
    "cancelled": (
        [row(2, CANCELLED, NO_RUN, ended_task=True, decision="A user.")],
        ("Cancelled", "A user."),
    ),
    "ended-well-after-all": (
        [
            row(2, COMPLETED, NO_RUN, ended_task=True),
            row(3, CANCELLED, "front", ended_task=True, never_started=True, decision="Late."),
        ],
        ("Completed", "Attempt 2 ended well."),
    ),
    "no-place": (
        [
            row(
                2,
                CANCELLED,
                "front",
                ended_task=True,
                never_started=True,
                ending="Failed",
                decision="No place.",
            )
        ],
        ("Failed", "No place."),
    ),
}


@pytest.fixture(scope="module")
def fronts(server: PrefectServer, api: Api) -> dict[str, str]:
    """A front run of each case, all at once: workers look at them after a while."""

    async def make() -> dict[str, str]:
        async with connected(server) as client:
            return {case: await front_with(client, rows) for case, (rows, _) in ENDS.items()}

    deployment = UUID(api.deploy("sleepy", SMALL, name="deleted"))

    async def front_with(client: PrefectClient, rows: list[Attempt]) -> str:
        # Later than any worker takes it.
        due = datetime.now(timezone.utc) + timedelta(days=1)
        front = await client.create_flow_run_from_deployment(
            deployment, state=Scheduled(scheduled_time=due)
        )
        own = str(front.id)
        rows = [
            dataclasses.replace(it, flow_run_id=own) if it.flow_run_id == "front" else it
            for it in rows
        ]
        await write_attempts(client, front.id, [row(1, FAILED, own), *rows], summary=True)
        await transitions.escalate(client, front.id, "Attempt 2 goes on elsewhere.")
        return own

    return asyncio.run(make())


@pytest.mark.parametrize("case", ENDS)
def test_task_ends_as_its_row_says_where_no_run_tells_its_end(
    api: Api, fronts: dict[str, str], case: str
) -> None:
    """The attempt's run was deleted, or the worker died, before the task was ended."""
    ended = api.wait_end(fronts[case])
    assert (ended.name, ended.message) == ENDS[case][1]
