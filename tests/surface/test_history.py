"""The attempt history on a real server: what is stored, and how many requests it takes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import ObjectNotFound

from prefect_heteroflow import get_attempts
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus, to_row
from prefect_heteroflow.orchestration import history
from prefect_heteroflow.orchestration.history import (
    aget_attempts,
    merge_attempts,
    read_attempts,
    summary_key,
    table_key,
    write_attempts,
)
from prefect_heteroflow.orchestration.transitions import TASK_ID_LABEL
from tests.support.prefect_server import PrefectServer, connected


@flow(name="history-test")
def nothing() -> None:
    """Only its runs are needed."""


async def new_run(client: PrefectClient) -> UUID:
    return (await client.create_flow_run(nothing)).id


def attempt(number: int, **values: Any) -> Attempt:
    values = {"status": AttemptStatus.RUNNING, "node": f"node-{number}", **values}
    return Attempt(attempt=number, flow_run_id=str(uuid4()), memory_mb=2048 * number, **values)


def failed(row: Attempt) -> Attempt:
    return replace(row, status=AttemptStatus.FAILED, failure="CpuOutOfMemory", exit_code=137)


async def artifacts_of(client: PrefectClient, run_id: UUID) -> list[dict[str, Any]]:
    """What the Artifacts tab of the run's page asks for."""
    body = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}}
    response = await client.request("POST", "/artifacts/filter", json=body)
    found: list[dict[str, Any]] = response.json()
    return found


