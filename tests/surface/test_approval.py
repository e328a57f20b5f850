"""Held runs on a real server: what Resume and Cancel of the UI do to them, and what releases them.

The first half pins what we rely on of Prefect's server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import anyio.to_thread
import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Running

from prefect_heteroflow.attempts.cancelling import close_cancelled
from prefect_heteroflow.attempts.held import approve_resumed, close_refused, release_held
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.breaker import Admitted, BreakerPolicy, Held, Verdict, deployment_key
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.orchestration import approval, transitions
from prefect_heteroflow.orchestration.approval import Hold, await_approval, waiting_message
from prefect_heteroflow.orchestration.breaker_store import admit_retry, note_outcome
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "approval"
POLICY = BreakerPolicy()


@pytest.fixture(scope="module")
def deployment(api: Api) -> str:
    api.create_pool(POOL, "heteroflow-process")
    return api.deploy("host_oom", POOL, name="approval")


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as found:
            yield found


@pytest.fixture
def key() -> str:
    """A breaker of this test alone."""
    return deployment_key(str(uuid4()), FailureClass.PROCESS_CRASHED)


async def held_run(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> tuple[FlowRun, str]:
    """A run whose first attempt failed and whose second is held; with the second's holder."""
    run_id = UUID(api.submit(deployment, {"need_mb": 1}, {"memory_mb": 256}))
    await client.set_flow_run_state(run_id, Running(), force=True)
    holder = f"{run_id}:2"
    rows = [
        Attempt(attempt=1, flow_run_id=str(run_id), status=AttemptStatus.FAILED, pool=POOL),
        Attempt(attempt=2, flow_run_id=str(run_id), status=AttemptStatus.SCHEDULED, pool=POOL),
    ]
    await write_attempts(client, run_id, rows, summary=False)
    assert await await_approval(
        client,
        await client.read_flow_run(run_id),
        hold=Hold(holder=holder, keys=(key,)),
        message=waiting_message("More than 2 restarts.", [key]),
        job_variables={"memory_mb": 512},
        now=utc_now(),
    )
    return await client.read_flow_run(run_id), holder


async def opened(client: PrefectClient, key: str, *, cooled: bool = False) -> None:
    """Open a breaker now, or so long ago that a trial is due."""
    at = utc_now() - timedelta(seconds=POLICY.cooldown_seconds + 1 if cooled else 0)
    for holder in ("a", "b", "c"):
        await admit_retry(client, [key], holder=holder, policy=POLICY, now=at)


async def state_of(client: PrefectClient, run: FlowRun) -> State:
    state = (await client.read_flow_run(run.id)).state
    assert state is not None
    return state


