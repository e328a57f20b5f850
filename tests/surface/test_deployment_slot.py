"""A plain job holds the slot of its deployment's concurrency limit for as long as it runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from prefect.client.orchestration import PrefectClient

from prefect_heteroflow.attempts.starting import say_command_runs
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.deployment_slot import keep_deployment_slot
from tests.support import wait_until
from tests.support.counting_proxy import CountingProxy, Request
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "slots"
OWN_POOL = "slots-of-a-worker"
RENEWED = "POST /v2/concurrency_limits/leases/{id}/renew"
LOGGER: logging.LoggerAdapter[logging.Logger] = logging.LoggerAdapter(logging.getLogger("slots"))
RUNS = "Attempt 1: the command runs."


@pytest.fixture
def proxy(server: PrefectServer, api: Api) -> Iterator[CountingProxy]:
    api.create_pool(POOL, "heteroflow-process")
    with CountingProxy(port=server.port) as started:
        yield started


@pytest.fixture
async def client(proxy: CountingProxy) -> AsyncIterator[PrefectClient]:
    async with PrefectClient(f"http://127.0.0.1:{proxy.port}/api") as found:
        yield found


@pytest.fixture
async def run(api: Api, client: PrefectClient) -> UUID:
    """A plain job that a worker has started, of a deployment with a limit."""
    deployment = api.deploy("sleepy", POOL, name="held", concurrency_limit=100)
    run = UUID(api.submit(deployment))
    assert await transitions.propose_pending(client, run)
    assert await say_command_runs(client, run, RUNS)
    return run


def renewals(proxy: CountingProxy) -> list[Request]:
    return [it for it in proxy.requests if it.kind == RENEWED and it.status == 204]


async def lease_of(client: PrefectClient, run: UUID) -> UUID | None:
    state = (await client.read_flow_run(run)).state
    assert state is not None
    return state.state_details.deployment_concurrency_lease_id


async def when(condition: Callable[[], object]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - the proxy runs in a thread
            await anyio.sleep(0.02)


async def test_lease_is_renewed_again_and_again_until_the_attempt_has_ended(
    client: PrefectClient, proxy: CountingProxy, run: UUID
) -> None:
    ended = anyio.Event()
    async with anyio.create_task_group() as group:

        async def keep() -> None:
            await keep_deployment_slot(client, run, LOGGER, ended=ended, pause_seconds=0.05)

        group.start_soon(keep)
        await when(lambda: len(renewals(proxy)) >= 3)
        ended.set()
    lease = str(await lease_of(client, run))
    assert all(it.mentions(lease) for it in renewals(proxy))


async def test_lost_slot_is_told_once_and_the_attempt_runs_on(
    client: PrefectClient, run: UUID, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await lease_of(client, run)
    path = "/v2/concurrency_limits/decrement-with-lease"
    await client.request("POST", path, json={"lease_id": str(lease)})
    ended = anyio.Event()
    async with anyio.create_task_group() as group:

        async def keep() -> None:
            await keep_deployment_slot(client, run, LOGGER, ended=ended, pause_seconds=0.01)

        group.start_soon(keep)
        await when(lambda: "concurrency limit is lost" in caplog.text)
        await anyio.sleep(0.1)
        ended.set()
    assert caplog.text.count("concurrency limit is lost") == 1


async def test_renewal_that_the_api_does_not_answer_does_not_keep_the_end_of_the_attempt() -> None:
    asked, ended = anyio.Event(), anyio.Event()

    class Silent:
        async def read_flow_run(self, flow_run_id: UUID) -> None:
            asked.set()
            await anyio.sleep_forever()

    client: Any = Silent()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def keep() -> None:
                await keep_deployment_slot(client, uuid4(), LOGGER, ended=ended)

            group.start_soon(keep)
            await asked.wait()
            ended.set()


def test_worker_renews_the_slot_of_each_attempt_of_a_plain_job(
    server: PrefectServer, api: Api, proxy: CountingProxy, tmp_path: Path
) -> None:
    """In place after the first one, too."""
    command = f"sh -c 'echo ConnectTimeout: timed out; until [ -e {tmp_path}/$HETEROFLOW_ATTEMPT ]"
    command += "; do sleep 0.1; done; [ $HETEROFLOW_ATTEMPT = 2 ]'"
    variables = {"memory_mb": 64, "command": command}
    api.create_pool(OWN_POOL, "heteroflow-process")
    deployment = api.deploy(
        "sleepy", OWN_POOL, name="one", job_variables=variables, concurrency_limit=1
    )
    through = {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.port}/api"}
    with Worker(server, tmp_path, pool=OWN_POOL, node="slots", memory_mb=512, settings=through):
        run = api.submit(deployment)
        for attempt in (1, 2):
            wait_until(
                lambda number=attempt: len(renewals(proxy)) == number,
                what=f"renewal in attempt {attempt}",
                timeout_seconds=60,
            )
            (tmp_path / str(attempt)).touch()
        assert api.wait_end(run).name == "Completed"
    assert len({it.target for it in renewals(proxy)}) == 2
