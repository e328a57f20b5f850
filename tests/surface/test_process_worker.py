"""The life of runs on three process nodes: retried, moved, stopped, cancelled."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

SMALL, MIDDLE, LARGE = "process-8gb", "process-24gb", "process-80gb"
GPU_MB = {SMALL: 8192, MIDDLE: 24576, LARGE: 81920}


@pytest.fixture(scope="module")
def nodes(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Worker]]:
    """One worker on each of three pools."""
    root = tmp_path_factory.mktemp("nodes")
    with contextlib.ExitStack() as stack:
        workers = {}
        for pool, gpu_mb in GPU_MB.items():
            api.create_pool(pool, "heteroflow-process")
            worker = Worker(
                server, root, pool=pool, node=f"node-{pool}", memory_mb=4096, gpus=str(gpu_mb)
            )
            worker.start(wait=False)
            stack.callback(worker.stop)
            workers[pool] = worker
        for worker in workers.values():
            worker.wait_start()
        yield workers


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes.txt"


def deploy(api: Api, flow: str, **variables: object) -> str:
    name = "-".join([flow, *(f"{k}-{v}" for k, v in variables.items())])[:100]
    return api.deploy(flow, SMALL, name=name, job_variables=variables)


def final_names(api: Api, run: str) -> list[str]:
    return [state.name for state in api.states(run) if state.is_final]


def test_run_killed_for_memory_completes_on_the_same_node_with_twice_as_much(
    api: Api, nodes: dict[str, Worker]
) -> None:
    run = api.submit(deploy(api, "host_oom", memory_mb=200), {"need_mb": 250})
    assert api.wait_end(run).name == "Completed"
    rows = api.rows(run)
    assert [(r["node"], r["failure"], r["memory_mb"], r["exit_code"]) for r in rows] == [
        ("node-process-8gb", "CpuOutOfMemory", 200, 137),
        ("node-process-8gb", None, 400, 0),
    ]
    assert final_names(api, run) == ["Completed"]


@pytest.mark.parametrize("flow", ["gpu_oom", "async_gpu_oom", "gpu_oom_in_future"])
def test_gpu_oom_goes_straight_to_the_smallest_pool_that_holds_it(
    api: Api, nodes: dict[str, Worker], flow: str
) -> None:
    run = api.submit(deploy(api, flow, memory_mb=1024, gpu_count=1), {"need_gpu_mb": 40000})
    assert api.wait_end(run).name == "Completed"
    assert [(r["pool"], r["failure"]) for r in api.rows(run)] == [
        (SMALL, "GpuOutOfMemory"),
        (LARGE, None),
    ]
    assert [state.name for state in api.states(run)][-2:] == ["Escalated", "Completed"]
    assert final_names(api, run) == ["Completed"]


def test_grown_memory_outlasts_a_state_that_does_not_carry_it(
    api: Api, nodes: dict[str, Worker]
) -> None:
    """The server puts one of its own in place of the retry's when a concurrency limit is full."""
    run = api.submit(deploy(api, "host_oom", memory_mb=200, retry_delay=20), {"need_mb": 250})
    api.wait_state(run, "AwaitingRetry")
    api.patch(f"/flow_runs/{run}", {"job_variables": {}})  # as if it had not been shown
    waits = {"type": "SCHEDULED", "name": "AwaitingConcurrencySlot"}
    api.post(f"/flow_runs/{run}/set_state", {"state": waits, "force": True})
    assert api.wait_end(run).name == "Completed"
    assert [row["memory_mb"] for row in api.rows(run)] == [200, 400]


def test_attempt_on_another_pool_is_a_subflow_run_of_the_front_run(
    api: Api, nodes: dict[str, Worker]
) -> None:
    run = api.submit(deploy(api, "gpu_oom", memory_mb=1024, gpu_count=1), {"need_gpu_mb": 20000})
    api.wait_end(run)
    (attempt,) = api.subflow_runs(run)
    assert attempt["work_pool_name"] == MIDDLE
    assert attempt["deployment_id"] == api.run(run)["deployment_id"]
    assert attempt["state"]["type"] == "COMPLETED"


