"""A run whose attempt on another pool is held says so, and is approved under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_logger
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Running

from prefect_heteroflow.attempts.ending import AttemptEnding
from prefect_heteroflow.attempts.restarts import ask_breakers, note_resumed
from prefect_heteroflow.attempts.standing import read_standing
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.breaker import BreakerPolicy, node_key
from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.core.policy import Decision, Place, Retry, RetryPolicy
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.orchestration import approval, held_fronts, transitions
from prefect_heteroflow.orchestration.breaker_store import admit_retry
from prefect_heteroflow.orchestration.clock import utc_now
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

POOL, OTHER = "held-front", "held-front-other"


@pytest.fixture(scope="module")
def deployment(api: Api) -> str:
    for pool in (POOL, OTHER):
        api.create_pool(pool, "heteroflow-process")
    return api.deploy("sleepy", POOL, name="held-front")


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as found:
            yield found


def worker_of(client: PrefectClient) -> Any:
    """As much of a worker as settling an attempt needs; its breakers open at the first restart."""
    return SimpleNamespace(
        client=client,
        node=SimpleNamespace(name="a", pool=OTHER),
        heteroflow_settings=SimpleNamespace(breaker_policy=BreakerPolicy(max_restarts=0)),
        get_flow_run_logger=lambda run: get_logger("test"),
    )


async def nobody_has(_: Decision) -> bool:
    """Nobody has gone on with the run meanwhile."""
    return False


async def looked_after(_node: str | None, _pool: str | None) -> bool:
    return True


async def may_not(row: Attempt) -> bool:
    return False


async def is_not() -> bool:
    """No other worker has gone on with the run."""
    return False


async def attempt_before_held(
    api: Api, client: PrefectClient, deployment: str, next_pool: str
) -> tuple[FlowRun, FlowRun]:
    """Front run and attempt run of a second attempt, after which the third is held."""
    front_id = UUID(api.submit(deployment, job_variables={"command": f"echo {uuid4()}"}))
    await client.set_flow_run_state(front_id, Running(), force=True)
    await transitions.escalate(client, front_id, f"Attempt 2 goes on in pool {OTHER}.")
    front = await client.read_flow_run(front_id)
    run = await transitions.create_attempt_run(
        client, front, attempt=2, pool=OTHER, job_variables={}, due=utc_now(), message="moved"
    )
    await client.set_flow_run_state(run.id, Running(), force=True)
    run = await client.read_flow_run(run.id)
    rows = [
        Attempt(attempt=1, flow_run_id=str(front_id), status=AttemptStatus.FAILED, pool=POOL),
        Attempt(attempt=2, flow_run_id=str(run.id), status=AttemptStatus.RUNNING, pool=OTHER),
    ]
    ending = AttemptEnding(
        worker=worker_of(client),
        flow_run=run,
        task_id=front_id,
        history=tuple(rows[:1]),
        row=rows[1],
        resources=Resources(),
        policy=RetryPolicy(),
        is_plain_job=True,
        job=uuid4().hex[:12],
        was_cancelled=lambda: False,
        has_gone_on=nobody_has,
    )
    place, failure = Place(pool=next_pool), FailureClass.UNKNOWN_ERROR
    await ending.decided(
        Diagnosis(failure=failure, rule="exit-code", reason="It ended."),
        Retry(resources=Resources(), place=place, delay_seconds=0.0, reason="Again."),
    )
    return front, await client.read_flow_run(run.id)


async def held_attempt(
    api: Api, client: PrefectClient, deployment: str
) -> tuple[FlowRun, FlowRun, str]:
    """Front run and attempt run; its third attempt is held on the pool of the second."""
    front, run = await attempt_before_held(api, client, deployment, OTHER)
    hold = approval.hold_of(run)
    assert approval.is_held(run)
    assert hold is not None
    return front, run, hold.keys[0]


async def message_of(client: PrefectClient, run: FlowRun) -> str:
    state = (await client.read_flow_run(run.id)).state
    assert state is not None
    assert (state.type, state.name) == (StateType.PAUSED, "Escalated")
    return str(state.message)


async def test_front_run_says_that_its_attempt_is_held_and_how_to_approve_it(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    front, run, key = await held_attempt(api, client, deployment)
    assert await message_of(client, front) == (
        f"Its attempt on pool {OTHER}, run {run.name}, is held by the circuit breaker {key}."
        f" `heteroflow breaker approve {front.id}`, or Resume of that run, lets it go on once;"
        " Cancel ends it."
    )


async def test_front_run_says_that_its_attempt_goes_on_once_it_was_approved(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    front, run, _ = await held_attempt(api, client, deployment)
    assert await approval.approve_run(client, run)
    await note_resumed(worker_of(client), await client.read_flow_run(run.id))
    assert await message_of(client, front) == f"Goes on in pool {OTHER}, as run {run.name}."


async def test_resume_of_the_front_run_says_that_its_attempt_is_held(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    """It takes the front run to its own pool, where it is parked again."""
    front, run, _ = await held_attempt(api, client, deployment)
    said = await read_standing(
        client,
        front.id,
        front,
        POOL,
        is_overtaken=is_not,
        may_start_beside=may_not,
        is_looked_after=looked_after,
    )
    assert said == held_fronts.held_message(run, front.id)


async def test_held_attempt_is_found_by_id_and_name_of_its_front_run(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    front, run, _ = await held_attempt(api, client, deployment)
    await held_attempt(api, client, deployment)
    held = await approval.read_held(client)
    for named in (str(front.id), front.name, str(run.id), run.name):
        assert [it.id for it in await held_fronts.held_as(client, held, named)] == [run.id]
    assert await held_fronts.held_as(client, held, "nobody") == []


async def test_cancel_of_the_front_run_is_not_lost_when_it_is_told_at_that_moment(
    api: Api, client: PrefectClient, deployment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, run, key = await held_attempt(api, client, deployment)
    escalate = transitions.escalate

    async def cancel_and_escalate(*args: Any) -> None:
        await client.set_flow_run_state(front.id, Cancelling(message="by a user"))
        await escalate(*args)

    monkeypatch.setattr(transitions, "escalate", cancel_and_escalate)
    await held_fronts.say_held(client, run, [key])
    state = cast("Any", await client.read_flow_run(front.id)).state
    assert (state.type, state.message) == (StateType.CANCELLING, "by a user")


async def test_attempt_run_whose_next_attempt_is_held_elsewhere_offers_no_resume(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    """It has ended; the front run waits, and is the one to approve."""
    front, run = await attempt_before_held(api, client, deployment, POOL)
    assert approval.is_held(await client.read_flow_run(front.id))
    assert run.state is not None
    assert run.state.name == "AttemptFailed"
    message = str(run.state.message)
    assert message.startswith("UnknownError: It ended. ")
    assert message.endswith(f" The next attempt waits for approval in run {front.name}.")
    assert "Resume" not in message


async def test_held_run_names_only_the_breakers_that_are_open(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    """It has to pass the others too, but they are no reason to wait."""
    run = await client.read_flow_run(UUID(api.submit(deployment)))
    node, policy = f"node-{uuid4()}", BreakerPolicy()
    for holder in ("a", "b", "c"):
        await admit_retry(client, [node_key(node)], holder=holder, policy=policy, now=utc_now())
    worker = worker_of(client)
    worker.heteroflow_settings.breaker_policy = policy
    failure = FailureClass.CONTAINER_RUNTIME_ERROR
    waiting = await ask_breakers(
        worker,
        flow_run=run,
        task_id=run.id,
        row=Attempt(attempt=1, flow_run_id=str(run.id), status=AttemptStatus.FAILED, node=node),
        resources=Resources(),
        diagnosis=Diagnosis(failure=failure, rule="engine", reason="It broke."),
        decision=Retry(
            resources=Resources(),
            place=Place(pool=POOL, node=node),
            delay_seconds=0.0,
            reason="Again.",
        ),
        job=uuid4().hex[:12],
    )
    assert waiting is not None
    assert [key.partition(":")[0] for key in waiting.hold.keys] == ["deployment", "node"]
    assert waiting.message.startswith(f"Not restarted, held by the circuit breaker node:{node}. ")
