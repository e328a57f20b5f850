"""`heteroflow retries` on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import Result
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from prefect.states import AwaitingRetry, Completed, Scheduled, to_state_create
from typer.testing import CliRunner

from prefect_heteroflow.cli import app
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from prefect_heteroflow.orchestration.nodes import cordon_node, publish_node
from tests.support import free_port
from tests.support.prefect_server import PrefectServer


@flow(name="retries-test")
def nothing() -> None:
    """Only its runs are needed."""


@pytest.fixture
def api(server: PrefectServer) -> Iterator[PrefectServer]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield server


def run_command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["retries", *arguments])


def killed(number: int) -> Attempt:
    return Attempt(
        attempt=number,
        flow_run_id=str(uuid4()),
        status=AttemptStatus.FAILED,
        pool="gpu-8gb",
        node="node-1",
        failure="CpuOutOfMemory",
        reason="The kernel killed it at 4096 MB [cgroup].",
        decision="retry with 8192 MB on node-1",
        memory_mb=4096,
        exit_code=137,
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
    )


def write_rows(run_id: UUID, *attempts: Attempt) -> None:
    async def write() -> None:
        async with get_client() as client:
            await write_attempts(client, run_id, attempts, summary=True)

    asyncio.run(write())


def new_run(name: str, *attempts: Attempt) -> UUID:
    async def create() -> UUID:
        async with get_client() as client:
            run = await client.create_flow_run(nothing, name=name)
            if attempts:
                await write_attempts(client, run.id, attempts, summary=True)
            return run.id

    return asyncio.run(create())


def test_json_has_the_documented_fields(api: PrefectServer) -> None:
    """Scripts read `task_id` and one entry per attempt."""
    run_id = new_run("json-run", killed(1))
    report = json.loads(run_command(str(run_id), "--json").stdout)
    entry = report["retries"][0]
    assert report["task_id"] == str(run_id)
    assert {
        "attempt": 1,
        "node_id": "node-1",
        "error": "OOM Killed",
        "memory_mb": 4096,
        "status": "failed",
        "timestamp": "2026-01-01T00:01:00+00:00",
    }.items() <= entry.items()


def test_table_shows_reason_and_decision_as_they_are(api: PrefectServer) -> None:
    """Brackets in a reason are text, not markup."""
    output = run_command(str(new_run("table-run", killed(1)))).stdout
    assert "The kernel killed it at 4096 MB [cgroup]." in output
    assert "retry with 8192 MB on node-1" in output


def test_name_stands_for_the_newest_run_of_that_name(api: PrefectServer) -> None:
    """The second run of the name is the one that is shown."""
    name = f"twice-{uuid4()}"
    new_run(name, killed(1))
    newest = new_run(name, killed(1), killed(2))
    report = json.loads(run_command(name, "--json").stdout)
    assert (report["task_id"], len(report["retries"])) == (str(newest), 2)


def planned(number: int, flow_run_id: UUID | str = "") -> Attempt:
    return Attempt(
        attempt=number, flow_run_id=str(flow_run_id), status=AttemptStatus.SCHEDULED, pool="gpu-8gb"
    )


def set_state(run_id: UUID, state: State[Any]) -> None:
    async def set_it() -> None:
        async with get_client() as client:
            await client.set_flow_run_state(run_id, state, force=True)

    asyncio.run(set_it())


def awaiting_approval() -> State[Any]:
    """As `orchestration.approval` writes it."""
    return State[Any](
        type=StateType.PAUSED,
        name="AwaitingApproval",
        message="held by a breaker",
        state_details=StateDetails(pause_reschedule=True),
    )


def lines_of(run_id: UUID) -> list[str]:
    return [line.rstrip() for line in run_command(str(run_id)).stdout.splitlines()]


def test_run_that_waits_for_approval_says_why_and_what_to_type(api: PrefectServer) -> None:
    """Its attempt is only `scheduled`."""
    run_id = new_run("held-run", killed(1), planned(2))
    set_state(run_id, awaiting_approval())
    assert lines_of(run_id)[-2:] == [
        "AwaitingApproval: held by a breaker",
        f"To let it go on: heteroflow breaker approve {run_id}",
    ]


def test_attempt_run_that_waits_for_approval_is_named(api: PrefectServer) -> None:
    """An attempt on another pool has a run of its own, and that is the one to approve."""
    other = new_run("held-attempt-run")
    set_state(other, awaiting_approval())
    run_id = new_run("escalated-run", killed(1), planned(2, other))
    assert lines_of(run_id)[-2:] == [
        f"held-attempt-run ({other}): AwaitingApproval: held by a breaker",
        f"To let it go on: heteroflow breaker approve {other}",
    ]


def test_run_that_waits_for_its_retry_says_what_for(api: PrefectServer) -> None:
    run_id = new_run("awaiting-run", killed(1), planned(2))
    due = datetime.now(timezone.utc) + timedelta(hours=1)
    set_state(run_id, AwaitingRetry(scheduled_time=due, message="It waits for node-1."))
    assert lines_of(run_id)[-1] == "AwaitingRetry: It waits for node-1."


def test_decision_is_not_told_twice(api: PrefectServer) -> None:
    """The state of a planned retry has the decision as its message."""
    decision = killed(1).decision
    run_id = new_run("planned-run", killed(1), planned(2))
    due = datetime.now(timezone.utc) + timedelta(hours=1)
    set_state(run_id, AwaitingRetry(scheduled_time=due, message=decision))
    assert run_command(str(run_id)).stdout.count(str(decision)) == 1


def test_run_without_a_work_pool_is_not_waited_for(api: PrefectServer) -> None:
    """An empty history is no error, and no worker will ever take it."""
    run_id = new_run("local-run")
    set_state(run_id, Completed())
    result = run_command(str(run_id))
    assert result.exit_code == 0
    assert "yet" not in result.stdout
    assert "It has no work pool: it ran where its flow was called or served" in one_line(result)


def one_line(result: Result) -> str:
    return " ".join(result.stdout.split())


def new_pool(worker_type: str = "heteroflow-process") -> str:
    name = f"retries-{uuid4().hex[:8]}"

    async def create() -> None:
        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=name, type=worker_type))

    asyncio.run(create())
    return name


def run_in(pool: str, due: timedelta = timedelta(0)) -> UUID:
    """A run that waits in the pool, as one of a deployment does."""

    async def create() -> UUID:
        async with get_client() as client:
            flow_id = await client.create_flow(nothing)
            state = Scheduled(scheduled_time=datetime.now(timezone.utc) + due)
            body = {
                "flow_id": str(flow_id),
                "work_pool_name": pool,
                "state": to_state_create(state).model_dump(mode="json", exclude_unset=True),
            }
            return UUID((await client.request("POST", "/flow_runs/", json=body)).json()["id"])

    return asyncio.run(create())


def publish(name: str, pool: str, *, age: float = 0, cordon: str | None = None) -> None:
    async def write() -> None:
        async with get_client() as client:
            node = Node(name=name, pool=pool, memory_mb=65536)
            at = utc_now() - timedelta(seconds=age)
            await publish_node(client, node, worker_instance_id="w", heartbeat_at=at)
            if cordon is not None:
                await cordon_node(client, name, reason=cordon, at=utc_now())

    asyncio.run(write())


def test_run_that_waits_for_a_cordon_says_which_node_and_what_to_type(api: PrefectServer) -> None:
    """The worker's log says it too, where nobody looks."""
    pool = new_pool()
    publish(f"{pool}-a", pool, cordon="fan broken")
    publish(f"{pool}-b", pool, age=7200)
    said = one_line(run_command(str(run_in(pool))))
    assert f"It waits: no node of pool {pool} takes runs." in said
    way_out = f"`heteroflow node uncordon {pool}-a` lets it start."
    assert f"Node {pool}-a is cordoned (fan broken): {way_out}" in said
    assert (
        f"Node {pool}-b is away (last heard of 2 h ago): a worker that is started there lets it"
        " start." in said
    )