def test_front_run_gives_the_result_of_the_attempt(
    api: Api, nodes: dict[str, Worker], server: PrefectServer
) -> None:
    """A parent flow that waits by `run_deployment` gets the value, as for any other run."""
    deploy(api, "gpu_oom", memory_mb=1024, gpu_count=1)
    parent = api.submit(
        deploy(api, "parent", memory_mb=1024),
        {"deployment": "gpu-oom/gpu_oom-memory_mb-1024-gpu_count-1", "need_gpu_mb": 20000},
    )
    assert api.wait_end(parent).name == "Completed"
    (child,) = api.subflow_runs(parent)
    assert final_names(api, child["id"]) == ["Completed"]


def test_gpu_that_no_node_has_is_a_permanent_failure_that_names_the_largest(
    api: Api, nodes: dict[str, Worker], notes: Path
) -> None:
    run = api.submit(deploy(api, "gpu_oom", memory_mb=1024, gpu_count=1), {"need_gpu_mb": 200000})
    end = api.wait_end(run)
    assert (end.type, end.name) == ("FAILED", "PermanentFailure")
    assert "81920" in end.message


def test_application_error_ends_as_prefect_would_end_it(
    api: Api, nodes: dict[str, Worker], notes: Path
) -> None:
    run = api.submit(deploy(api, "application_error", memory_mb=512), {"notes": str(notes)})
    end = api.wait_end(run)
    assert (end.type, end.name) == ("FAILED", "Failed")
    assert "ValueError: no such column: price" in end.message
    assert notes.read_text().splitlines() == ["failure hook: Failed"]


def test_permanent_failure_runs_the_failure_hook_once_and_says_why(
    api: Api, nodes: dict[str, Worker], notes: Path
) -> None:
    run = api.submit(deploy(api, "permission_denied", memory_mb=512), {"notes": str(notes)})
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert "/data/secret.csv" in end.message
    assert notes.read_text().splitlines() == ["failure hook: PermanentFailure"]
    assert len(api.rows(run)) == 1


def test_network_timeout_is_retried_on_the_same_node(api: Api, nodes: dict[str, Worker]) -> None:
    run = api.submit(deploy(api, "flaky_network", memory_mb=512), {"failures": 2})
    assert api.wait_end(run).name == "Completed"
    rows = api.rows(run)
    assert [r["failure"] for r in rows] == ["NetworkTimeout", "NetworkTimeout", None]
    assert {r["node"] for r in rows} == {"node-process-8gb"}


def test_retries_that_ran_out_end_as_failed_and_say_so(api: Api, nodes: dict[str, Worker]) -> None:
    run = api.submit(deploy(api, "flaky_network", memory_mb=512, max_retries=1), {"failures": 9})
    end = api.wait_end(run)
    assert (end.type, end.name) == ("FAILED", "Failed")
    assert "NetworkTimeout" in end.message
    assert "max_retries" in end.message
    assert len(api.rows(run)) == 2


def test_no_retry_stops_after_the_first_attempt(api: Api, nodes: dict[str, Worker]) -> None:
    flow = deploy(api, "flaky_network", memory_mb=512, retry_strategy="no_retry")
    run = api.submit(flow, {"failures": 1})
    assert api.wait_end(run).name == "Failed"
    assert len(api.rows(run)) == 1


def test_crashed_process_is_retried_on_another_node(api: Api, nodes: dict[str, Worker]) -> None:
    run = api.submit(deploy(api, "suicide", memory_mb=512), {})
    assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert first["failure"] == "ProcessCrashed"
    assert first["node"] != second["node"]


def test_own_retries_of_the_flow_are_not_used_up_by_ours(
    api: Api, nodes: dict[str, Worker]
) -> None:
    """`@flow(retries=1)`: killed for memory, then one failure of its own, then success."""
    run = api.submit(deploy(api, "own_retry", memory_mb=200), {"need_mb": 250})
    assert api.wait_end(run).name == "Completed"


