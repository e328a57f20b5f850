"""A held run in the real UI: its reason is seen, and the Resume button lets it go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.breaker import BreakerPolicy, BreakerStatus, Held, node_key
from prefect_heteroflow.orchestration.approval import Hold, await_approval, waiting_message
from prefect_heteroflow.orchestration.breaker_store import admit_retry, read_breakers
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support.browser import click_text, screenshot, see, why_no_browser
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "ui-approval"
CLICKS = {"": ["Resume"], "/v2": ["Open menu", "Resume"]}
CONFIRM = {"": "Submit", "/v2": "Resume"}


async def hold(client: PrefectClient, run_id: UUID, key: str) -> None:
    """Open a breaker, and let it hold the second attempt of the run."""
    holder = f"{run_id}:2"
    for name in ("a", "b", holder):
        answer = await admit_retry(
            client, [key], holder=name, policy=BreakerPolicy(), now=utc_now()
        )
    assert isinstance(answer, Held)
    await client.set_flow_run_state(run_id, Running(), force=True)
    rows = [
        Attempt(attempt=1, flow_run_id=str(run_id), status=AttemptStatus.FAILED, pool=POOL),
        Attempt(attempt=2, flow_run_id=str(run_id), status=AttemptStatus.SCHEDULED, pool=POOL),
    ]
    await write_attempts(client, run_id, rows, summary=False)
    assert await await_approval(
        client,
        await client.read_flow_run(run_id),
        hold=Hold(holder=holder, keys=(key,)),
        message=waiting_message(answer.reason, [key]),
        job_variables={"memory_mb": 256},
        now=utc_now(),
    )


async def status_of(client: PrefectClient, key: str) -> BreakerStatus:
    (found,) = [it.breaker.status for it in await read_breakers(client) if it.key == key]
    return found


@pytest.mark.parametrize("prefix", CONFIRM, ids=["v1", "v2"])
def test_resume_button_lets_a_held_run_go_on_and_its_success_closes_the_breaker(
    server: PrefectServer, api: Api, tmp_path: Path, prefix: str
) -> None:
    need(why_no_browser())
    api.create_pool(POOL, "heteroflow-process")
    run = api.submit(api.deploy("host_oom", POOL, name="ui-approval"), {"need_mb": 1})
    key = node_key(f"node-{uuid4().hex[:8]}")

    def on_server(work: object) -> object:
        async def connected() -> object:
            async with get_client() as client:
                return await work(client)  # type: ignore[operator]

        with temporary_settings({PREFECT_API_URL: server.api_url}):
            return asyncio.run(connected())

    on_server(lambda client: hold(client, UUID(run), key))
    settings = {"PREFECT_INTEGRATIONS_HETEROFLOW_BREAKER_MAX_RESTARTS": "2"}
    with Worker(server, tmp_path, pool=POOL, node="ui", memory_mb=2048, settings=settings):
        screenshot(
            f"{server.url}{prefix}/runs/flow-run/{run}",
            tmp_path / "resume.png",
            script_steps=[
                see("AwaitingApproval"),
                *map(click_text, CLICKS[prefix]),
                see("Resume Flow Run"),
                click_text(CONFIRM[prefix]),
            ],
            wait_for_text=["Completed"],
            timeout_seconds=90,
        )
        assert api.wait_end(run).name == "Completed"
    names = [state.name for state in api.states(run)]
    assert names[names.index("AwaitingApproval") + 1] == "Resuming"
    assert on_server(lambda client: status_of(client, key)) is BreakerStatus.CLOSED