async def test_held_run_is_paused_with_the_reason_and_nothing_expires_it(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    run, _ = await held_run(api, client, deployment, key)
    state = await state_of(client, run)
    assert (state.type, state.name) == (StateType.PAUSED, "AwaitingApproval")
    assert state.message == (
        f"Not restarted, held by the circuit breaker {key}. More than 2 restarts. Resume lets it go"
        " on once; Cancel ends it; `heteroflow breaker ls` shows the breakers."
    )
    assert state.state_details.pause_timeout is None
    assert run.job_variables == {"memory_mb": 512}


async def test_resume_of_the_ui_schedules_the_run_and_a_worker_takes_it(
    server: PrefectServer,
    api: Api,
    client: PrefectClient,
    deployment: str,
    key: str,
    tmp_path: Path,
) -> None:
    """With the job variables of the attempt that waited; before that no worker touches it."""
    await opened(client, key)
    run, _ = await held_run(api, client, deployment, key)
    # With its breakers off, as the tests' workers have them, it would release the run itself.
    on = {"PREFECT_INTEGRATIONS_HETEROFLOW_BREAKER_MAX_RESTARTS": "2"}
    with Worker(server, tmp_path, pool=POOL, node="approval-node", memory_mb=4096, settings=on):
        assert api.run(str(run.id))["state"]["name"] == "AwaitingApproval"
        answer = api.post(f"/flow_runs/{run.id}/resume", None)
        assert answer["status"] == "ACCEPT"
        end = await anyio.to_thread.run_sync(api.wait_end, str(run.id))
    assert end.name == "Completed"
    states = [(state.type, state.name) for state in api.states(str(run.id))]
    held_at = states.index(("PAUSED", "AwaitingApproval"))
    assert states[held_at + 1] == ("SCHEDULED", "Resuming")
    assert [(row["attempt"], row["memory_mb"]) for row in api.rows(str(run.id))][-1] == (2, 512)


async def test_cancel_of_the_ui_ends_a_held_run_at_once_and_its_history_is_closed(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """No worker hears a `Cancelling`: the server says `Cancelled` itself."""
    run, _ = await held_run(api, client, deployment, key)
    api.cancel(str(run.id))
    assert (await state_of(client, run)).type is StateType.CANCELLED
    assert run.id in [it.id for it in await close_refused(client, now=utc_now())]
    last = api.rows(str(run.id))[-1]
    assert (last["status"], last["decision"]) == (
        "cancelled",
        "Cancelled by a user while it waited for approval; nothing is retried.",
    )
    assert await close_refused(client, now=utc_now()) == []
    assert [state.name for state in api.states(str(run.id)) if state.is_final] == ["Cancelled"]


async def test_cancel_of_a_run_that_was_just_made_the_trial_frees_the_trial(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """Between the breaker's word and the state of the run."""
    await opened(client, key, cooled=True)
    run, holder = await held_run(api, client, deployment, key)
    answer = await admit_retry(client, [key], holder=holder, policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)
    api.cancel(str(run.id))
    await close_refused(client, now=utc_now())
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)
    assert answer.is_trial


async def test_cancel_of_a_released_run_before_a_worker_took_it_closes_its_row_and_frees_the_trial(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    await opened(client, key, cooled=True)
    run, _ = await held_run(api, client, deployment, key)
    assert [it.id for it in await release_held(client, policy=POLICY, now=utc_now())] == [run.id]
    api.cancel(str(run.id))
    assert [it.id for it in await close_refused(client, now=utc_now())] == [run.id]
    last = api.rows(str(run.id))[-1]
    assert (last["status"], last["decision"]) == (
        "cancelled",
        "Cancelled by a user before it was started; nothing is retried.",
    )
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)
    assert answer.is_trial


async def test_run_that_its_breaker_released_does_not_count_as_approved_by_a_person(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    run, holder = await held_run(api, client, deployment, key)
    assert await release_held(client, policy=POLICY, now=utc_now())
    await opened(client, key)
    released = await client.read_flow_run(run.id)
    assert not await approve_resumed(client, released, policy=POLICY, now=utc_now())
    assert approval.hold_of(await client.read_flow_run(run.id)) is None
    assert await note_outcome(client, holder=holder, verdict=Verdict.NONE, now=utc_now()) == ()


async def test_retry_that_is_the_trial_frees_it_when_it_is_cancelled_before_its_start(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """One that was never held: the breaker let it through at once."""
    run, holder = await held_run(api, client, deployment, key)
    await approval.write_hold(client, run, None)
    await opened(client, key, cooled=True)
    answer = await admit_retry(client, [key], holder=holder, policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)
    await close_cancelled(client, run.id, "Cancelled by a user.")
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)


async def test_held_run_whose_flow_had_retried_itself_is_let_to_the_workers(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """After such a retry the server keeps a run from all of them, whatever its state says."""
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))
    await client.set_flow_run_state(run_id, Running(), force=True)
    run = await client.read_flow_run(run_id)
    own = run.empirical_policy.model_copy(update={"retries": 2, "retry_type": "in_process"})
    await client.update_flow_run(run_id, empirical_policy=own)
    run = await client.read_flow_run(run_id)
    hold = approval.Hold(holder=f"{run_id}:2", keys=(key,))
    await approval.await_approval(
        client, run, hold=hold, message="held", job_variables={}, now=utc_now()
    )
    policy = (await client.read_flow_run(run_id)).empirical_policy
    assert (policy.retries, policy.retry_type) == (3, "reschedule")


async def test_retry_that_the_server_cancelled_while_it_waited_is_closed_in_the_history(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    """As it does when its deployment is deleted, or when a newer run takes its place in a limit."""
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))
    run = await client.read_flow_run(run_id)
    ended = Attempt(attempt=1, flow_run_id=str(run_id), status=AttemptStatus.FAILED)
    planned = Attempt(attempt=2, flow_run_id=str(run_id), status=AttemptStatus.SCHEDULED)
    await write_attempts(client, run_id, [ended, planned], summary=False)
    await transitions.await_retry(
        client, run, due=utc_now() + timedelta(hours=1), message="again", job_variables={}
    )
    message = "Deployment concurrency limit reached."
    await client.set_flow_run_state(run_id, Cancelled(message=message))
    assert run_id in [it.id for it in await close_refused(client, now=utc_now())]
    last = api.rows(str(run_id))[-1]
    assert (last["status"], last["decision"]) == ("cancelled", message)


async def test_run_that_was_not_held_is_not_taken_for_a_refusal(
    api: Api, client: PrefectClient, deployment: str
) -> None:
    run_id = api.submit(deployment, {"need_mb": 1})
    api.cancel(run_id)
    assert await close_refused(client, now=utc_now()) == []


@pytest.mark.parametrize("end", [Completed, Cancelling], ids=["completed", "cancelling"])
async def test_run_that_has_ended_or_is_cancelled_is_not_held(
    api: Api, client: PrefectClient, deployment: str, key: str, end: Callable[[], State]
) -> None:
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))
    await client.set_flow_run_state(run_id, Running(), force=True)
    await client.set_flow_run_state(run_id, end(), force=True)
    assert not await await_approval(
        client,
        await client.read_flow_run(run_id),
        hold=Hold(holder=f"{run_id}:2", keys=(key,)),
        message="held",
        job_variables={},
        now=utc_now(),
    )
    assert not approval.is_held(await client.read_flow_run(run_id))