def test_deployment_with_concurrency_limit_1_does_not_block_its_own_attempt(
    api: Api, nodes: dict[str, Worker]
) -> None:
    flow = api.deploy(
        "gpu_oom",
        SMALL,
        name="limit-1",
        concurrency_limit=1,
        job_variables={"memory_mb": 1024, "gpu_count": 1},
    )
    run = api.submit(flow, {"need_gpu_mb": 20000})
    assert api.wait_end(run, timeout_seconds=120).name == "Completed"


def test_run_larger_than_its_node_moves_before_its_first_attempt(
    api: Api, nodes: dict[str, Worker]
) -> None:
    flow = deploy(api, "gpu_oom", memory_mb=1024, gpu_count=1, gpu_memory_mb=20000)
    run = api.submit(flow, {"need_gpu_mb": 20000})
    assert api.wait_end(run).name == "Completed"
    assert [(r["attempt"], r["pool"]) for r in api.rows(run)] == [(1, MIDDLE)]


def test_run_that_fits_nowhere_is_refused_with_what_there_is(
    api: Api, nodes: dict[str, Worker]
) -> None:
    run = api.submit(deploy(api, "host_oom", memory_mb=512, gpu_count=7), {"need_mb": 1})
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert "7 GPUs" in end.message
    assert api.rows(run)[0]["failure"] == "ResourceLimitExceeded"


def test_run_that_a_person_runs_again_has_all_of_its_retries_again(
    api: Api, nodes: dict[str, Worker]
) -> None:
    """What the Retry button of the UI does, after the retries ran out."""
    run = api.submit(deploy(api, "flaky_network", memory_mb=512, max_retries=1), {"failures": 3})
    assert api.wait_end(run).name == "Failed"
    api.post(
        f"/flow_runs/{run}/set_state",
        {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": False},
    )
    api.wait_state(run, "Completed", timeout_seconds=180, may_end=True)
    assert api.wait_end(run).name == "Completed"
    assert [r["failure"] for r in api.rows(run)] == ["NetworkTimeout"] * 3 + [None]


# ---- cancel: at any moment, it ends everything ---------------------------------------------------


@pytest.mark.parametrize("flow", ["sleepy", "async_sleepy"])
def test_cancel_while_running_ends_the_process_and_the_run(
    api: Api, nodes: dict[str, Worker], notes: Path, flow: str
) -> None:
    run = api.submit(deploy(api, flow, memory_mb=512), {"notes": str(notes)})
    wait_until(notes.exists, what="start of the flow", timeout_seconds=60)
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    assert final_names(api, run) == ["Cancelled"]
    assert "cleaned up" in notes.read_text()


def test_cancel_while_waiting_for_a_retry_ends_the_run(api: Api, nodes: dict[str, Worker]) -> None:
    flow = deploy(api, "flaky_network", memory_mb=512, retry_delay=300)
    run = api.submit(flow, {"failures": 9})
    api.wait_state(run, "AwaitingRetry")
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    assert [r["status"] for r in api.rows(run)] == ["failed", "cancelled"]


def test_cancel_of_the_front_run_ends_its_attempt_on_another_pool(
    api: Api, nodes: dict[str, Worker], notes: Path
) -> None:
    flow = deploy(api, "gpu_sleepy", memory_mb=512, gpu_count=1)
    run = api.submit(flow, {"notes": str(notes), "need_gpu_mb": 20000})
    wait_until(notes.exists, what="start on the other pool", timeout_seconds=60)
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    (attempt,) = api.subflow_runs(run)
    assert attempt["state"]["type"] == "CANCELLED"
    assert final_names(api, run) == ["Cancelled"]


def test_cancel_of_the_attempt_on_another_pool_ends_the_front_run(
    api: Api, nodes: dict[str, Worker], notes: Path
) -> None:
    flow = deploy(api, "gpu_sleepy", memory_mb=512, gpu_count=1)
    run = api.submit(flow, {"notes": str(notes), "need_gpu_mb": 20000})
    wait_until(notes.exists, what="start on the other pool", timeout_seconds=60)
    (attempt,) = api.subflow_runs(run)
    api.cancel(attempt["id"])
    assert api.wait_end(run).name == "Cancelled"


def test_cancel_while_the_attempt_waits_for_a_pool_without_worker(
    api: Api, nodes: dict[str, Worker]
) -> None:
    flow = deploy(api, "gpu_oom", memory_mb=512, gpu_count=1, escalation_delay=300)
    run = api.submit(flow, {"need_gpu_mb": 20000})
    api.wait_state(run, "Escalated")
    wait_until(lambda: api.subflow_runs(run), what="attempt run")
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    (attempt,) = api.subflow_runs(run)
    assert attempt["state"]["type"] == "CANCELLED"


def test_resume_of_an_escalated_run_does_not_run_it_twice(
    api: Api, nodes: dict[str, Worker]
) -> None:
    flow = deploy(api, "gpu_oom", memory_mb=512, gpu_count=1, escalation_delay=12)
    run = api.submit(flow, {"need_gpu_mb": 20000})
    api.wait_state(run, "Escalated")
    api.post(f"/flow_runs/{run}/resume", {})
    assert api.wait_end(run).name == "Completed"
    assert [(r["attempt"], r["pool"]) for r in api.rows(run)] == [(1, SMALL), (2, MIDDLE)]
    assert len(api.subflow_runs(run)) == 1


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param({"retry_on": ["/(unclosed/"]}, "(unclosed", id="regex"),
        pytest.param({"memory_mb": 4000, "oom_memory_limit": 3000}, "oom_memory_limit", id="cap"),
    ],
)
def test_value_that_only_the_worker_can_judge_is_refused_with_its_name(
    api: Api, nodes: dict[str, Worker], variables: dict[str, object], said: str
) -> None:
    run = api.submit(deploy(api, "host_oom"), {"need_mb": 1}, variables)
    end = api.wait_end(run)
    assert end.name == "PermanentFailure"
    assert said in end.message
    assert api.rows(run)[0]["failure"] in ("InvalidConfig", "ResourceLimitExceeded")


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"retry_strategy": "try_harder"}, id="strategy"),
        pytest.param({"memory_mb": -5}, id="negative"),
        pytest.param({"max_retries": 1.5}, id="fraction"),
    ],
)
def test_value_that_the_template_can_judge_is_refused_when_the_run_is_created(
    api: Api, nodes: dict[str, Worker], variables: dict[str, object]
) -> None:
    with pytest.raises(AssertionError, match=r"422|409"):
        api.submit(deploy(api, "host_oom"), {"need_mb": 1}, variables)


