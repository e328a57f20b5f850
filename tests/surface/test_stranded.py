"""An attempt that was planned on a node which then went away does not wait there for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

HETEROFLOW = str(Path(sys.executable).with_name("heteroflow"))
PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
SMALL, MIDDLE, LARGE = "stranded-small", "stranded-middle", "stranded-large"
TOO_MUCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 70.00 GiB."
TIMEOUT = "requests.exceptions.ConnectTimeout: timed out"


def worker(
    server: PrefectServer, root: Path, pool: str, gpu_mb: int, *, limit: int | None = None
) -> Worker:
    """A node that counts as gone after 30 s, and whose pool is left after 10 s more."""
    settings = {f"{PREFIX}NODE_LIVENESS_SECONDS": "30", f"{PREFIX}LOST_CONTACT_TIMEOUT": "10"}
    return Worker(
        server,
        root,
        pool=pool,
        node=pool,
        memory_mb=512,
        gpus=str(gpu_mb),
        settings=settings,
        limit=limit,
    )


@pytest.fixture(autouse=True)
def pools(api: Api) -> None:
    for pool in (SMALL, MIDDLE, LARGE):
        api.create_pool(pool, "heteroflow-process")


def submit(api: Api, pool: str, command: str, **variables: object) -> str:
    values = {"memory_mb": 64, "gpu_count": 1, "command": command, **variables}
    return api.submit(api.deploy("sleepy", pool, name=pool), job_variables=values)


def test_attempt_run_whose_pool_went_away_goes_on_in_another(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The next larger GPU was seen a moment ago, and is gone when the attempt is due there."""
    seen = tmp_path / "seen"
    command = (
        f"sh -c 'echo $HETEROFLOW_GPU_MEMORY_MB >> {seen}; "
        f'[ $HETEROFLOW_GPU_MEMORY_MB = 81920 ] || (echo "{TOO_MUCH}"; exit 1)\''
    )
    middle = worker(server, tmp_path, MIDDLE, 24576)
    with worker(server, tmp_path, SMALL, 8192), worker(server, tmp_path, LARGE, 81920):
        middle.start()
        middle.kill()
        run = submit(api, SMALL, command)
        assert api.wait_end(run).name == "Completed"
    assert seen.read_text().split() == ["8192", "81920"]
    rows = api.rows(run)
    assert [(row["pool"], row["status"]) for row in rows] == [
        (SMALL, "failed"),
        (MIDDLE, "cancelled"),
        (LARGE, "completed"),
    ]
    assert "No node of pool stranded-middle took runs for 10 s" in rows[1]["decision"]
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]


def test_retry_whose_pool_went_away_goes_on_in_another_and_a_new_run_waits(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """A run that never had an attempt is where its user has sent it."""
    command = f"sh -c '[ $HETEROFLOW_ATTEMPT = 2 ] || (echo {TIMEOUT}; exit 1)'"
    lost = worker(server, tmp_path, SMALL, 8192)
    with worker(server, tmp_path, LARGE, 81920):
        lost.start()
        # Longer than the 10 s that a worker takes runs ahead of their time.
        run = submit(api, SMALL, command, retry_delay=25)
        kept = submit(api, SMALL, command, retry_delay=25, retry_strategy="retry_same_node")
        for each in (run, kept):
            api.wait_state(each, "AwaitingRetry")
        lost.kill()
        new = submit(api, SMALL, "true")
        assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert (first["node"], second["node"]) == (SMALL, LARGE)
    assert api.run(new)["state"]["type"] == "SCHEDULED"
    assert api.run(kept)["state"]["type"] == "SCHEDULED"
    for left in (new, kept):
        api.cancel(left)


def test_attempt_run_whose_only_node_is_cordoned_goes_on_in_another_pool(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It waited there for a place; what runs on the cordoned node goes on in peace."""
    command = f"sh -c '[ $HETEROFLOW_GPU_MEMORY_MB = 81920 ] || (echo \"{TOO_MUCH}\"; exit 1)'"
    with (
        worker(server, tmp_path, SMALL, 8192),
        worker(server, tmp_path, MIDDLE, 24576, limit=1),
        worker(server, tmp_path, LARGE, 81920),
    ):
        in_peace = submit(api, MIDDLE, "sleep 600")
        api.wait_state(in_peace, "Running")
        run = submit(api, SMALL, command, retry_delay=0, retry_jitter=0)
        wait_until(
            lambda: [row["pool"] for row in api.rows(run)] == [SMALL, MIDDLE],
            what="a planned attempt",
            timeout_seconds=60,
        )
        subprocess.run(
            [HETEROFLOW, "node", "cordon", MIDDLE, "--reason", "smells"],
            env=server.env(),
            check=True,
            timeout=60,
        )
        assert api.wait_end(run).name == "Completed"
        assert api.run(in_peace)["state"]["name"] == "Running"
        api.cancel(in_peace)
        api.wait_end(in_peace)
    rows = api.rows(run)
    assert [(row["pool"], row["status"]) for row in rows] == [
        (SMALL, "failed"),
        (MIDDLE, "cancelled"),
        (LARGE, "completed"),
    ]
    assert "each is cordoned or not heard of" in rows[1]["decision"]
    said = "The run waits: node stranded-middle is cordoned (smells)"
    assert [said in line for line in api.logs(rows[1]["flow_run_id"])].count(True) == 1
