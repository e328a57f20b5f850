"""Attempt runs that a person sets to an end, or deletes, while their attempt waits or runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.states import Scheduled

from prefect_heteroflow.attempts.ended_by_hand import ended_while_waiting, was_set_by_hand
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer, connected
from tests.support.workers import Api, Worker

SMALL, LARGE = "by-hand-small", "by-hand-large"
TOO_MUCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 70.00 GiB."
NO_NETWORK = "requests.exceptions.ConnectTimeout: timed out"
LONG = 600
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

# Attempt 1 needs a larger GPU. `first`: attempt 2 waits in a run of its own. `further`: it has
# failed, and attempt 3 waits in the same run.
CASES = [
    ("first", "FAILED"),
    ("first", "COMPLETED"),
    ("further", "FAILED"),
    ("further", "COMPLETED"),
    ("further", "DELETED"),
]


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
        memory_mb=4096,
        gpus="8192",
    )
    large = Worker(
        server,
        tmp_path_factory.mktemp("large"),
        pool=LARGE,
        node=LARGE,
        memory_mb=4096,
        gpus="81920",
    )
    with small, large:
        yield


def submit(api: Api, waits: str) -> str:
    script = (
        f"case $HETEROFLOW_ATTEMPT in 1) echo '{TOO_MUCH}'; exit 1;;"
        f" 2) [ {waits} = further ] && echo '{NO_NETWORK}' && exit 1;; esac; exit 0"
    )
    values = {"memory_mb": 64, "gpu_count": 1, "command": f"sh -c {shlex.quote(script)}"}
    delays = {
        "escalation_delay": LONG if waits == "first" else 0,
        "retry_delay": 0 if waits == "first" else LONG,
    }
    deployment = api.deploy("sleepy", SMALL, name=f"by-hand-{waits}")
    return api.submit(deployment, job_variables={**values, **delays})


def waiting_run(api: Api, run: str, attempt: int) -> str:
    """Id of the attempt run in which that attempt of the front run waits."""

    def waits() -> str | None:
        rows, found = api.rows(run), api.subflow_runs(run)
        if not found or len(rows) != attempt or found[0]["state"]["name"] != "AwaitingRetry":
            return None
        return str(found[0]["id"])

    return wait_until(waits, what=f"attempt {attempt} that waits", timeout_seconds=60)


def set_state(api: Api, run: str, kind: str, name: str | None = None) -> None:
    state = {"type": kind, "name": name, "message": "by hand"}
    api.post(f"/flow_runs/{run}/set_state", {"state": state, "force": True})


@pytest.fixture(scope="module")
def runs(api: Api, workers: None) -> dict[tuple[str, str], str]:
    """A front run of each case, whose attempt run was ended or deleted; all at the same time."""
    runs = {case: submit(api, case[0]) for case in CASES}
    for (waits, how), run in runs.items():
        attempt_run = waiting_run(api, run, 2 if waits == "first" else 3)
        if how == "DELETED":
            api.delete(f"/flow_runs/{attempt_run}")
        else:
            set_state(api, attempt_run, how)
    return runs


ENDED = [case for case in CASES if case[1] != "DELETED"]


@pytest.mark.parametrize(("waits", "how"), ENDED)
def test_run_ends_as_a_person_has_ended_its_waiting_attempt_run(
    api: Api, runs: dict[tuple[str, str], str], waits: str, how: str
) -> None:
    run = runs[waits, how]
    api.wait_end(run, timeout_seconds=60)
    ends = [state for state in api.states(run) if state.is_final]
    assert (ends[0].type, ends[0].message) == (how, "by hand")


@pytest.mark.parametrize(("waits", "how"), ENDED)
def test_row_of_an_attempt_whose_run_a_person_has_ended_is_closed(
    api: Api, runs: dict[tuple[str, str], str], waits: str, how: str
) -> None:
    run = runs[waits, how]
    api.wait_end(run, timeout_seconds=60)
    number = 2 if waits == "first" else 3
    row = api.rows(run)[number - 1]
    name = how.capitalize()
    assert (row["attempt"], row["status"]) == (number, "cancelled")
    assert row["decision"] == f"Not started: its run was set to {name} while it waited."
    assert [it["id"] for it in api.subflow_runs(run)] == [row["flow_run_id"]]


@pytest.mark.parametrize("waits", ["first", "further"])
def test_run_whose_waiting_attempt_run_was_set_to_failed_can_be_retried(
    api: Api, runs: dict[tuple[str, str], str], waits: str
) -> None:
    run = runs[waits, "FAILED"]
    api.wait_end(run, timeout_seconds=60)
    set_state(api, run, "SCHEDULED", "AwaitingRetry")
    wait_until(
        lambda: api.run(run)["state"]["name"] == "Completed", what="success", timeout_seconds=60
    )


def test_further_attempt_whose_run_was_deleted_runs_in_a_new_one(
    api: Api, runs: dict[tuple[str, str], str]
) -> None:
    run = runs["further", "DELETED"]
    assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    last: dict[str, Any] = api.rows(run)[-1]
    assert (last["attempt"], last["status"]) == (3, "completed")
    assert [it["id"] for it in api.subflow_runs(run)] == [last["flow_run_id"]]


# ---- while it runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flow", "command"])
def test_running_attempt_whose_run_a_person_has_set_to_failed_is_ended(
    api: Api, tmp_path: Path, kind: str
) -> None:
    """What it would still have done would be lost: its front run has ended."""
    notes = tmp_path / "notes"
    variables: dict[str, Any] = {"memory_mb": 600, "gpu_count": 1, "escalation_delay": 0}
    if kind == "command":
        script = (
            f"[ $HETEROFLOW_ATTEMPT = 1 ] && echo '{TOO_MUCH}' && exit 1;"
            f" echo started > {notes}; sleep 600"
        )
        variables["command"] = f"sh -c {shlex.quote(script)}"
    deployment = api.deploy("gpu_sleepy", SMALL, name="by-hand-runs")
    parameters = {"notes": str(notes), "need_gpu_mb": 40960}
    run = api.submit(deployment, parameters, job_variables=variables)
    wait_until(notes.exists, what="attempt 2", timeout_seconds=90)
    wait_until(lambda: api.rows(run)[-1]["status"] == "running", what="its row")
    (attempt_run,) = api.subflow_runs(run)
    set_state(api, attempt_run["id"], "FAILED")
    end = api.wait_end(run, timeout_seconds=60)
    assert (end.type, end.message) == ("FAILED", "by hand")
    last = api.rows(run)[-1]
    assert (last["status"], last["decision"]) == (
        "cancelled",
        "Ended: its run was set to Failed while it ran.",
    )
    assert api.run(attempt_run["id"])["state"]["message"] == "by hand"


@pytest.mark.parametrize("ends", ["return", "raise"])
async def test_end_that_a_flow_has_reported_itself_is_not_taken_for_one_set_by_hand(
    server: PrefectServer, api: Api, tmp_path: Path, ends: str
) -> None:
    """It may have much to do after that."""
    (tmp_path / "gate-1").touch()
    deployment = api.deploy("gated", LARGE, name="by-hand-itself")
    run = api.submit(deployment, {"folder": str(tmp_path), "ends": ends})
    api.wait_end(run, timeout_seconds=60)
    async with connected(server) as client:
        state = (await client.read_flow_run(UUID(run))).state
    assert state is not None
    assert state.is_final()
    assert not was_set_by_hand(state)


@pytest.mark.parametrize(
    ("names", "waited"),
    [
        (["AwaitingRetry", "Failed"], True),
        (["Running", "AwaitingRetry", "Failed", "Completed"], True),
        (["AwaitingRetry", "Pending", "Failed"], True),
        # Its worker died before it had scheduled the run for the next attempt.
        (["AwaitingRetry", "Pending", "Running", "Crashed"], False),
        ([], False),
    ],
)
def test_run_was_ended_while_it_waited_if_nothing_ran_before_its_end(
    names: list[str], waited: bool
) -> None:
    kinds = {"AwaitingRetry": StateType.SCHEDULED}
    states: list[State[Any]] = [
        State(
            type=kinds.get(name) or StateType(name.upper()),
            name=name,
            timestamp=START + timedelta(seconds=index),
        )
        for index, name in enumerate(names)
    ]
    assert ended_while_waiting(states[::-1]) is waited


async def test_run_whose_attempt_run_has_ended_when_its_worker_was_gone_can_be_retried(
    server: PrefectServer, api: Api
) -> None:
    """Nobody has closed the row of the attempt, which says that it runs."""
    deployment = UUID(api.deploy("sleepy", SMALL, name="by-hand-gone"))
    async with connected(server) as client:
        front = await client.create_flow_run_from_deployment(
            deployment,
            state=Scheduled(scheduled_time=utc_now() + timedelta(days=1)),
            job_variables={"memory_mb": 64, "command": "true"},
        )
        second = await transitions.create_attempt_run(
            client,
            front,
            attempt=2,
            pool=LARGE,
            job_variables={},
            due=utc_now() + timedelta(days=1),
            message="Moved.",
        )
        failed, runs = AttemptStatus.FAILED, AttemptStatus.RUNNING
        rows = [
            Attempt(attempt=1, flow_run_id=str(front.id), status=failed, pool=SMALL),
            Attempt(
                attempt=2, flow_run_id=str(second.id), status=runs, pool=LARGE, node="by-hand-gone"
            ),
        ]
        await write_attempts(client, front.id, rows, summary=True)
    run = str(front.id)
    for each in (str(second.id), run):
        set_state(api, each, "FAILED")
    set_state(api, run, "SCHEDULED", "AwaitingRetry")
    wait_until(
        lambda: api.run(run)["state"]["name"] == "Completed", what="success", timeout_seconds=30
    )
