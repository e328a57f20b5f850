"""A node whose name was taken by a worker of another pool: runs of the old pool go on."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from prefect_heteroflow.orchestration.node_values import NODE_PREFIX
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
OLD, NEW = "moved-old", "moved-new"


@pytest.fixture(autouse=True)
def pools(api: Api) -> None:
    for pool in (OLD, NEW):
        api.create_pool(pool, "heteroflow-process")


@pytest.fixture
def node() -> str:
    return f"moved-{uuid4().hex[:8]}"


def worker(
    server: PrefectServer, root: Path, pool: str, node: str, *, memory_mb: int = 4096, **more: str
) -> Worker:
    """One that waits long for signs of life: what follows at once follows from something else."""
    root.mkdir(exist_ok=True)
    settings = {
        f"{PREFIX}NODE_LIVENESS_SECONDS": "30",
        f"{PREFIX}LOST_CONTACT_TIMEOUT": "600",
        "TMPDIR": str(root),
        **more,
    }
    return Worker(server, root, pool=pool, node=node, memory_mb=memory_mb, settings=settings)


def submit_gated(api: Api, folder: Path, **variables: object) -> str:
    values = {"memory_mb": 512, "retry_delay": 0, "retry_jitter": 0, **variables}
    flow = api.deploy("gated", OLD, name="moved", job_variables=values)
    run = api.submit(flow, {"folder": str(folder)})
    wait_until((folder / "started-1").exists, what="attempt 1", timeout_seconds=60)
    (folder / "gate-2").touch()
    return run


def left_folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith("heteroflow-"))


def test_run_of_a_stopped_worker_goes_on_when_its_node_is_of_another_pool_now(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    first = worker(server, tmp_path, OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    first.stop()
    with worker(server, tmp_path, NEW, node):
        assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    rows = [(row["pool"], row["node"], row["status"]) for row in api.rows(run)]
    assert rows == [(OLD, node, "failed"), (NEW, node, "completed")]
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]


def test_folders_of_an_attempt_go_when_its_worker_stops(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    first = worker(server, tmp_path / "node", OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    assert left_folders(tmp_path / "node")
    first.stop()
    assert left_folders(tmp_path / "node") == []
    api.cancel(run)


def test_scratch_folder_of_a_stopped_worker_goes_with_its_run_at_the_start_of_one_of_another_pool(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """It has a file in it that the next attempt might want, so it stays at first."""
    first = worker(server, tmp_path / "node", OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    (scratch,) = (tmp_path / "node").glob("heteroflow-*-scratch-*")
    (scratch / "checkpoint").touch()
    first.stop()
    assert left_folders(tmp_path / "node") == [scratch.name]
    with worker(server, tmp_path / "node", NEW, node):
        assert api.wait_end(run, timeout_seconds=60).name == "Completed"
        wait_until(
            lambda: left_folders(tmp_path / "node") == [],
            what="end of the scratch folder",
            timeout_seconds=60,
        )


def test_run_that_is_cancelled_while_its_node_is_of_another_pool_ends(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """No worker of its own pool is there to hear of it."""
    first = worker(server, tmp_path, OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    first.stop()
    api.cancel(run)
    with worker(server, tmp_path, NEW, node):
        assert api.wait_end(run, timeout_seconds=60).name == "Cancelled"


def test_run_of_a_killed_worker_is_settled_once_beside_others_that_watch(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """One of its pool, one of the pool of the newcomer; each could believe that it is the one."""
    first = worker(server, tmp_path, OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    short = {f"{PREFIX}LOST_CONTACT_TIMEOUT": "10"}
    with (
        worker(server, tmp_path, OLD, f"{node}-a", **short),
        worker(server, tmp_path, NEW, f"{node}-b", **short),
    ):
        first.kill()
        with worker(server, tmp_path, NEW, node, **short):
            assert api.wait_end(run, timeout_seconds=90).name == "Completed"
    rows = api.rows(run)
    assert (rows[0]["node"], rows[0]["failure"]) == (node, "NodeLost")
    assert [row["status"] for row in rows] == ["failed", "completed"]
    assert len(api.subflow_runs(run)) <= 1


def test_node_that_comes_back_from_another_pool_settles_what_it_had_left(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """The one in between had no time to do anything."""
    first = worker(server, tmp_path, OLD, node)
    first.start()
    run = submit_gated(api, tmp_path, retry_strategy="retry_same_node")
    first.stop()
    between = worker(server, tmp_path, NEW, node)
    between.start(wait=False)
    between.kill()
    with worker(server, tmp_path, OLD, node):
        assert api.wait_end(run, timeout_seconds=60).name == "Completed"
    assert [row["pool"] for row in api.rows(run)] == [OLD, OLD]


def test_run_whose_node_went_to_another_pool_and_died_there_goes_on(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """Whoever watches finds it by the pool that the node had before."""
    first = worker(server, tmp_path, OLD, node)
    first.start()
    run = submit_gated(api, tmp_path)
    first.stop()
    # It takes the name, and is too small for the run of before to follow it there.
    between = worker(server, tmp_path, NEW, node, memory_mb=256)
    try:
        between.start(wait=False)
        wait_until(lambda: pool_of(api, node) == NEW, what="its claim", timeout_seconds=60)
    finally:
        between.kill()
    short = {f"{PREFIX}LOST_CONTACT_TIMEOUT": "10"}
    with worker(server, tmp_path, NEW, f"{node}-c", **short):
        assert api.wait_end(run, timeout_seconds=120).name == "Completed"
    first_row = api.rows(run)[0]
    assert (first_row["node"], first_row["failure"]) == (node, "NodeLost")


def test_attempt_that_was_planned_in_the_pool_that_its_only_node_has_left_goes_on(
    server: PrefectServer, api: Api, tmp_path: Path, node: str
) -> None:
    """It would wait for a node of the pool, of which nobody knows that it ever had one."""
    first = worker(server, tmp_path, OLD, node)
    first.start()
    command = "sh -c '[ $HETEROFLOW_ATTEMPT = 2 ] || (echo ConnectTimeout: timed out; exit 1)'"
    flow = api.deploy("gated", OLD, name="planned", job_variables={"memory_mb": 64})
    # Longer than the 10 s that a worker takes runs ahead of their time.
    run = api.submit(flow, job_variables={"command": command, "retry_delay": 20})
    api.wait_state(run, "AwaitingRetry")
    first.stop()
    short = {f"{PREFIX}LOST_CONTACT_TIMEOUT": "10"}
    with worker(server, tmp_path, NEW, node, **short):
        assert api.wait_end(run, timeout_seconds=120).name == "Completed"
    assert [row["pool"] for row in api.rows(run)] == [OLD, NEW]


def pool_of(api: Api, node: str) -> str:
    # All others of a server that many tests share are more than one answer holds.
    wanted = {"variables": {"name": {"like_": NODE_PREFIX}}, "limit": 200}
    variables = api.post("/variables/filter", wanted)
    return next(it["value"]["pool"] for it in variables if it["value"].get("name") == node)
