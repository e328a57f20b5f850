"""`heteroflow breaker` on a real server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import Result
from prefect.client.orchestration import PrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running
from typer.testing import CliRunner

from prefect_heteroflow.cli import app
from prefect_heteroflow.core.breaker import BreakerPolicy, deployment_key, reset
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration.approval import Hold, await_approval
from prefect_heteroflow.orchestration.breaker_store import admit_retry, change_breaker
from prefect_heteroflow.orchestration.clock import utc_now
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

HETEROFLOW = str(Path(sys.executable).with_name("heteroflow"))
POOL = "cli-breakers"


@pytest.fixture(autouse=True)
def _settings(server: PrefectServer) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield


@pytest.fixture(scope="module")
def deployment(api: Api) -> str:
    api.create_pool(POOL, "heteroflow-process")
    return api.deploy("host_oom", POOL, name="breakers")


@pytest.fixture
def key() -> str:
    """An open breaker of this test alone."""
    found = deployment_key(str(uuid4()), FailureClass.UNKNOWN_ERROR)

    async def open_it(client: PrefectClient) -> None:
        for holder in ("a", "b", "c"):
            await admit_retry(client, [found], holder=holder, policy=BreakerPolicy(), now=utc_now())

    with_client(open_it)
    return found


def with_client(work: Callable[[PrefectClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with get_client() as client:
            return await work(client)

    return asyncio.run(run())


def run_command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "240"}).invoke(app, ["breaker", *arguments])


def held_run(api: Api, deployment: str, *keys: str) -> str:
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))

    async def hold(client: PrefectClient) -> None:
        await client.set_flow_run_state(run_id, Running(), force=True)
        assert await await_approval(
            client,
            await client.read_flow_run(run_id),
            hold=Hold(holder=f"{run_id}:2", keys=keys),
            message="held",
            job_variables={},
            now=utc_now(),
        )

    with_client(hold)
    return str(run_id)


def test_breakers_and_held_runs_are_listed_for_people(api: Api, deployment: str, key: str) -> None:
    run = held_run(api, deployment, key)
    name = api.run(run)["name"]
    lines = [" ".join(line.split()) for line in run_command("ls").stdout.splitlines()]
    assert f"{key} open - 0 s ago" in [re.sub(r"\d+ s ago", "0 s ago", line) for line in lines]
    assert f"{key}: More than 2 restarts within 600 s: the breaker opened." in lines
    assert f"{name} {run} 0 s ago" in [re.sub(r"\d+ s ago", "0 s ago", line) for line in lines]
    assert f"{name}: held by {key}" in lines


def test_breaker_is_listed_with_the_name_of_its_deployment(deployment: str) -> None:
    """A person knows no ids."""
    key = deployment_key(deployment, FailureClass.UNKNOWN_ERROR)
    with_client(
        lambda it: admit_retry(it, [key], holder="a", policy=BreakerPolicy(), now=utc_now())
    )
    assert f" {key}: deployment host-oom/breakers" in run_command("ls").stdout.splitlines()


def test_breakers_and_held_runs_are_listed_for_scripts(api: Api, deployment: str, key: str) -> None:
    run = held_run(api, deployment, key)
    report = json.loads(run_command("ls", "--json").stdout)
    (breaker,) = [it for it in report["breakers"] if it["key"] == key]
    assert (breaker["status"], breaker["trial"]) == ("open", None)
    (held,) = [it for it in report["awaiting_approval"] if it["id"] == run]
    assert (held["keys"], held["message"]) == ([key], "held")


def test_restarts_are_counted_only_while_the_breaker_is_closed(key: str) -> None:
    """An open one has dropped its count, and 0 beside "More than 2 restarts" would be a lie."""
    closed = deployment_key(str(uuid4()), FailureClass.UNKNOWN_ERROR)
    with_client(
        lambda it: admit_retry(it, [closed], holder="a", policy=BreakerPolicy(), now=utc_now())
    )
    report = json.loads(run_command("ls", "--json").stdout)
    restarts = {it["key"]: it["restarts"] for it in report["breakers"]}
    assert (restarts[closed], restarts[key]) == (1, None)


def test_only_breakers_that_are_not_closed_hold_a_run(api: Api, deployment: str, key: str) -> None:
    """The run must pass all of them, and a closed one is no reason to wait."""
    closed = deployment_key(str(uuid4()), FailureClass.PROCESS_CRASHED)
    run = held_run(api, deployment, closed, key)
    name = api.run(run)["name"]
    told = [line for line in run_command("ls").stdout.splitlines() if line.startswith(f" {name}:")]
    assert told == [f" {name}: held by {key}"]


def test_held_run_whose_breakers_are_closed_goes_on_by_itself(
    api: Api, deployment: str, key: str
) -> None:
    run = held_run(api, deployment, key)
    name = api.run(run)["name"]
    closed = reset("Reset by a person.")
    with_client(lambda it: change_breaker(it, key, lambda _: (closed, None), now=utc_now()))
    told = [line for line in run_command("ls").stdout.splitlines() if line.startswith(f" {name}:")]
    run_command("approve", run)  # as a worker would: the next reset is not to find it
    assert told == [f" {name}: all its breakers are closed; it goes on by itself shortly"]


def test_reset_closes_the_breaker_and_lets_only_its_own_runs_go(
    api: Api, deployment: str, key: str
) -> None:
    async def open_another(client: PrefectClient) -> None:
        for holder in ("a", "b", "c"):
            await admit_retry(
                client, [f"{key}Other"], holder=holder, policy=BreakerPolicy(), now=utc_now()
            )

    with_client(open_another)
    mine, others = held_run(api, deployment, key), held_run(api, deployment, key, f"{key}Other")
    answer = run_command("reset", key)
    assert f"Breaker {key} is closed.\nRuns that go on: 1.\n" in answer.stdout
    assert api.run(mine)["state"]["name"] == "Resuming"
    assert api.run(others)["state"]["name"] == "AwaitingApproval"


def test_reset_by_the_name_of_a_deployment_closes_all_its_breakers(
    api: Api, deployment: str, key: str
) -> None:
    """A person knows no ids; `ls` names the deployment."""
    mine = api.deploy("host_oom", POOL, name=f"reset-{uuid4().hex[:8]}")
    name = f"host-oom/{api.get(f'/deployments/{mine}')['name']}"
    keys = [
        deployment_key(mine, FailureClass.UNKNOWN_ERROR),
        deployment_key(mine, FailureClass.PROCESS_CRASHED, job="abc"),
    ]

    async def open_them(client: PrefectClient) -> None:
        for each in keys:
            for holder in ("a", "b", "c"):
                await admit_retry(
                    client, [each], holder=holder, policy=BreakerPolicy(), now=utc_now()
                )

    with_client(open_them)
    runs = {held_run(api, mine, each) for each in keys}
    answer = run_command("reset", name)
    assert answer.exit_code == 0, answer.output
    assert [line for line in answer.stdout.splitlines() if line.endswith("is closed.")] == [
        f"Breaker {each} is closed." for each in sorted(keys)
    ]
    assert "Runs that go on: 2." in answer.stdout
    assert {api.run(run)["state"]["name"] for run in runs} == {"Resuming"}
    report = json.loads(run_command("ls", "--json").stdout)
    status = {it["key"]: it["status"] for it in report["breakers"]}
    assert ([status[each] for each in keys], status[key]) == (["closed", "closed"], "open")


def test_reset_by_a_deployment_without_breakers_is_refused(api: Api, deployment: str) -> None:
    mine = api.deploy("host_oom", POOL, name=f"reset-{uuid4().hex[:8]}")
    name = f"host-oom/{api.get(f'/deployments/{mine}')['name']}"
    answer = run_command("reset", name)
    assert answer.exit_code == 2
    assert f"There is no breaker {name!r}." in answer.stderr


def test_reset_in_a_process_of_its_own_is_told_by_an_event(
    server: PrefectServer, api: Api, key: str
) -> None:
    """A short process must not end before its event is sent."""
    done = subprocess.run(
        [HETEROFLOW, "breaker", "reset", key],
        env=server.env(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "is closed" in done.stdout

    def told() -> bool:
        body = {"filter": {"resource": {"id": [f"prefect-heteroflow.breaker.{key}"]}}}
        names = [event["event"] for event in api.post("/events/filter", body)["events"]]
        return "prefect-heteroflow.breaker.closed" in names

    wait_until(told, what="event of the reset breaker")


@pytest.mark.parametrize("by", ["id", "name"])
def test_approve_lets_one_run_go_on(api: Api, deployment: str, key: str, by: str) -> None:
    run, waiting = held_run(api, deployment, key), held_run(api, deployment, key)
    answer = run_command("approve", api.run(run)[by])
    assert answer.exit_code == 0, answer.output
    assert api.run(run)["state"]["name"] == "Resuming"
    assert api.run(waiting)["state"]["name"] == "AwaitingApproval"


def test_unknown_breaker_is_refused_and_the_known_ones_are_named(key: str) -> None:
    answer = run_command("reset", "node:no-such-node")
    assert answer.exit_code == 2
    assert "There is no breaker 'node:no-such-node'. There are: " in answer.stderr
    assert key in answer.stderr


def test_run_that_does_not_wait_is_refused(api: Api, deployment: str) -> None:
    run = api.submit(deployment, {"need_mb": 1})
    answer = run_command("approve", run)
    assert answer.exit_code == 2
    assert f"The run {run!r} does not wait for approval. Waiting: " in answer.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BREAKER_WINDOW", "-1"),
        ("BREAKER_COOLDOWN", "-0.5"),
        ("BREAKER_TRIAL_TIMEOUT", "nan"),
        ("BREAKER_MAX_RESTARTS", "-2"),
        ("BREAKER_MAX_RESTARTS", "1.5"),
    ],
)
def test_setting_out_of_its_range_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, key: str, name: str, value: str
) -> None:
    monkeypatch.setenv(f"PREFECT_INTEGRATIONS_HETEROFLOW_{name}", value)
    answer = run_command("reset", key)
    assert answer.exit_code == 2
    assert f"PREFECT_INTEGRATIONS_HETEROFLOW_{name} is {value!r}: " in answer.stderr
