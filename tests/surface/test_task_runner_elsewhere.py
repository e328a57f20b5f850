"""Tasks that need more than their flow's node has: their bodies run on another pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentTaskRunId
from prefect.filesystems import LocalFileSystem
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow import HeteroTaskError, HeteroTaskRunner, WorkerDiedError, requires
from prefect_heteroflow.core.resources import Node
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.nodes import publish_node
from prefect_heteroflow.task_runner import runner
from tests.support import runner_tasks
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
LARGE = "runner-large"


@pytest.fixture(scope="module", autouse=True)
def large_node(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A node of another pool with more memory and a larger GPU."""
    api.create_pool(LARGE, "heteroflow-process")
    root = tmp_path_factory.mktemp("large")
    with Worker(
        server, root, pool=LARGE, node="node-large", memory_mb=8192, gpus="81920"
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, on a node with 3 GB and a GPU of 8 GB."""
    for name, value in (
        ("RETRY_DELAY", "0"),
        ("RETRY_JITTER", "0"),
        ("NODE_MEMORY_MB", "3000"),
        ("NODE_GPUS", "8192"),
    ):
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    with flows_run_here(server):
        yield


def run_one(task: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """The state of the one task of a flow, and the flow run's id."""

    def body() -> Any:
        from prefect.runtime import flow_run

        future = task.submit(*arguments)
        future.wait()
        return future.state, flow_run.id

    state, flow_run_id = flow(task_runner=HeteroTaskRunner(**options))(body)()
    return state, flow_run_id


def subflows_of(task_run_id: Any) -> list[Any]:
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                parent_task_run_id=FlowRunFilterParentTaskRunId(any_=[task_run_id])
            )
        )


def test_task_that_requires_more_memory_runs_on_the_pool_that_has_it() -> None:
    task = requires(memory_mb=4096)(runner_tasks.attempt_seen)
    state, flow_run_id = run_one(task)
    seen = state.result()
    assert (seen.node, seen.memory_mb, seen.attempt) == ("node-large", 4096, 1)
    (task_run,) = task_runs_of(flow_run_id, count=1)
    assert seen.task_id == str(task_run.id)


def test_attempt_elsewhere_is_a_subflow_of_its_task_run() -> None:
    state, flow_run_id = run_one(requires(memory_mb=4096)(runner_tasks.square), 7)
    assert state.result() == 49
    (task_run,) = task_runs_of(flow_run_id, count=1)
    (subflow,) = subflows_of(task_run.id)
    assert subflow.work_pool_name == LARGE
    assert subflow.state.name == "Completed"


def test_gpu_oom_moves_the_next_attempt_to_the_larger_gpu(api: Api) -> None:
    """The body raises what PyTorch raises on a GPU of 8 GB, and sees 80 GB in attempt 2."""
    state, flow_run_id = run_one(runner_tasks.need_gpu_mb, 40000)
    assert state.result() == ("node-large", 2)
    (task_run,) = task_runs_of(flow_run_id, count=1)
    rows = api.rows(str(task_run.id))
    assert [(row["failure"], row["pool"]) for row in rows] == [
        ("GpuOutOfMemory", "local"),
        (None, LARGE),
    ]


def test_out_of_memory_error_of_pytorch_itself_moves_to_the_larger_gpu(api: Api) -> None:
    """Its own type, raised in a child; the flow's process cannot even import it."""
    version = "".join(map(str, sys.version_info[:2]))
    found = list(runner_tasks.DEBIAN_PACKAGES.glob(f"torch/_C.cpython-{version}-*.so"))
    need(None if found else "no PyTorch for this Python: apt-get install python3-torch")
    state, flow_run_id = run_one(runner_tasks.need_gpu_mb_by_torch, 40000)
    node, attempt, name = state.result()
    assert (node, attempt) == ("node-large", 2)
    assert name.endswith("OutOfMemoryError")
    (task_run,) = task_runs_of(flow_run_id, count=1)
    first, _ = api.rows(str(task_run.id))
    assert first["failure"] == "GpuOutOfMemory"


def test_exception_of_a_body_elsewhere_arrives_as_its_own_type() -> None:
    state, _ = run_one(requires(memory_mb=4096)(runner_tasks.fail_with_value_error), "no such day")
    with pytest.raises(ValueError, match="no such day") as caught:
        state.result()
    assert isinstance(caught.value, HeteroTaskError)
    assert caught.value.node == "node-large"


def test_body_that_is_killed_elsewhere_is_diagnosed_by_the_worker_there() -> None:
    task = requires(memory_mb=4096)(runner_tasks.end_by_signal)
    state, _ = run_one(task, 11, max_retries=0)
    with pytest.raises(WorkerDiedError) as caught:
        state.result()
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure.value == "ProcessCrashed"
    assert (caught.value.signal, caught.value.exit_code) == (11, None)


