"""Runs that a dead attempt had started do not stay `Running`, nor hold the slots of limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "loose-ends"
AT_ONCE = {"retry_delay": 0, "retry_jitter": 0, "memory_mb": 512}


@pytest.fixture(scope="module", autouse=True)
def worker(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    root = tmp_path_factory.mktemp("node")
    with Worker(server, root, pool=POOL, node="loose", memory_mb=4096) as started:
        yield started


def wait_for_task_runs(api: Api, run: str, expected: list[str]) -> None:
    """How they have ended; the server hears of it by events."""

    def states() -> list[str]:
        body = {"flow_runs": {"id": {"any_": [run]}}}
        return sorted(it["state_name"] for it in api.post("/task_runs/filter", body))

    wait_until(lambda: states() == expected, what=f"{expected} as the states of the task runs")


@pytest.mark.parametrize("flow", ["dies_in_a_task", "dies_with_a_waiting_task"])
def test_task_run_that_died_with_its_attempt_does_not_stay_as_it_was(api: Api, flow: str) -> None:
    run = api.submit(api.deploy(flow, POOL, name="task", job_variables=AT_ONCE))
    assert api.wait_end(run).name == "Completed"
    wait_for_task_runs(api, run, ["Completed", "Crashed"])


@pytest.mark.parametrize(
    ("retries", "end", "of_subflows"),
    [(0, "CRASHED", ["Crashed"]), (1, "COMPLETED", ["Crashed", "Completed"])],
    ids=["last attempt", "retried"],
)
def test_flow_that_a_dead_attempt_had_called_ends_with_its_tasks(
    api: Api, retries: int, end: str, of_subflows: list[str]
) -> None:
    """The next attempt has a run of its own of it, as Prefect makes one for a rerun."""
    variables = {**AT_ONCE, "infrastructure_retries": retries}
    name = f"called-{retries}"
    run = api.submit(api.deploy("dies_in_a_subflow", POOL, name=name, job_variables=variables))
    assert api.wait_end(run).type == end
    subflows = sorted(api.subflow_runs(run), key=lambda it: str(it["created"]))
    assert [it["state"]["name"] for it in subflows] == of_subflows
    for subflow, state in zip(subflows, of_subflows, strict=True):
        wait_for_task_runs(api, subflow["id"], [state])
