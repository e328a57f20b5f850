"""Circuit breakers on a real server: shared, raced for, and told by events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_heteroflow.core.breaker import (
    Admission,
    Admitted,
    BreakerPolicy,
    BreakerStatus,
    Held,
    Verdict,
    deployment_key,
    node_key,
)
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration import breaker_store
from prefect_heteroflow.orchestration.breaker_store import (
    admit_retry,
    note_approval,
    note_outcome,
    read_breakers,
)
from prefect_heteroflow.orchestration.breaker_values import BreakerRecord, generation_of
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
POLICY = BreakerPolicy()
COOL = NOW + timedelta(seconds=POLICY.cooldown_seconds)
RACERS = 12


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as found:
            yield found


@pytest.fixture
def key() -> str:
    return deployment_key(str(uuid4()), FailureClass.PROCESS_CRASHED)


async def ask(
    client: PrefectClient, *keys: str, holder: str, at: datetime = NOW, **values: Any
) -> Admission:
    return await admit_retry(client, keys, holder=holder, policy=POLICY, now=at, **values)


async def opened(client: PrefectClient, key: str) -> None:
    for holder in ("a", "b", "c"):
        await ask(client, key, holder=holder)


async def state(client: PrefectClient, key: str) -> BreakerRecord | None:
    found = [record for record in await read_breakers(client) if record.key == key]
    return found[0] if found else None


async def race(server: PrefectServer, act: Callable[[PrefectClient, int], Any]) -> list[Any]:
    """The same at once from as many clients, each with connections of its own."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(PrefectClient(server.api_url)) for _ in range(RACERS)
        ]
        # Each has spoken to the server once: what is timed is the race, not the handshake.
        await asyncio.gather(*(one.api_healthcheck() for one in clients))
        return await asyncio.gather(*(act(one, number) for number, one in enumerate(clients)))


async def test_third_restart_of_any_worker_opens_it_for_all(
    client: PrefectClient, key: str
) -> None:
    assert isinstance(await ask(client, key, holder="a"), Admitted)
    assert isinstance(await ask(client, key, holder="b"), Admitted)
    held = await ask(client, key, holder="c")
    assert isinstance(held, Held)
    assert held.reason == f"{key}: More than 2 restarts within 600 s: the breaker opened."
    record = await state(client, key)
    assert record is not None
    assert record.breaker.status is BreakerStatus.OPEN


async def test_workers_that_race_for_restarts_get_no_more_than_the_count(
    server: PrefectServer, client: PrefectClient, key: str
) -> None:
    answers = await race(server, lambda one, number: ask(one, key, holder=f"task-{number}"))
    assert sum(isinstance(it, Admitted) for it in answers) == POLICY.max_restarts


async def test_workers_that_race_for_the_trial_start_one(
    server: PrefectServer, client: PrefectClient, key: str
) -> None:
    await opened(client, key)
    answers = await race(
        server, lambda one, number: ask(one, key, holder=f"task-{number}", at=COOL)
    )
    assert sum(isinstance(it, Admitted) for it in answers) == 1


async def test_workers_that_race_with_one_attempt_all_hear_the_same(
    server: PrefectServer, client: PrefectClient, key: str
) -> None:
    """Several that take over the same run."""
    await opened(client, key)
    answers = await race(server, lambda one, _: ask(one, key, holder="task", at=COOL))
    assert all(isinstance(it, Admitted) and it.is_trial for it in answers)


async def test_trial_that_gives_no_verdict_is_followed_by_one_other(
    server: PrefectServer, client: PrefectClient, key: str
) -> None:
    await opened(client, key)
    await ask(client, key, holder="gone", at=COOL)
    late = COOL + timedelta(seconds=POLICY.trial_timeout_seconds)
    assert isinstance(await ask(client, key, holder="d", at=late - timedelta(seconds=1)), Held)
    answers = await race(
        server, lambda one, number: ask(one, key, holder=f"task-{number}", at=late)
    )
    assert sum(isinstance(it, Admitted) for it in answers) == 1