def count_requests(client: PrefectClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by the path of each request."""
    paths: list[str] = []
    request = client.request

    async def counted(method: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        paths.append(f"{method} {path}")
        return await request(method, path, *args, **kwargs)

    monkeypatch.setattr(client, "request", counted)
    return paths


@pytest.fixture(autouse=True)
def forget() -> None:
    """Each test is a worker that has just started."""
    history._known.clear()


async def test_run_without_attempts_reads_as_an_empty_history(server: PrefectServer) -> None:
    """A run that no worker of ours has taken has no rows."""
    async with connected(server) as client:
        assert await read_attempts(client, await new_run(client)) == []


async def test_written_attempts_read_back_equal(server: PrefectServer) -> None:
    """Every field survives the table artifact."""
    rows = [failed(attempt(1)), attempt(2, pool="gpu-24gb", gpu_memory_mb=24576)]
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, rows, summary=False)
        history._known.clear()
        assert await read_attempts(client, run_id) == rows


async def test_repeated_writes_leave_one_table_and_one_summary_on_the_page(
    server: PrefectServer,
) -> None:
    """The page shows a card per artifact, so a write updates the two that are there."""
    async with connected(server) as client:
        run_id = await new_run(client)
        for row in (attempt(1), failed(attempt(1)), attempt(2)):
            await write_attempts(client, run_id, [row], summary=True)
        found = await artifacts_of(client, run_id)
    assert sorted((artifact["key"], artifact["type"]) for artifact in found) == [
        (table_key(run_id), "table"),
        (summary_key(run_id), "markdown"),
    ]


async def test_latest_version_of_the_key_shows_the_newest_rows(server: PrefectServer) -> None:
    """The Artifacts page of the UI reads the collection; an update in place reaches it too."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [attempt(1)], summary=False)
        await write_attempts(client, run_id, [attempt(2)], summary=False)
        body = {"artifacts": {"key": {"any_": [table_key(run_id)]}}}
        response = await client.request("POST", "/artifacts/latest/filter", json=body)
    assert [row["attempt"] for row in json.loads(response.json()[0]["data"])] == [1, 2]


async def test_late_writer_does_not_erase_rows_of_another_worker(server: PrefectServer) -> None:
    """A worker that knows only its own row adds to what another one has written."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [failed(attempt(1))], summary=False)
        history._known.clear()  # the other worker
        await write_attempts(client, run_id, [attempt(2)], summary=False)
        history._known.clear()  # the first one again
        await write_attempts(client, run_id, [failed(attempt(1))], summary=False)
        assert [row.attempt for row in await read_attempts(client, run_id)] == [1, 2]


async def test_concurrent_writes_of_one_worker_all_arrive(server: PrefectServer) -> None:
    """Two coroutines neither create two tables nor lose a row."""
    async with connected(server) as client:
        run_id = await new_run(client)
        writes = (write_attempts(client, run_id, [attempt(n)], summary=False) for n in range(1, 6))
        await asyncio.gather(*writes)
        history._known.clear()
        assert [row.attempt for row in await read_attempts(client, run_id)] == [1, 2, 3, 4, 5]
        assert len(await artifacts_of(client, run_id)) == 1


async def test_two_tables_of_one_task_become_one_with_all_rows(server: PrefectServer) -> None:
    """Two workers that created the table at the same moment lose nothing at the next write."""
    async with connected(server) as client:
        run_id = await new_run(client)
        for number in (1, 2):
            artifact = ArtifactCreate(
                key=table_key(run_id),
                type="table",
                data=json.dumps([to_row(attempt(number))]),
                flow_run_id=run_id,
            )
            await client.create_artifact(artifact)
        await write_attempts(client, run_id, [attempt(3)], summary=False)
        assert [row.attempt for row in await read_attempts(client, run_id)] == [1, 2, 3]
        assert len(await artifacts_of(client, run_id)) == 1


async def test_deleted_table_is_created_anew(server: PrefectServer) -> None:
    """A user who deletes the artifact does not break the run."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [attempt(1)], summary=False)
        await client.delete_artifact(UUID((await artifacts_of(client, run_id))[0]["id"]))
        await write_attempts(client, run_id, [attempt(2)], summary=False)
        assert [row.attempt for row in await read_attempts(client, run_id)] == [2]


async def test_foreign_row_is_left_out(
    server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is not a row of ours neither ends the worker nor hides the rows beside it."""
    async with connected(server) as client:
        run_id = await new_run(client)
        data = json.dumps([{"attempt": "x"}, to_row(attempt(1)), 7])
        artifact = ArtifactCreate(
            key=table_key(run_id), type="table", data=data, flow_run_id=run_id
        )
        await client.create_artifact(artifact)
        assert [row.attempt for row in await read_attempts(client, run_id)] == [1]


async def test_end_of_an_attempt_takes_three_requests(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads, two write; right after a read or write of this process it is two."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [attempt(1)], summary=True)
        paths = count_requests(client, monkeypatch)
        await write_attempts(client, run_id, [failed(attempt(1))], summary=True)
        monkeypatch.setattr(history, "_TRUST_SECONDS", -1.0)
        await write_attempts(client, run_id, [failed(attempt(1))], summary=True)
    assert paths == [
        *("PATCH /artifacts/{id}", "PATCH /artifacts/{id}"),
        *("POST /artifacts/filter", "PATCH /artifacts/{id}", "PATCH /artifacts/{id}"),
    ]


async def test_memory_of_tasks_is_bounded(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs for months keeps no more than the newest tasks."""
    monkeypatch.setattr(history, "_MAX_KNOWN_TASKS", 2)
    async with connected(server) as client:
        for _ in range(4):
            await read_attempts(client, uuid4())
    assert len(history._known) == 2


def test_newer_row_of_an_attempt_wins() -> None:
    """The end of an attempt replaces its running row."""
    running = attempt(1)
    assert merge_attempts([running], [failed(running)]) == [failed(running)]


def test_ended_attempt_is_not_reopened() -> None:
    """A late `running` row of a slow writer loses against the end that is stored."""
    running = attempt(1)
    assert merge_attempts([failed(running)], [running]) == [failed(running)]


def test_running_attempt_is_not_planned_again_by_a_late_row() -> None:
    """The row with which a slow writer planned an attempt arrives when that attempt runs."""
    planned = attempt(1, status=AttemptStatus.SCHEDULED)
    running = replace(planned, status=AttemptStatus.RUNNING)
    assert merge_attempts([running], [planned]) == [running]


def test_suspended_attempt_can_go_on() -> None:
    """A flow that paused itself has not ended."""
    suspended = attempt(1, status=AttemptStatus.SUSPENDED)
    running = replace(suspended, status=AttemptStatus.RUNNING)
    assert merge_attempts([suspended], [running]) == [running]


async def test_get_attempts_works_inside_a_running_event_loop(server: PrefectServer) -> None:
    """A notebook has a loop; the synchronous function answers there too."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [attempt(1)], summary=False)
        assert [row.attempt for row in get_attempts(run_id)] == [1]


async def test_aget_attempts_answers_in_asynchronous_code(server: PrefectServer) -> None:
    """The asynchronous twin gives the same rows; an id may be text."""
    async with connected(server) as client:
        run_id = await new_run(client)
        await write_attempts(client, run_id, [attempt(1)], summary=False)
        assert await aget_attempts(str(run_id)) == get_attempts(str(run_id))


async def test_get_attempts_of_an_attempt_run_gives_the_whole_task(server: PrefectServer) -> None:
    """The run of an attempt on another pool leads to the history of its front run."""
    async with connected(server) as client:
        front_id = await new_run(client)
        await write_attempts(client, front_id, [failed(attempt(1)), attempt(2)], summary=False)
        front = await client.read_flow_run(front_id)
        body = {"flow_id": str(front.flow_id), "labels": {TASK_ID_LABEL: str(front_id)}}
        response = await client.request("POST", "/flow_runs/", json=body)
        assert [row.attempt for row in get_attempts(response.json()["id"])] == [1, 2]


async def test_get_attempts_of_an_unknown_run_says_so(server: PrefectServer) -> None:
    """The error names the id."""
    unknown = uuid4()
    async with connected(server):
        with pytest.raises(ObjectNotFound, match=f"no flow run with id {unknown}"):
            get_attempts(unknown)


def test_get_attempts_of_a_text_that_is_no_id_says_so() -> None:
    """A name is not an id; nothing is asked for."""
    with pytest.raises(ValueError, match="'my-run' is not the id of a flow run"):
        get_attempts("my-run")


async def test_whatever_a_row_holds_both_artifacts_can_be_stored(server: PrefectServer) -> None:
    async with connected(server) as client:
        run_id = await new_run(client)
        row = replace(failed(attempt(1)), reason="a\x00b\udcff", cleanup="\udcff.lock")
        await write_attempts(client, run_id, [row], summary=True)
        (stored,) = await read_attempts(client, run_id)
        assert (stored.reason, stored.cleanup) == (r"a\x00b\xff", r"\xff.lock")
        assert len(await artifacts_of(client, run_id)) == 2
