"""`heteroflow nodes` and `heteroflow pool` on a real server, and without one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import typer
from click.testing import Result
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from typer.testing import CliRunner

from prefect_heteroflow.cli import nodes, pools
from prefect_heteroflow.cli.nodes import age_text, gpus_text
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.resources import Gpu, Node
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from prefect_heteroflow.orchestration.nodes import cordon_node, publish_node
from tests.support import free_port
from tests.support.prefect_server import PrefectServer

app = typer.Typer()
nodes.register(app)
pools.register(app)


@pytest.fixture
def api(server: PrefectServer) -> Iterator[PrefectServer]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield server


def run_command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, arguments)


def with_client(work: Callable[[PrefectClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with get_client() as client:
            return await work(client)

    return asyncio.run(run())


def new_pool() -> str:
    name = f"pool-{uuid4().hex[:8]}"
    with_client(
        lambda it: it.create_work_pool(WorkPoolCreate(name=name, type="heteroflow-process"))
    )
    return name


def publish(name: str, pool: str, *, age: float = 0, **values: Any) -> None:
    node = Node(name=name, pool=pool, memory_mb=65536, **values)
    at = utc_now() - timedelta(seconds=age)
    with_client(lambda it: publish_node(it, node, worker_instance_id="w", heartbeat_at=at))


def line_with(text: str, output: str) -> str:
    return next(line for line in output.splitlines() if text in line)


def test_nodes_table_shows_what_a_person_asks_for(api: PrefectServer) -> None:
    """Pool, memory, GPUs, life, cordon, last error."""
    pool = new_pool()
    gpus = tuple(Gpu(uuid=f"GPU-{n}", name="NVIDIA A10", memory_mb=24576) for n in range(2))
    publish(f"{pool}-a", pool, gpus=gpus, last_error="[disk] full")
    publish(f"{pool}-b", pool, age=7200)
    assert run_command("nodes", "cordon", f"{pool}-a", "--reason", "fan").exit_code == 0
    result = run_command("nodes")
    assert result.exit_code == 0
    first = line_with(f"{pool}-a", result.stdout)
    for text in ("65536", "2 x 24576 NVIDIA A10", "live, cordoned, ", "s ago"):
        assert text in first
    assert f" {pool}-a: last error: [disk] full" in result.stdout.splitlines()
    assert f" {pool}-a: cordoned: fan, " in line_with(f"{pool}-a: cordoned", result.stdout)
    second = line_with(f"{pool}-b", result.stdout)
    for text in ("none", "not live", "2 h ago"):
        assert text in second
    assert run_command("nodes", "uncordon", f"{pool}-a").exit_code == 0
    output = run_command("nodes").stdout
    assert "cordoned" not in line_with(f"{pool}-a", output)
    assert f"{pool}-a: cordoned" not in output


def test_nodes_json_has_every_field(api: PrefectServer) -> None:
    """For scripts: numbers stay numbers, unknown is null."""
    pool = new_pool()
    gpu = Gpu(uuid="GPU-1", name="A10", memory_mb=24576)
    publish(f"{pool}-a", pool, gpus=(gpu,), docker=True)
    found = json.loads(run_command("nodes", "--json").stdout)["nodes"]
    node = next(node for node in found if node["pool"] == pool)
    assert node["name"] == f"{pool}-a"
    assert node["memory_mb"] == 65536
    assert node["gpus"] == [
        {"uuid": "GPU-1", "name": "A10", "memory_mb": 24576, "free_mb": None, "healthy": None}
    ]
    assert node["live"] is True
    assert node["cordoned"] is False
    assert node["last_error"] is None
    assert node["docker"] is True


def test_node_ls_shows_what_nodes_shows(api: PrefectServer) -> None:
    """As `pool ls` and `breaker ls`."""
    listed = [
        [each["name"] for each in json.loads(run_command(*words, "--json").stdout)["nodes"]]
        for words in (["nodes"], ["node", "ls"])
    ]
    assert listed[0] == listed[1] != []


def test_cordon_of_an_unknown_node_is_refused(api: PrefectServer) -> None:
    """With a list of those that there are."""
    result = run_command("nodes", "cordon", "no-such-node")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: There is no node 'no-such-node'. ")
    result = run_command("node", "uncordon", "no-such-node")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: There is no node 'no-such-node'. ")


@pytest.mark.parametrize("word", ["node", "nodes"])
def test_node_is_cordoned_and_used_again(api: PrefectServer, word: str) -> None:
    """Under the name of one node as under that of all; twice does no harm."""
    pool = new_pool()
    publish(f"{pool}-a", pool)
    assert run_command(word, "cordon", f"{pool}-a").stdout == (
        f"Node {pool}-a is cordoned: by hand\n"
    )
    assert run_command(word, "uncordon", f"{pool}-a").stdout == f"Node {pool}-a is in use again.\n"
    assert run_command(word, "uncordon", f"{pool}-a").stdout == (
        f"Node {pool}-a was not cordoned.\n"
    )


def test_nodes_show_why_and_since_when_something_is_cordoned(api: PrefectServer) -> None:
    """The whole node, and single GPUs of it."""
    pool = new_pool()
    name = f"{pool}-a"
    publish(name, pool, gpus=(Gpu(uuid="GPU-12345678", name="A10", memory_mb=24576),))
    at = utc_now() - timedelta(minutes=5)

    async def cordon_both(client: PrefectClient) -> None:
        await cordon_node(client, name, reason="Xid 94", at=at, gpu_uuid="GPU-12345678")
        await cordon_node(client, name, reason="fan", at=at)

    with_client(cordon_both)
    shown = line_with(f"{name}: cordoned", run_command("nodes").stdout)
    assert shown == f" {name}: cordoned: fan; GPU-12345678: Xid 94, 5 min ago"
    found = json.loads(run_command("nodes", "--json").stdout)["nodes"]
    node = next(node for node in found if node["name"] == name)
    assert node["cordoned_gpus"] == {"GPU-12345678": "Xid 94"}
    assert node["cordoned_at"] == at.isoformat()


def node_names() -> list[str]:
    return [it["name"] for it in json.loads(run_command("nodes", "--json").stdout)["nodes"]]


@pytest.mark.parametrize("word", ["node", "nodes"])
def test_node_that_is_gone_is_forgotten(api: PrefectServer, word: str) -> None:
    """What was decommissioned does not stand in the list for ever."""
    pool = new_pool()
    publish(f"{pool}-a", pool, age=7200)
    publish(f"{pool}-b", pool, age=7200)
    result = run_command(word, "forget", f"{pool}-a", f"{pool}-b")
    assert (result.exit_code, result.stdout) == (
        0,
        f"Node {pool}-a is forgotten.\nNode {pool}-b is forgotten.\n",
    )
    assert not {f"{pool}-a", f"{pool}-b"} & set(node_names())


def test_forgotten_node_loses_its_cordon(api: PrefectServer) -> None:
    """A new machine of the same name must not be out of use for a reason that nobody sees."""
    pool = new_pool()
    name = f"{pool}-a"
    publish(name, pool, age=7200)
    run_command("node", "cordon", name)
    assert run_command("node", "forget", name).stdout == (
        f"Node {name} is forgotten, and so is its cordon.\n"
    )
    publish(name, pool)
    assert run_command("node", "uncordon", name).stdout == f"Node {name} was not cordoned.\n"


def test_node_whose_worker_lives_is_not_forgotten(api: PrefectServer) -> None:
    """Nor are those that were named with it."""
    pool = new_pool()
    publish(f"{pool}-a", pool, age=7200)
    publish(f"{pool}-b", pool, age=12)
    result = run_command("node", "forget", f"{pool}-a", f"{pool}-b")
    assert result.exit_code == 2
    assert re.fullmatch(
        rf"Error: Node {pool}-b is in use: its worker was heard of 1\d s ago; stop it first\.",
        result.stderr.strip(),
    )
    assert {f"{pool}-a", f"{pool}-b"} <= set(node_names())


def test_unknown_node_is_not_forgotten(api: PrefectServer) -> None:
    """With a list of those that there are."""
    pool = new_pool()
    publish(f"{pool}-a", pool, age=7200)
    result = run_command("node", "forget", f"{pool}-a", "no-such-node")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: There is no node 'no-such-node'. There are: ")
    assert f"{pool}-a" in node_names()


def test_node_with_a_run_that_nobody_has_moved_is_not_forgotten(api: PrefectServer) -> None:
    """Only runs of published nodes are noticed as lost: this one would stay `Running` for ever."""
    pool = new_pool()
    publish(f"{pool}-a", pool, age=7200)

    async def leave_run(client: PrefectClient) -> FlowRun:
        flow_id = await client.create_flow_from_name("left")
        body = {"flow_id": str(flow_id), "work_pool_name": pool, "state": {"type": "RUNNING"}}
        run = FlowRun.model_validate(
            (await client.request("POST", "/flow_runs/", json=body)).json()
        )
        row = Attempt(
            attempt=1,
            flow_run_id=str(run.id),
            status=AttemptStatus.RUNNING,
            pool=pool,
            node=f"{pool}-a",
        )
        await write_attempts(client, run.id, [row], summary=False)
        return run

    run = with_client(leave_run)
    result = run_command("node", "forget", f"{pool}-a")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"Error: Node {pool}-a has runs that are not settled yet: {run.name}. "
    )
    assert f"{pool}-a" in node_names()


def test_pool_is_tagged_listed_and_untagged(api: PrefectServer) -> None:
    """The way a user declares a pool that has no live node yet."""
    pool = new_pool()
    result = run_command("pool", "tag", pool, "--gpu-memory-mb", "24576", "--memory-mb", "65536")
    assert result.stdout == (f"Tagged work pool {pool}: 24576 MB GPU memory, 65536 MB memory.\n")
    publish(f"{pool}-a", pool)
    publish(f"{pool}-b", pool, age=7200)
    found = json.loads(run_command("pool", "ls", "--json").stdout)["pools"]
    assert next(it for it in found if it["name"] == pool) == {
        "name": pool,
        "type": "heteroflow-process",
        "paused": False,
        "memory_mb": 65536,
        "gpu_memory_mb": 24576,
        "gpu_count": None,
        "live_nodes": [f"{pool}-a"],
        "other_nodes": [f"{pool}-b"],
    }
    line = line_with(pool, run_command("pool", "ls").stdout)
    assert "24576 MB GPU memory, 65536 MB memory" in line
    assert run_command("pool", "untag", pool).stdout == (
        f"Work pool {pool} is not tagged any more.\n"
    )
    assert run_command("pool", "untag", pool).stdout == f"Work pool {pool} was not tagged.\n"


def new_pool_of_prefects() -> str:
    name = f"pool-{uuid4().hex[:8]}"
    with_client(lambda it: it.create_work_pool(WorkPoolCreate(name=name, type="process")))
    return name


def test_pool_that_no_worker_of_ours_serves_is_tagged_with_a_warning(api: PrefectServer) -> None:
    """Runs may go there, and should be sent there knowingly."""
    pool = new_pool_of_prefects()
    result = run_command("pool", "tag", pool, "--memory-mb", "500")
    assert (result.exit_code, result.stdout) == (0, f"Tagged work pool {pool}: 500 MB memory.\n")
    assert f"Warning: {pool} is of type 'process', which no worker of ours serves" in result.stderr


def test_pool_of_ours_is_tagged_without_a_warning(api: PrefectServer) -> None:
    assert run_command("pool", "tag", new_pool(), "--memory-mb", "500").stderr == ""


def test_pool_that_no_worker_of_ours_serves_is_listed_as_such(api: PrefectServer) -> None:
    """At any width: a narrow terminal has no room for the types."""
    pool = new_pool_of_prefects()
    lines = CliRunner(env={"COLUMNS": "40"}).invoke(app, ["pool", "ls"]).stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if pool in line)
    assert "(no worker of ours)" in lines[place + 1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tag", "no-such-pool", "--memory-mb", "1"], "There is no work pool 'no-such-pool'."),
        (["untag", "no-such-pool"], "There is no work pool 'no-such-pool'."),
        (["tag", "no-such-pool"], "Nothing to declare"),
        (["tag", "p", "--memory-mb", "0"], "0 is not allowed; give a whole number from 1 on"),
        (["tag", "p", "--memory-mb", "8GB"], "8GB is not allowed; give a whole number from 1 on"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    api: PrefectServer, arguments: list[str], complaint: str
) -> None:
    """Exit status 2 and what to do, no traceback."""
    result = run_command("pool", *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output


COMMANDS = [
    ["nodes"],
    ["nodes", "--json"],
    ["nodes", "cordon", "n"],
    ["node", "cordon", "n"],
    ["nodes", "uncordon", "n"],
    ["node", "forget", "n"],
    ["pool", "ls"],
    ["pool", "tag", "p", "--memory-mb", "1"],
    ["pool", "untag", "p"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_unreachable_api_is_one_line_and_exit_1(arguments: list[str]) -> None:
    """What was tried and what to do."""
    url = f"http://127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: url, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}):
        result = run_command(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"Error: The Prefect API at {url} cannot be reached ")
    assert "prefect server start" in result.stderr


def test_unreadable_setting_is_one_line(
    api: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is named."""
    name = "PREFECT_INTEGRATIONS_HETEROFLOW_NODE_LIVENESS_SECONDS"
    monkeypatch.setenv(name, "soon")
    result = run_command("nodes")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {name} is 'soon': ")
    assert len(result.stderr.splitlines()) == 1