async def test_cancel_of_the_very_moment_of_the_pause_wins(
    api: Api, client: PrefectClient, deployment: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is forced, so it would bring a cancelled run back."""
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))
    await client.set_flow_run_state(run_id, Running(), force=True)
    patch = PrefectClient.update_flow_run

    async def patch_and_cancel(self: PrefectClient, *args: object, **values: object) -> object:
        result = await patch(self, *args, **values)  # type: ignore[arg-type]
        api.cancel(str(run_id))
        return result

    monkeypatch.setattr(PrefectClient, "update_flow_run", patch_and_cancel)
    assert not await await_approval(
        client,
        await client.read_flow_run(run_id),
        hold=Hold(holder=f"{run_id}:2", keys=(key,)),
        message="held",
        job_variables={},
        now=utc_now(),
    )
    state = (await client.read_flow_run(run_id)).state
    assert state is not None
    assert state.type is StateType.CANCELLED


async def test_open_breaker_keeps_its_runs_and_lets_one_go_as_its_trial(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    hot, cooled = key, f"{key}Cooled"
    await opened(client, hot)
    await opened(client, cooled, cooled=True)
    waiting = [(await held_run(api, client, deployment, hot))[0] for _ in range(2)]
    due = [(await held_run(api, client, deployment, cooled))[0] for _ in range(2)]
    released = await release_held(client, policy=POLICY, now=utc_now())
    ours = {run.id for run in [*waiting, *due]}
    assert [run.id for run in released if run.id in ours] == [due[0].id]
    assert await release_held(client, policy=POLICY, now=utc_now()) == []
    hold = approval.hold_of(await client.read_flow_run(due[0].id))
    assert hold is not None
    assert hold.released


async def test_breaker_that_closed_lets_all_of_its_runs_go_and_stays_closed(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    await opened(client, key, cooled=True)
    runs = [(await held_run(api, client, deployment, key)) for _ in range(4)]
    trial_holder = runs[0][1]
    assert len(await release_held(client, policy=POLICY, now=utc_now())) == 1
    await note_outcome(client, holder=trial_holder, verdict=Verdict.SUCCEEDED, now=utc_now())
    assert len(await release_held(client, policy=POLICY, now=utc_now())) == 3
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Admitted)


async def test_run_behind_hundreds_of_held_ones_is_released_too(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """They wait for a breaker that stays open; its own has been reset."""
    hot = f"{key}Hot"
    await opened(client, hot)
    first, _ = await held_run(api, client, deployment, hot)
    label = {approval.HELD_LABEL: json.dumps({"holder": "another:2", "keys": [hot]})}
    crowd = {
        "flow_id": str(first.flow_id),
        "deployment_id": deployment,
        "state": {"type": "PAUSED", "name": "AwaitingApproval", "state_details": {}},
        "labels": label,
    }
    crowd_ids = [api.post("/flow_runs/", crowd)["id"] for _ in range(201)]
    run, _ = await held_run(api, client, deployment, key)
    try:
        assert run.id in {it.id for it in await approval.read_held(client)}
        released = await release_held(client, policy=POLICY, now=utc_now())
        assert [it.id for it in released] == [run.id]
    finally:
        for start in range(0, len(crowd_ids), 50):  # the server deletes 50 at once
            api.post(
                "/flow_runs/bulk_delete",
                {"flow_runs": {"id": {"any_": crowd_ids[start : start + 50]}}},
            )


async def test_worker_whose_breakers_are_off_releases_the_runs_of_its_own_pool_only(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    await opened(client, key)
    run, _ = await held_run(api, client, deployment, key)
    off = BreakerPolicy(max_restarts=-1)
    elsewhere = await release_held(client, policy=off, now=utc_now(), pool="another")
    assert run.id not in {it.id for it in elsewhere}
    released = await release_held(client, policy=off, now=utc_now(), pool=run.work_pool_name)
    assert run.id in {it.id for it in released}


async def test_run_that_waits_for_a_slot_after_resume_counts_as_approved_by_a_person(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """The server puts a state of its own in the place of `Resuming`."""
    await opened(client, key)
    run, _ = await held_run(api, client, deployment, key)
    assert await approval.approve_run(client, run)
    waits = {"type": "SCHEDULED", "name": "AwaitingConcurrencySlot"}
    api.post(f"/flow_runs/{run.id}/set_state", {"state": waits, "force": True})
    waiting = await client.read_flow_run(run.id)
    assert await approve_resumed(client, waiting, policy=POLICY, now=utc_now())
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Held)


async def test_run_that_a_person_resumed_is_the_trial_of_its_breaker(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    await opened(client, key)
    run, holder = await held_run(api, client, deployment, key)
    assert not await approve_resumed(client, run, policy=POLICY, now=utc_now())
    assert await approval.approve_run(client, run)
    resumed = await client.read_flow_run(run.id)
    assert await approve_resumed(client, resumed, policy=POLICY, now=utc_now())
    answer = await admit_retry(client, [key], holder="next", policy=POLICY, now=utc_now())
    assert isinstance(answer, Held)
    assert "One trial is under way." in answer.reason
    assert await note_outcome(client, holder=holder, verdict=Verdict.SUCCEEDED, now=utc_now()) == (
        key,
    )


async def test_front_run_whose_attempt_was_on_another_pool_can_be_held(
    api: Api, client: PrefectClient, deployment: str, key: str
) -> None:
    """From `Escalated`, as from `Running`."""
    run_id = UUID(api.submit(deployment, {"need_mb": 1}))
    await client.set_flow_run_state(run_id, Running(), force=True)
    await transitions.escalate(client, run_id, "moved")
    assert await await_approval(
        client,
        await client.read_flow_run(run_id),
        hold=Hold(holder=f"{run_id}:2", keys=(key,)),
        message="held",
        job_variables={"memory_mb": 512},
        now=utc_now(),
    )
    assert approval.is_held(await client.read_flow_run(run_id))