@pytest.mark.parametrize("flow", ["sleepy", "async_sleepy"])
def test_cancel_that_is_heard_several_times_leaves_no_crash(
    api: Api, nodes: dict[str, Worker], notes: Path, flow: str
) -> None:
    """A second SIGTERM comes while the first one is being handled."""
    run = api.submit(deploy(api, flow, memory_mb=512), {"notes": str(notes)})
    wait_until(
        lambda: notes.exists() and len(notes.read_text().split()) > 1,
        what="start of the flow",
        timeout_seconds=60,
    )
    pid = int(notes.read_text().split()[1])
    for _ in range(3):
        os.kill(pid, signal.SIGTERM)
    api.cancel(run)
    api.wait_end(run)
    assert "Crashed" not in [state.name for state in api.states(run)]


def test_cancel_of_a_retry_that_a_worker_holds_until_it_is_due_keeps_the_earlier_rows(
    api: Api, nodes: dict[str, Worker]
) -> None:
    """Workers take runs ten seconds ahead of time, and hold them until the delay is over."""
    flow = deploy(api, "flaky_network", memory_mb=512, retry_delay=9)
    run = api.submit(flow, {"failures": 9})
    # (The worker takes it again within a moment of `AwaitingRetry`, so that is not waited for.)
    wait_until(
        lambda: len(api.rows(run)) == 2 and api.run(run)["state"]["type"] == "PENDING",
        what="the retry, held by its worker",
        timeout_seconds=60,
    )
    api.cancel(run)
    assert api.wait_end(run).name == "Cancelled"
    assert [(r["status"], r["failure"]) for r in api.rows(run)] == [
        ("failed", "NetworkTimeout"),
        ("cancelled", "TaskCancelled"),
    ]