def test_name_that_is_no_setting_is_told_once(
    api: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error: scripts read the other one. Its value may be a secret."""
    monkeypatch.setenv("PREFECT_INTEGRATIONS_HETEROFLOW_NODE_LIVENES", "hunter2")
    result = run_command("nodes", "--json")
    assert json.loads(result.stdout)
    assert result.stderr.splitlines() == [
        "Warning: PREFECT_INTEGRATIONS_HETEROFLOW_NODE_LIVENES is no setting of prefect-heteroflow"
        " and is ignored; did you mean NODE_LIVENESS_SECONDS?"
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s ago"), (59.9, "59 s ago"), (60, "1 min ago"), (7199, "1 h ago"), (1e6, "11 d ago")],
)
def test_age_is_rounded_down(seconds: float, text: str) -> None:
    """The largest unit that is full."""
    assert age_text(seconds) == text


def test_gpus_out_of_use_are_told_apart() -> None:
    """Equal GPUs are counted, sick ones apart; memory that NVML cannot say is unknown."""
    gpu = Gpu(uuid="1", name="A10", memory_mb=24576)
    sick = Gpu(uuid="2", name="A10", memory_mb=24576, healthy=False)
    lost = Gpu(uuid="3", name="", memory_mb=0, healthy=False)
    assert gpus_text((gpu, gpu, sick, lost)) == (
        "2 x 24576 A10, 1 x 24576 A10 (out of use), 1 x unknown memory (out of use)"
    )
    assert gpus_text(()) == "none"
