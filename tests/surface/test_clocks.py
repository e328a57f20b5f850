"""Workers on machines whose clocks differ: times are the Prefect server's for all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.needs import need
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
RIGHT, AHEAD, GONE = "clock-right", "clock-ahead", "clock-gone"
LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
TEN_MINUTES_AHEAD = {
    "LD_PRELOAD": str(LIBRARY),
    "FAKETIME": "+600",
    # Else nothing that waits for a while ever ends.
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}


def worker(server: PrefectServer, root: Path, name: str, **more: str) -> Worker:
    """A node, and pool, of that name; it counts as gone after 30 s without a heartbeat."""
    settings = {
        f"{PREFIX}NODE_LIVENESS_SECONDS": "30",
        # Longer than a look of each worker takes to come, so that all see it before one acts.
        f"{PREFIX}LOST_CONTACT_TIMEOUT": "25",
        **more,
    }
    return Worker(server, root, pool=name, node=name, memory_mb=4096, settings=settings)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clocks")


@pytest.fixture(scope="module")
def ahead(server: PrefectServer, api: Api, root: Path) -> Iterator[Worker]:
    """A worker whose machine is ten minutes ahead."""
    need(None if LIBRARY else "no libfaketime (Debian's package of that name)")
    for pool in (RIGHT, AHEAD, GONE):
        api.create_pool(pool, "heteroflow-process")
    with worker(server, root, AHEAD, **TEN_MINUTES_AHEAD) as started:
        yield started


def submit_gated(api: Api, pool: str, folder: Path) -> str:
    """A plain job that notes its start and ends when `folder/gate` is there."""
    notes = folder / f"{pool}.notes"
    command = f'sh -c "echo started >> {notes}; until [ -e {folder}/gate ]; do sleep 0.1; done"'
    values = {"memory_mb": 64, "command": command}
    run = api.submit(api.deploy("sleepy", pool, name="clocks", job_variables=values))
    wait_until(notes.exists, what=f"start of the job on {pool}", timeout_seconds=60)
    api.wait_state(run, "Running")
    return run


def nodes_seen(server: PrefectServer, **environment: str) -> dict[str, dict[str, Any]]:
    """What `heteroflow nodes` shows, on a machine of that environment."""
    command = [str(Path(sys.executable).with_name("heteroflow")), "nodes", "--json"]
    env = server.env(**{f"{PREFIX}NODE_LIVENESS_SECONDS": "30", **environment})
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return {node["name"]: node for node in json.loads(output)["nodes"]}


def test_jobs_of_workers_whose_clocks_differ_are_not_taken_for_lost(
    server: PrefectServer, api: Api, ahead: Worker, tmp_path: Path
) -> None:
    """Both look long enough to see that a third one is away, which tells them that they look."""
    gone = worker(server, tmp_path, GONE)
    with worker(server, tmp_path, RIGHT) as right, gone:
        runs = {pool: submit_gated(api, pool, tmp_path) for pool in (RIGHT, AHEAD, GONE)}
        gone.kill()
        for other in (right, ahead):
            wait_until(
                lambda other=other: f"Worker of node {GONE} is away" in other.log(),
                what=f"{other.node} to miss {GONE}",
                timeout_seconds=120,
            )
        wait_until(
            lambda: api.rows(runs[GONE])[0]["failure"] == "NodeLost",
            what=f"loss of the job on {GONE}",
            timeout_seconds=120,
        )
        (tmp_path / "gate").touch()
        ends = {pool: api.wait_end(run).name for pool, run in runs.items()}
    assert set(ends.values()) == {"Completed"}
    for one, other in ((RIGHT, ahead), (AHEAD, right)):
        assert f"Worker of node {one} is away" not in other.log()
        assert (tmp_path / f"{one}.notes").read_text().split() == ["started"]
        assert [row["failure"] for row in api.rows(runs[one])] == [None]


@pytest.mark.parametrize("environment", [{}, TEN_MINUTES_AHEAD], ids=["right", "ahead"])
def test_nodes_whose_clocks_differ_are_shown_as_live_on_each_machine(
    server: PrefectServer, ahead: Worker, tmp_path: Path, environment: dict[str, str]
) -> None:
    with worker(server, tmp_path, RIGHT):
        seen = nodes_seen(server, **environment)
        now = datetime.now(timezone.utc)
    for name in (RIGHT, AHEAD):
        assert seen[name]["live"]
        age = now - datetime.fromisoformat(seen[name]["last_seen"])
        assert abs(age) < timedelta(seconds=60)


def test_worker_that_is_ahead_starts_a_run_when_it_is_due_and_stamps_it_so(
    api: Api, ahead: Worker
) -> None:
    values = {"memory_mb": 64, "command": "true"}
    deployment = api.deploy("sleepy", AHEAD, name="clocks-due", job_variables=values)
    due = datetime.now(timezone.utc) + timedelta(seconds=12)
    details = {"scheduled_time": due.isoformat()}
    body = {"state": {"type": "SCHEDULED", "state_details": details}}
    run = str(api.post(f"/deployments/{deployment}/create_flow_run", body)["id"])
    assert api.wait_end(run).name == "Completed"
    (row,) = api.rows(run)
    for stamp in (row["started"], row["ended"]):
        late = datetime.fromisoformat(stamp) - due
        # The server's time is known to 5 s.
        assert timedelta(seconds=-5) < late < timedelta(seconds=60)


def test_worker_that_is_ahead_says_so_once(ahead: Worker) -> None:
    said = re.findall(r"(\d+) s ahead of that of the Prefect server", ahead.log())
    assert len(said) == 1
    assert abs(int(said[0]) - 600) <= 3