def test_run_in_a_pool_without_nodes_says_how_to_start_one(api: PrefectServer) -> None:
    pool = new_pool()
    command = f"prefect worker start --pool {pool} --type heteroflow-process"
    said = one_line(run_command(str(run_in(pool))))
    assert f"Pool {pool} has no node: start a worker with `{command}`." in said


def test_run_in_a_pool_with_a_live_node_is_about_to_be_taken(api: PrefectServer) -> None:
    """The near miss: the cordoned node beside it is no obstacle."""
    pool = new_pool()
    publish(f"{pool}-a", pool)
    publish(f"{pool}-b", pool, cordon="fan broken")
    said = one_line(run_command(str(run_in(pool))))
    assert f"Live in pool {pool}: {pool}-a. A node takes it when it has room for it." in said
    assert "cordoned" not in said


def test_run_that_is_not_due_says_when_it_is(api: PrefectServer) -> None:
    said = one_line(run_command(str(run_in(new_pool(), timedelta(hours=1)))))
    assert "No heteroflow worker has taken this run yet. It is due at " in said
    assert "has no node" not in said


def test_run_of_a_pool_that_is_not_ours_says_so(api: PrefectServer) -> None:
    pool = new_pool("process")
    said = one_line(run_command(str(run_in(pool))))
    assert f"It runs in work pool {pool} of type 'process': no worker of ours" in said


def test_retry_that_is_due_says_which_node_it_waits_for(api: PrefectServer) -> None:
    """It has attempts, and still nobody takes it."""
    pool = new_pool()
    publish(f"{pool}-a", pool, cordon="fan broken")
    run_id = run_in(pool)
    write_rows(run_id, killed(1), planned(2, run_id))
    due = datetime.now(timezone.utc) - timedelta(minutes=1)
    set_state(run_id, AwaitingRetry(scheduled_time=due, message="retry on the same node"))
    said = one_line(run_command(str(run_id)))
    assert f"Node {pool}-a is cordoned (fan broken)" in said


@pytest.mark.parametrize("run", ["no-such-name", str(UUID(int=1))])
def test_unknown_run_is_one_line_and_exit_code_1(api: PrefectServer, run: str) -> None:
    """No traceback; the line names what was asked for."""
    result = run_command(run)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is no flow run")
    assert run in result.stderr


def test_unreachable_api_is_one_line_and_exit_code_1() -> None:
    """The line names the address and what to do, without the password in the address."""
    settings = {
        PREFECT_API_URL: f"http://user:secret@127.0.0.1:{free_port()}/api",
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
    }
    with temporary_settings(settings):
        result = run_command("some-run")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "prefect server start" in result.stderr
    assert "secret" not in result.stderr
