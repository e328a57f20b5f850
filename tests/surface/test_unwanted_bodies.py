"""Bodies on other pools whose flow is gone are ended; those that somebody waits for are not."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.attempts import unwanted_bodies
from prefect_heteroflow.attempts.unwanted_bodies import UnwantedBodies
from prefect_heteroflow.orchestration import task_bodies
from prefect_heteroflow.task_runner import sign_of_life
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Api, Worker

ROOT = Path(__file__).parents[2]
PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
POOL = "bodies-large"
LIVENESS_SECONDS = 30.0


# ---- a real flow, a real worker ------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_node(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A node of another pool with more memory, which gives flows up after 30 s of silence."""
    api.create_pool(POOL, "heteroflow-process")
    with Worker(
        server,
        tmp_path_factory.mktemp("bodies"),
        pool=POOL,
        node="node-bodies",
        memory_mb=8192,
        settings={f"{PREFIX}NODE_LIVENESS_SECONDS": str(LIVENESS_SECONDS)},
    ) as running:
        yield running


@contextmanager
def waiting_flow(server: PrefectServer, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The flow in a process of its own, once the body runs on the other pool."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.waiting_flow", str(folder)],
            env=server.env(PYTHONPATH=str(ROOT), **{f"{PREFIX}NODE_MEMORY_MB": "3000"}),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until((folder / "started").exists, what="start of the body", timeout_seconds=120)
            yield process
        finally:
            process.kill()
            process.wait()


def runs_of(api: Api, name: str) -> list[dict[str, Any]]:
    """Flow runs of that flow, the newest first."""
    body = {"flows": {"name": {"any_": [name]}}, "sort": "START_TIME_DESC"}
    found: list[dict[str, Any]] = api.post("/flow_runs/filter", body)
    return found


def body_is_gone(folder: Path) -> bool:
    pid = int((folder / "started").read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("large_node")
def test_body_of_a_flow_that_was_killed_is_cancelled(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """SIGKILL leaves no time to say anything; the silence is noticed."""
    with waiting_flow(server, tmp_path) as process:
        run = runs_of(api, task_bodies.FLOW_NAME)[0]
        process.kill()
        process.wait()
        ended = api.wait_state(run["id"], "Cancelled", timeout_seconds=LIVENESS_SECONDS + 90)
        assert ended["work_pool_name"] == POOL
        wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=30)
    messages = [state.message for state in api.states(run["id"])]
    assert any(message.startswith(task_bodies.SILENT) for message in messages)


@pytest.mark.usefixtures("large_node")
def test_body_of_a_flow_run_that_was_cancelled_is_cancelled_and_not_tried_again(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """No worker runs that flow, so nobody told its process."""
    with waiting_flow(server, tmp_path) as process:
        run = runs_of(api, task_bodies.FLOW_NAME)[0]
        api.cancel(runs_of(api, "waits-for-another-pool")[0]["id"])
        api.wait_state(run["id"], "Cancelled", timeout_seconds=60)
        wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=30)
        process.wait(60)
    assert runs_of(api, task_bodies.FLOW_NAME)[0]["id"] == run["id"]


# ---- what counts as silence ----------------------------------------------------------------------


class Clock:
    """Our own time, as the looks see it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(unwanted_bodies, "time", SimpleNamespace(monotonic=found))
    return found


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with flows_run_here(server):
        async with get_client() as found:
            yield found


def looker(client: PrefectClient) -> UnwantedBodies:
    settings = SimpleNamespace(node_liveness_seconds=90.0)
    worker: Any = SimpleNamespace(client=client, heteroflow_settings=settings)
    return UnwantedBodies(worker, logging.getLogger("bodies"))


async def create_body(client: PrefectClient, **labels: str) -> UUID:
    """A run of a body that no worker takes."""
    flow_id = await client.create_flow_from_name(task_bodies.FLOW_NAME)
    body = {"flow_id": str(flow_id), "labels": labels, "state": {"type": "RUNNING"}}
    response = await client.request("POST", "/flow_runs/", json=body)
    return UUID(response.json()["id"])


async def state_of(client: PrefectClient, run_id: UUID) -> str:
    state = (await client.read_flow_run(run_id)).state
    assert state is not None
    return str(state.name)


def test_sign_of_life_goes_on_until_nobody_waits(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the server of the flow; two attempts give one sign."""
    monkeypatch.setattr(sign_of_life, "BEAT_SECONDS", 0.05)

    def token() -> str | None:
        async def read() -> str | None:
            async with get_client() as client:
                return await task_bodies.read_sign(client, sign.name)

        found: str | None = run_coro_as_sync(read())
        return found

    with flows_run_here(server):
        sign = sign_of_life.SignOfLife()
        with sign:
            with sign:
                first = token()
            assert first is not None
            wait_until(lambda: token() not in (None, first), what="another beat")
        assert token() is None


async def test_body_whose_flow_gives_signs_is_left_alone(
    client: PrefectClient, clock: Clock
) -> None:
    """However long it takes."""
    name = task_bodies.sign_name(uuid4())
    run_id = await create_body(client, **{task_bodies.RUNNER_LABEL: name})
    bodies = looker(client)
    for beat in range(12):
        await task_bodies.give_sign(client, name, beat)
        await bodies.look()
        clock.now += 15
    assert await state_of(client, run_id) == "Running"


@pytest.mark.parametrize("says_nothing", ["the-same", "removed"])
async def test_body_whose_flow_is_silent_is_ended_after_the_time_and_not_before(
    client: PrefectClient, clock: Clock, says_nothing: str
) -> None:
    """By the clock of who looks; a sign that was removed is silence too."""
    name = task_bodies.sign_name(uuid4())
    run_id = await create_body(client, **{task_bodies.RUNNER_LABEL: name})
    if says_nothing == "the-same":
        await task_bodies.give_sign(client, name, 1)
    bodies = looker(client)
    for _ in range(7):
        await bodies.look()
        assert await state_of(client, run_id) == "Running"
        clock.now += 15
    await bodies.look()
    assert await state_of(client, run_id) in ("Cancelling", "Cancelled")


async def test_silence_while_nobody_looked_does_not_count(
    client: PrefectClient, clock: Clock
) -> None:
    """The API was away, for the flow's process as well."""
    name = task_bodies.sign_name(uuid4())
    run_id = await create_body(client, **{task_bodies.RUNNER_LABEL: name})
    bodies = looker(client)
    await bodies.look()
    clock.now += 600
    await bodies.look()
    assert await state_of(client, run_id) == "Running"


@pytest.mark.parametrize(
    ("state", "ends"),
    [("CANCELLED", True), ("CRASHED", True), ("COMPLETED", False), ("FAILED", False)],
)
async def test_end_of_the_waiting_flow_run_ends_the_body_only_if_it_came_from_outside(
    client: PrefectClient, clock: Clock, state: str, ends: bool
) -> None:
    """A flow that has returned or raised still waits for its tasks."""
    flow_id = await client.create_flow_from_name("waits")
    body = {"flow_id": str(flow_id), "state": {"type": state}}
    waiting = (await client.request("POST", "/flow_runs/", json=body)).json()["id"]
    run_id = await create_body(client, **{task_bodies.FLOW_RUN_LABEL: waiting})
    await looker(client).look()
    assert (await state_of(client, run_id) != "Running") is ends


async def test_body_of_a_deleted_flow_run_is_ended(client: PrefectClient, clock: Clock) -> None:
    run_id = await create_body(client, **{task_bodies.FLOW_RUN_LABEL: str(uuid4())})
    await looker(client).look()
    assert await state_of(client, run_id) in ("Cancelling", "Cancelled")