@pytest.mark.parametrize(
    ("verdict", "status"),
    [(Verdict.SUCCEEDED, BreakerStatus.CLOSED), (Verdict.FAILED, BreakerStatus.OPEN)],
    ids=["succeeded", "failed"],
)
async def test_end_of_the_trial_decides(
    client: PrefectClient, key: str, verdict: Verdict, status: BreakerStatus
) -> None:
    await opened(client, key)
    holder = f"{uuid4()}:4"
    await ask(client, key, holder=holder, at=COOL)
    assert await note_outcome(client, holder="another", verdict=verdict, now=COOL) == ()
    assert await note_outcome(client, holder=holder, verdict=verdict, now=COOL) == (key,)
    record = await state(client, key)
    assert record is not None
    assert record.breaker.status is status


async def test_open_breaker_of_one_deployment_leaves_the_others_alone(
    client: PrefectClient, key: str
) -> None:
    await opened(client, key)
    other = deployment_key(str(uuid4()), FailureClass.PROCESS_CRASHED)
    same_deployment = key.replace("ProcessCrashed", "NetworkTimeout")
    assert isinstance(await ask(client, other, holder="d"), Admitted)
    assert isinstance(await ask(client, same_deployment, holder="d"), Admitted)


async def test_run_that_one_breaker_holds_takes_nothing_from_the_other(
    client: PrefectClient, key: str
) -> None:
    """Neither a restart nor the trial of the breaker that it would have passed."""
    await opened(client, key)
    node = node_key(f"node-{uuid4()}")
    for number in range(5):
        assert isinstance(await ask(client, node, key, holder=f"t{number}"), Held)
    record = await state(client, node)
    assert record is not None
    assert record.breaker.restarts == ()


async def test_approved_attempt_is_the_trial(client: PrefectClient, key: str) -> None:
    await opened(client, key)
    await note_approval(client, [key], holder="c", policy=POLICY, now=NOW)
    assert isinstance(await ask(client, key, holder="d", at=COOL), Held)
    await note_outcome(client, holder="c", verdict=Verdict.SUCCEEDED, now=COOL)
    assert isinstance(await ask(client, key, holder="d", at=COOL), Admitted)


async def test_write_whose_answer_was_lost_is_known_as_our_own(
    client: PrefectClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends it again then, and hears that the name is taken."""
    create = PrefectClient.create_variable

    async def create_and_lose(self: PrefectClient, variable: VariableCreate) -> Any:
        await create(self, variable)
        raise ObjectAlreadyExists(http_exc=RuntimeError("409"))

    monkeypatch.setattr(PrefectClient, "create_variable", create_and_lose)
    assert isinstance(await ask(client, key, holder="a"), Admitted)
    record = await state(client, key)
    assert record is not None
    assert record.generation == 1


async def test_generations_that_nobody_can_still_write_after_are_removed(
    client: PrefectClient, key: str
) -> None:
    await opened(client, key)
    later = NOW + breaker_store.KEEP_SUPERSEDED
    await ask(client, key, holder="d", at=later)
    rows = await breaker_store._read_rows(client, "heteroflow_breaker_")
    found = [generation_of(row["name"], key) for row in rows]
    assert [number for number in found if number is not None] == [4]


async def test_value_that_cannot_be_read_counts_as_closed_and_is_written_over(
    client: PrefectClient, key: str
) -> None:
    name = breaker_store.breaker_variable_name(key, 1)
    await client.create_variable(VariableCreate(name=name, value={"status": "who knows"}))
    assert isinstance(await ask(client, key, holder="a"), Admitted)
    record = await state(client, key)
    assert record is not None
    assert record.generation == 2


async def test_each_change_of_status_is_told_by_one_event(
    api: Api, client: PrefectClient, key: str
) -> None:
    await opened(client, key)
    await ask(client, key, holder="d", at=COOL)
    await note_outcome(client, holder="d", verdict=Verdict.SUCCEEDED, now=COOL)
    resource = f"prefect-heteroflow.breaker.{key}"

    def told() -> list[dict[str, Any]] | None:
        body = {"filter": {"resource": {"id": [resource]}}, "limit": 50}
        found = api.post("/events/filter", body)["events"]
        return found if len(found) >= 3 else None

    events = await asyncio.to_thread(wait_until, told, what="three events of the breaker")
    names = [event["event"].removeprefix("prefect-heteroflow.breaker.") for event in events]
    assert sorted(names) == ["closed", "half-open", "opened"]
    (opening,) = [event for event in events if event["event"].endswith(".opened")]
    related = [it["prefect.resource.id"] for it in opening["related"]]
    assert f"prefect.deployment.{key.split(':')[1]}" in related
    assert "More than 2 restarts" in opening["payload"]["reason"]
