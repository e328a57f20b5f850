"""Runs that keep failing for one cause wait for a person, or for the breaker's trial."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_BREAKER_"
PATIENT, QUICK = "breaker-patient", "breaker-quick"


def breaking(server: PrefectServer, root: object, pool: str, cooldown: int) -> Worker:
    """A node whose breakers let one restart through."""
    settings = {f"{PREFIX}MAX_RESTARTS": "1", f"{PREFIX}COOLDOWN": str(cooldown)}
    return Worker(  # type: ignore[arg-type]
        server, root, pool=pool, node=f"node-{pool}", memory_mb=4096, settings=settings
    )


@pytest.fixture(scope="module", autouse=True)
def nodes(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    for pool in (PATIENT, QUICK):
        api.create_pool(pool, "heteroflow-process")
    root = tmp_path_factory.mktemp("breaker")
    with breaking(server, root, PATIENT, 3600), breaking(server, root, QUICK, 1):
        yield


def flaky(api: Api, name: str, failures: int, pool: str = PATIENT) -> str:
    values = {"memory_mb": 512, "retry_delay": 0, "retry_jitter": 0, "max_retries": 5}
    flow = api.deploy("flaky_network", pool, name=name, job_variables=values)
    return api.submit(flow, {"failures": failures})


def failures_of(api: Api, run: str) -> list[str | None]:
    return [row["failure"] for row in api.rows(run)]


def test_second_restart_for_the_same_cause_waits_and_resume_lets_it_go_on(api: Api) -> None:
    run = flaky(api, "resumed", 2)
    held = api.wait_state(run, "AwaitingApproval")
    assert "held by the circuit breaker deployment:" in held["state"]["message"]
    assert "NetworkTimeout" in held["state"]["message"]
    api.post(f"/flow_runs/{run}/resume", {})
    assert api.wait_end(run).name == "Completed"
    assert failures_of(api, run) == ["NetworkTimeout", "NetworkTimeout", None]


def test_trial_that_succeeded_closes_the_breaker(api: Api) -> None:
    run = flaky(api, "closes", 2)
    api.wait_state(run, "AwaitingApproval")
    api.post(f"/flow_runs/{run}/resume", {})
    assert api.wait_end(run).name == "Completed"
    again = flaky(api, "closes", 1)
    assert api.wait_end(again).name == "Completed"
    assert "AwaitingApproval" not in [state.name for state in api.states(again)]


def test_open_breaker_holds_no_other_deployment(api: Api) -> None:
    held = flaky(api, "holds", 2)
    api.wait_state(held, "AwaitingApproval")
    other = flaky(api, "is-free", 1)
    assert api.wait_end(other).name == "Completed"
    api.cancel(held)


def test_cancel_refuses_a_held_run_and_its_history_says_so(api: Api) -> None:
    run = flaky(api, "refused", 2)
    api.wait_state(run, "AwaitingApproval")
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    wait_until(
        lambda: api.rows(run)[-1]["status"] == "cancelled",
        what="history that knows of the refusal",
        timeout_seconds=60,
    )


def test_after_the_cooldown_the_run_goes_on_by_itself_as_the_trial(api: Api) -> None:
    run = flaky(api, "trial", 2, pool=QUICK)
    assert api.wait_end(run).name == "Completed"
    assert "AwaitingApproval" in [state.name for state in api.states(run)]
    assert failures_of(api, run) == ["NetworkTimeout", "NetworkTimeout", None]


def test_growth_is_no_restart_of_the_same_thing(api: Api) -> None:
    """Memory that doubles three times ends by its own limit."""
    flow = api.deploy(
        "host_oom",
        PATIENT,
        name="grows",
        job_variables={"memory_mb": 100, "retry_delay": 0, "retry_jitter": 0},
    )
    run = api.submit(flow, {"need_mb": 600})
    assert api.wait_end(run).name == "Completed"
    assert failures_of(api, run) == ["CpuOutOfMemory"] * 3 + [None]