def test_error_of_a_body_that_leaves_elsewhere_says_once_why_and_what_follows() -> None:
    """The inner run is never retried; that is our way of running it and nobody's setting."""
    leaves = requires(memory_mb=4096)(runner_tasks.leave.with_options(retries=0))
    state, _ = run_one(leaves, 3, max_retries=0)
    with pytest.raises(WorkerDiedError) as caught:
        state.result()
    text = str(caught.value)
    assert text.count("exit code 3") == 1
    assert text.endswith("retries are off (max_retries 0)")
    assert "no_retry" not in text


def test_body_elsewhere_that_runs_out_of_time_is_not_retried(api: Api) -> None:
    """As at home."""
    task = requires(memory_mb=4096)(runner_tasks.sleep_for.with_options(timeout_seconds=2))
    state, flow_run_id = run_one(task, 60)
    assert state.name == "TimedOut"
    (task_run,) = task_runs_of(flow_run_id, count=1)
    (row,) = api.rows(str(task_run.id))
    assert row["failure"] == "ResourceLimitExceeded"


def test_memory_doubles_on_a_larger_node_rather_than_a_last_run_with_less_at_home(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}NODE_MEMORY_MB", "600")
    state, flow_run_id = run_one(requires(memory_mb=400)(runner_tasks.allocate), 700)
    assert state.result() == 800
    (task_run,) = task_runs_of(flow_run_id, count=1)
    rows = api.rows(str(task_run.id))
    assert [(row["memory_mb"], row["pool"]) for row in rows] == [(400, "local"), (800, LARGE)]


def test_api_that_is_away_when_the_nodes_are_asked_for_is_waited_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([httpx.ConnectError("away"), httpx.ConnectError("away")])
    ask = runner._read_cluster

    def away_at_first(liveness_seconds: float) -> Any:
        for error in answers:
            raise error
        return ask(liveness_seconds)

    monkeypatch.setattr(runner, "_read_cluster", away_at_first)
    state, _ = run_one(requires(memory_mb=4096)(runner_tasks.square), 7)
    assert state.result() == 49
    assert next(answers, None) is None


def test_saved_block_as_result_storage_is_found_by_the_other_side(
    tmp_path: Path, server: PrefectServer
) -> None:
    """Both sides load it from the server; nothing of the call stays in it either."""
    LocalFileSystem(basepath=str(tmp_path / "shared")).save("runner-shared", overwrite=True)

    @flow(task_runner=HeteroTaskRunner(), result_storage="local-file-system/runner-shared")
    def body() -> tuple[int, Any]:
        future = requires(memory_mb=4096)(runner_tasks.square).submit(7)
        return future.result(), future.task_run_id

    value, task_run_id = body()
    assert value == 49
    (subflow,) = subflows_of(task_run_id)
    assert subflow.parameters["storage"]["name"] == "local-file-system/runner-shared"
    stored = [path.name for path in (tmp_path / "shared").iterdir()]
    assert stored  # the results of flow and task
    assert [name for name in stored if name.startswith("heteroflow-")] == []


def test_nothing_of_the_call_stays_in_the_storage(server: PrefectServer) -> None:
    run_one(requires(memory_mb=4096)(runner_tasks.square), 3)
    assert list(Path(server.root, "results").rglob("heteroflow-*")) == []


async def publish_a_node_that_is_never_heard_of_again(pool: str) -> None:
    """It counts as live for some seconds more: long enough to be chosen."""
    async with get_client() as client:
        await publish_node(
            client,
            Node(name=f"node-{pool}", pool=pool, memory_mb=5000),
            worker_instance_id="gone",
            heartbeat_at=utc_now() - timedelta(seconds=76),
        )


def test_attempt_moves_on_from_a_pool_whose_nodes_have_gone_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}LOST_CONTACT_TIMEOUT", "1")
    api.create_pool("runner-gone", "heteroflow-process")
    run_coro_as_sync(publish_a_node_that_is_never_heard_of_again("runner-gone"))
    state, flow_run_id = run_one(requires(memory_mb=4500)(runner_tasks.square), 7)
    assert state.result() == 49
    (task_run,) = task_runs_of(flow_run_id, count=1)
    rows = api.rows(str(task_run.id))
    assert [(row["failure"], row["pool"], row["node"]) for row in rows] == [
        ("NodeLost", "runner-gone", None),
        (None, LARGE, "node-large"),
    ]
    assert sorted(run.state.name for run in subflows_of(task_run.id)) == ["Cancelled", "Completed"]
