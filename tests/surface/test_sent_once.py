"""A change of a run's state whose answer is lost is not made over what came after it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.states import Completed, Pending

from prefect_heteroflow.orchestration import approval, transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.sent_once import set_state_once, state_as_json
from tests.support.counting_proxy import CountingProxy, Request
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

POOL = "sent-once"
SET_STATE = "POST /flow_runs/{id}/set_state"


@pytest.fixture(scope="module")
def api(server: PrefectServer) -> Iterator[Api]:
    with contextlib.closing(Api(server)) as found:
        found.create_pool(POOL, "heteroflow-process")
        yield found


@pytest.fixture
def run_id(api: Api) -> UUID:
    """A run that is under way."""
    flow = api.deploy("host_oom", POOL, name="sent-once")
    run = api.submit(flow, {"need_mb": 1}, {"memory_mb": 64})
    put(api, UUID(run), "RUNNING", "Running")
    return UUID(run)


def put(api: Api, run_id: UUID, kind: str, name: str) -> None:
    api.post(f"/flow_runs/{run_id}/set_state", {"state": {"type": kind, "name": name}})


def lost_once(name: str, then: Callable[[], None]) -> Callable[[Request], None]:
    """Loses the answer to the first request for that state, after something else has happened."""
    done: list[Request] = []

    def lose(request: Request) -> None:
        if request.kind == f"{SET_STATE} ({name})" and not done:
            done.append(request)
            then()
            raise ConnectionResetError

    return lose


@asynccontextmanager
async def client_over(
    server: PrefectServer,
    *,
    before: Callable[[Request], None] = lambda request: None,
    after: Callable[[Request], None] = lambda request: None,
) -> AsyncIterator[tuple[PrefectClient, CountingProxy]]:
    with CountingProxy(port=server.port, before=before, after=after) as proxy:
        async with PrefectClient(f"http://127.0.0.1:{proxy.port}/api") as client:
            yield client, proxy


async def state_of(api: Api, run_id: UUID) -> str:
    return str(api.get(f"/flow_runs/{run_id}")["state"]["name"])


async def test_retry_whose_answer_is_lost_does_not_take_back_the_run_from_who_has_it(
    server: PrefectServer, api: Api, run_id: UUID
) -> None:
    async with client_over(
        server, after=lost_once("AwaitingRetry", lambda: put(api, run_id, "PENDING", "Pending"))
    ) as (client, proxy):
        run = await client.read_flow_run(run_id)
        assert await transitions.await_retry(
            client, run, due=utc_now(), message="again", job_variables={}
        )
    assert [r.kind for r in proxy.requests].count(f"{SET_STATE} (AwaitingRetry)") == 1
    assert await state_of(api, run_id) == "Pending"


@pytest.mark.parametrize("name", ["Escalated", "AwaitingApproval"])
async def test_forced_pause_whose_answer_is_lost_does_not_reopen_an_ended_run(
    server: PrefectServer, api: Api, run_id: UUID, name: str
) -> None:
    async with client_over(
        server, after=lost_once(name, lambda: put(api, run_id, "CANCELLED", "Cancelled"))
    ) as (client, _):
        if name == "Escalated":
            await transitions.escalate(client, run_id, "moved")
        else:
            run = await client.read_flow_run(run_id)
            hold = approval.Hold(holder=f"{run_id}:2", keys=("a",))
            await approval.await_approval(
                client, run, hold=hold, message="held", job_variables={}, now=utc_now()
            )
    assert await state_of(api, run_id) == "Cancelled"


async def test_end_whose_answer_is_lost_counts_as_accepted(
    server: PrefectServer, api: Api, run_id: UUID
) -> None:
    async with client_over(server, after=lost_once("Completed", lambda: None)) as (client, _):
        assert await transitions.finish(client, run_id, Completed())


async def test_change_that_did_not_arrive_is_sent_again(
    server: PrefectServer, api: Api, run_id: UUID
) -> None:
    async with client_over(server, before=lost_once("Completed", lambda: None)) as (client, proxy):
        assert await transitions.finish(client, run_id, Completed())
    assert [r.kind for r in proxy.requests].count(f"{SET_STATE} (Completed)") == 2
    assert await state_of(api, run_id) == "Completed"


async def test_refused_change_is_told(server: PrefectServer, api: Api, run_id: UUID) -> None:
    """A run that is under way is nobody's to take."""
    async with client_over(server) as (client, _):
        assert not await set_state_once(client, run_id, state_as_json(Pending()))


async def test_run_that_is_gone_is_an_error_at_once(
    server: PrefectServer, api: Api, run_id: UUID
) -> None:
    async with client_over(server) as (client, proxy):
        await client.delete_flow_run(run_id)
        with pytest.raises(httpx.HTTPStatusError):
            await set_state_once(client, run_id, state_as_json(Completed()))
    assert [r.kind for r in proxy.requests].count(f"{SET_STATE} (Completed)") == 1
