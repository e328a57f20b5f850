"""What we rely on of Prefect's server, pinned: each fails loudly when Prefect changes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed, Failed, Pending, Running, Submitting

from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

POOL, OTHER = "transitions-a", "transitions-b"


@pytest.fixture(scope="module")
def api(server: PrefectServer) -> Iterator[Api]:
    with contextlib.closing(Api(server)) as found:
        for pool in (POOL, OTHER):
            found.create_pool(pool, "heteroflow-process")
        yield found


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    async with PrefectClient(server.api_url) as found:
        yield found


@pytest.fixture
def run_id(api: Api) -> UUID:
    flow = api.deploy("host_oom", POOL, name="transitions")
    return UUID(api.submit(flow, {"need_mb": 1}, {"memory_mb": 64}))


async def retried(client: PrefectClient, run_id: UUID, **variables: object) -> bool:
    run = await client.read_flow_run(run_id)
    now = utc_now()
    return await transitions.await_retry(
        client, run, due=now, message="again", job_variables=dict(variables)
    )


async def test_running_run_is_scheduled_again_with_new_job_variables(
    client: PrefectClient, run_id: UUID
) -> None:
    await client.set_flow_run_state(run_id, Running(), force=True)
    assert await retried(client, run_id, memory_mb=128)
    run = await client.read_flow_run(run_id)
    assert run.state is not None
    assert (run.state.name, transitions.job_variables_of(run)["memory_mb"]) == (
        "AwaitingRetry",
        128,
    )
    assert run.state.state_details.scheduled_time <= utc_now() + timedelta(seconds=1)


async def test_edit_of_a_run_that_waits_for_its_retry_wins_over_what_was_planned(
    client: PrefectClient, run_id: UUID
) -> None:
    await client.set_flow_run_state(run_id, Running(), force=True)
    assert await retried(client, run_id, memory_mb=128, gpu_count=1)
    await client.update_flow_run(run_id, job_variables={"memory_mb": 100})
    run = await client.read_flow_run(run_id)
    assert transitions.job_variables_of(run) == {"memory_mb": 100, "gpu_count": 1}


async def test_own_retries_of_a_run_are_raised_along(client: PrefectClient, run_id: UUID) -> None:
    run = await client.read_flow_run(run_id)
    policy = run.empirical_policy.model_copy(update={"retries": 1})
    await client.update_flow_run(run_id, empirical_policy=policy)
    await client.set_flow_run_state(run_id, Running(), force=True)
    assert await retried(client, run_id, memory_mb=128)
    assert (await client.read_flow_run(run_id)).empirical_policy.retries == 2


async def test_retry_in_the_place_of_one_of_the_flows_own_adds_none(
    client: PrefectClient, run_id: UUID
) -> None:
    """Its process died while it waited for that one."""
    run = await client.read_flow_run(run_id)
    policy = run.empirical_policy.model_copy(update={"retries": 1, "retry_delay": 60})
    await client.update_flow_run(run_id, empirical_policy=policy)
    await client.set_flow_run_state(run_id, Running(), force=True)
    await client.set_flow_run_state(run_id, Failed())
    assert transitions.waits_for_own_retry(await client.read_flow_run(run_id))
    assert await retried(client, run_id, memory_mb=128)
    assert (await client.read_flow_run(run_id)).empirical_policy.retries == 1


async def test_escalated_run_is_paused_and_nothing_expires_it(
    client: PrefectClient, run_id: UUID
) -> None:
    await client.set_flow_run_state(run_id, Running(), force=True)
    await transitions.escalate(client, run_id, "moved")
    state = (await client.read_flow_run(run_id)).state
    assert state is not None
    assert (state.type, state.name) == (StateType.PAUSED, "Escalated")
    assert state.state_details.pause_timeout is None


async def test_attempt_run_is_created_once_and_on_the_other_pool(
    client: PrefectClient, run_id: UUID
) -> None:
    front = await client.read_flow_run(run_id)

    async def create() -> UUID:
        run = await transitions.create_attempt_run(
            client,
            front,
            attempt=2,
            pool=OTHER,
            job_variables={"memory_mb": 128},
            due=utc_now(),
            message="moved",
        )
        return run.id

    first, second = await create(), await create()
    assert first == second
    attempt = await client.read_flow_run(first)
    assert (attempt.work_pool_name, attempt.deployment_id) == (OTHER, front.deployment_id)
    assert transitions.task_id_of(attempt) == run_id
    assert attempt.state is not None
    assert attempt.state.type is StateType.SCHEDULED


async def test_front_run_takes_over_state_message_and_result_reference(
    client: PrefectClient, run_id: UUID
) -> None:
    await transitions.escalate(client, run_id, "moved")
    ended = Failed(name="PermanentFailure", message="why")
    ended.data = {"type": "unknown"}  # type: ignore[assignment]
    await transitions.take_over(client, run_id, ended)
    state = (await client.read_flow_run(run_id)).state
    assert state is not None
    assert (state.type, state.name, state.message) == (
        StateType.FAILED,
        "PermanentFailure",
        "why",
    )
    assert state.data == {"type": "unknown"}


async def test_two_workers_that_take_over_at_once_leave_one_final_state(
    api: Api, client: PrefectClient, run_id: UUID
) -> None:
    await transitions.escalate(client, run_id, "moved")
    ended = Completed(message="done")
    await transitions._set_once(client, run_id, ended, once=f"ends as {ended.id}")
    await transitions._set_once(client, run_id, ended, once=f"ends as {ended.id}")
    assert [s.name for s in api.states(str(run_id)) if s.is_final] == ["Completed"]


async def test_run_that_ended_keeps_its_end(api: Api, client: PrefectClient, run_id: UUID) -> None:
    await client.set_flow_run_state(run_id, Completed(), force=True)
    await transitions.take_over(client, run_id, Failed(message="late"))
    await transitions.cancel_for_good(client, run_id, "late")
    assert [s.name for s in api.states(str(run_id)) if s.is_final] == ["Completed"]


@pytest.mark.parametrize("before", ["Escalated", "AwaitingRetry", "Running"])
async def test_cancel_for_good_ends_a_run_from_any_state(
    client: PrefectClient, run_id: UUID, before: str
) -> None:
    await client.set_flow_run_state(run_id, Running(), force=True)
    if before == "Escalated":
        await transitions.escalate(client, run_id, "moved")
    elif before == "AwaitingRetry":
        assert await retried(client, run_id, memory_mb=64)
    await transitions.cancel_for_good(client, run_id, "Cancelled by a user.")
    state = (await client.read_flow_run(run_id)).state
    assert state is not None
    assert (state.type, state.message) == (StateType.CANCELLED, "Cancelled by a user.")


async def test_run_that_another_worker_has_just_taken_is_not_taken_in_place(
    client: PrefectClient, run_id: UUID
) -> None:
    await client.set_flow_run_state(run_id, Pending())
    assert not await transitions.propose_pending(client, run_id)


async def test_run_taken_in_place_is_refused_to_every_other_worker(
    client: PrefectClient, run_id: UUID
) -> None:
    assert await transitions.propose_pending(client, run_id)
    refused = await client.set_flow_run_state(run_id, Pending())
    assert refused.status.value == "ABORT"


async def test_run_taken_in_place_shows_that_it_is_about_to_start(
    api: Api, client: PrefectClient, run_id: UUID
) -> None:
    assert await transitions.propose_pending(client, run_id)
    assert [state.name for state in api.states(str(run_id))][-2:] == ["Pending", "Submitting"]


@pytest.mark.parametrize("state", [Pending(), Submitting()], ids=["Pending", "Submitting"])
async def test_run_is_ours_when_only_the_answer_was_lost(
    client: PrefectClient, run_id: UUID, state: State[None]
) -> None:
    """The client sends the same request again."""
    sent = uuid4()
    assert await transitions._took(client, run_id, state, sent)
    assert await transitions._took(client, run_id, state, sent)


async def test_cancelled_run_is_not_taken_in_place(client: PrefectClient, run_id: UUID) -> None:
    await transitions.cancel_for_good(client, run_id, "Cancelled by a user.")
    assert not await transitions.propose_pending(client, run_id)


async def test_no_message_of_a_state_holds_what_a_database_refuses(
    client: PrefectClient, run_id: UUID
) -> None:
    """PostgreSQL answers a NUL with 503, which is taken for an outage; nothing encodes U+DCFF."""
    bad, messages = "a\x00b\udcff", []

    async def note() -> None:
        state = (await client.read_flow_run(run_id)).state
        messages.append(state and state.message)

    await transitions.finish(client, run_id, Running(message=bad))
    await note()
    run = await client.read_flow_run(run_id)
    await transitions.await_retry(client, run, due=utc_now(), message=bad, job_variables={})
    await note()
    await transitions.escalate(client, run_id, bad)
    await note()
    attempt = await transitions.create_attempt_run(
        client, run, attempt=2, pool=OTHER, job_variables={}, due=utc_now(), message=bad
    )
    messages.append(attempt.state and attempt.state.message)
    await transitions.take_over(client, run_id, Failed(message=bad))
    await note()
    assert messages == [r"a\x00b\xff"] * 5
