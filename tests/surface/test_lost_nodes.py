"""Nodes that go away with what they ran: others move it, once, and only when it gives no sign."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
POOL, OTHER = "lost-pair", "lost-other"


def worker(
    server: PrefectServer, root: Path, pool: str, node: str, *, timeout: int = 10, **more: str
) -> Worker:
    """A node that counts as gone after 30 s without a heartbeat."""
    settings = {
        f"{PREFIX}NODE_LIVENESS_SECONDS": "30",
        f"{PREFIX}LOST_CONTACT_TIMEOUT": str(timeout),
        **more,
    }
    return Worker(server, root, pool=pool, node=node, memory_mb=4096, settings=settings)


def burn(node: Worker) -> None:
    """The machine is gone: the worker and all that it runs, at once."""
    assert node._process is not None
    family = psutil.Process(node._process.pid).children(recursive=True)
    node.kill()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def submit_sleepy(api: Api, pool: str, notes: Path, seconds: float, **variables: object) -> str:
    values = {"memory_mb": 512, "retry_delay": 0, "retry_jitter": 0, **variables}
    name = "-".join(["lost", *(f"{k}-{v}" for k, v in variables.items())])
    flow = api.deploy("sleepy", pool, name=name, job_variables=values)
    run = api.submit(flow, {"notes": str(notes), "seconds": seconds})
    wait_until(
        lambda: notes.exists() and "started" in notes.read_text(),
        what="start of the flow",
        timeout_seconds=60,
    )
    return run


@pytest.fixture(autouse=True)
def pools(api: Api) -> None:
    for pool in (POOL, OTHER):
        api.create_pool(pool, "heteroflow-process")


@pytest.fixture
def others(server: PrefectServer, tmp_path: Path) -> Iterator[tuple[Worker, Worker]]:
    """Two workers of another pool that both notice what happens to the first."""
    with (
        worker(server, tmp_path, OTHER, "lost-c") as first,
        worker(server, tmp_path, OTHER, "lost-d") as second,
    ):
        yield first, second


def starts(notes: Path) -> int:
    return notes.read_text().count("started")


def test_runs_of_a_lost_node_go_on_elsewhere_once(
    server: PrefectServer, api: Api, others: tuple[Worker, Worker], tmp_path: Path
) -> None:
    """Two workers of another pool see it at the same time; one attempt run comes of it."""
    notes = tmp_path / "notes"
    lost = worker(server, tmp_path, POOL, "lost-a")
    lost.start()
    run = submit_sleepy(api, POOL, notes, 5.0)
    burn(lost)
    assert api.wait_end(run).name == "Completed"
    first, second = api.rows(run)
    assert (first["failure"], first["node"]) == ("NodeLost", "lost-a")
    assert "Node lost-a is away" in first["reason"]
    assert second["pool"] == OTHER
    assert starts(notes) == 2
    assert len(api.subflow_runs(run)) == 1


def test_runs_of_a_worker_that_was_stopped_go_on_elsewhere_without_the_long_wait(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It said goodbye, and its processes have ended with it."""
    notes = tmp_path / "notes"
    stopped = worker(server, tmp_path, POOL, "lost-stopped", timeout=600)
    with worker(server, tmp_path, OTHER, "lost-heir", timeout=600):
        stopped.start()
        run = submit_sleepy(api, POOL, notes, 5.0)
        stopped.stop()
        assert api.wait_end(run).name == "Completed"
    assert "This worker stops. Attempts that run end with this worker" in stopped.log()
    first, second = api.rows(run)
    assert (first["failure"], first["node"]) == ("NodeLost", "lost-stopped")
    assert "Node lost-stopped has no worker: it was stopped" in first["reason"]
    assert second["pool"] == OTHER


def test_run_kept_on_its_node_waits_until_that_is_back(
    server: PrefectServer, api: Api, others: tuple[Worker, Worker], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    lost = worker(server, tmp_path, POOL, "lost-b")
    lost.start()
    run = submit_sleepy(api, POOL, notes, 3.0, retry_strategy="retry_same_node")
    burn(lost)
    api.wait_state(run, "AwaitingRetry")
    lost.start()
    try:
        assert api.wait_end(run).name == "Completed"
    finally:
        lost.stop()
    assert [(r["failure"], r["node"]) for r in api.rows(run)] == [
        ("NodeLost", "lost-b"),
        (None, "lost-b"),
    ]


def test_run_whose_worker_is_paused_stays_while_its_heartbeats_arrive(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The worker is silent for longer than the timeout; its child is not."""
    notes = tmp_path / "notes"
    beats = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    with (
        worker(server, tmp_path, POOL, "lost-paused", timeout=50, **beats) as paused,
        worker(server, tmp_path, OTHER, "lost-watch", timeout=50) as watching,
    ):
        run = submit_sleepy(api, POOL, notes, 130.0)
        assert paused._process is not None
        os.kill(paused._process.pid, signal.SIGSTOP)
        try:
            stopped = time.monotonic()
            wait_until(
                lambda: any("is away" in line for line in api.logs(run)),
                what="notice that the worker is away",
                timeout_seconds=90,
            )
            wait_until(
                lambda: time.monotonic() - stopped > 115,
                what="more silence of the worker than the timeout",
                timeout_seconds=120,
            )
        finally:
            os.kill(paused._process.pid, signal.SIGCONT)
        assert api.wait_end(run).name == "Completed"
        assert [row["failure"] for row in api.rows(run)] == [None]
        assert "is lost with node" not in watching.log()
    assert starts(notes) == 1


def test_end_of_an_attempt_that_was_given_up_does_not_count(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Its worker was cut off for so long that others moved the run; then it is back."""
    folder = tmp_path
    first = f"until [ -e {folder}/first ]; do sleep 0.1; done"
    second = f"until [ -e {folder}/second ]; do sleep 0.1; done"
    command = f'sh -c "if [ $HETEROFLOW_ATTEMPT = 1 ]; then {first}; else {second}; fi"'
    with (
        worker(server, tmp_path, POOL, "lost-cut-off") as cut_off,
        worker(server, tmp_path, OTHER, "lost-taker"),
    ):
        flow = api.deploy("sleepy", POOL, name="cut-off", job_variables={"memory_mb": 64})
        run = api.submit(flow, job_variables={"command": command})
        api.wait_state(run, "Running")
        os.kill(cut_off.pid, signal.SIGSTOP)
        try:
            api.wait_state(run, "Escalated", timeout_seconds=180)
            wait_until(
                lambda: [row["status"] for row in api.rows(run)] == ["failed", "running"],
                what="attempt 2 on the other pool",
                timeout_seconds=60,
            )
        finally:
            os.kill(cut_off.pid, signal.SIGCONT)
        (folder / "first").touch()
        wait_until(
            lambda: any("its end does not count" in line for line in api.logs(run)),
            what="notice that attempt 1 had been given up",
            timeout_seconds=60,
        )
        assert api.run(run)["state"]["name"] == "Escalated"
        (folder / "second").touch()
        assert api.wait_end(run).name == "Completed"
    rows = [(row["status"], row["failure"]) for row in api.rows(run)]
    assert rows == [("failed", "NodeLost"), ("completed", None)]
    assert [state.name for state in api.states(run) if state.is_final] == ["Completed"]


def submit_gated(api: Api, folder: Path, name: str) -> str:
    flow = api.deploy("gated", POOL, name=name, job_variables={"memory_mb": 512})
    run = api.submit(flow, {"folder": str(folder)})
    wait_until(lambda: (folder / "started-1").exists(), what="attempt 1", timeout_seconds=60)
    return run


def are_over(processes: list[psutil.Process]) -> bool:
    """A parent that stands still does not take note of their ends."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


@contextlib.contextmanager
def cut_off_while_others_move_it(node: Worker, folder: Path) -> Iterator[list[psutil.Process]]:
    """The worker and its attempt stand still until attempt 2 runs; gives the attempt's processes.

    The processes go on when the block begins, the worker at its end.
    """
    worker_process = psutil.Process(node.pid)
    family = worker_process.children(recursive=True)
    for process in (worker_process, *family):
        process.suspend()
    try:
        wait_until(lambda: (folder / "started-2").exists(), what="attempt 2", timeout_seconds=180)
        for process in family:
            process.resume()
        yield family
    finally:
        worker_process.resume()


def test_flow_that_was_given_up_does_not_report_its_end(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It was cut off together with its worker, and is back before that."""
    with worker(server, tmp_path, POOL, "lost-fenced") as cut_off:
        run = submit_gated(api, tmp_path, "fenced")
        taker = worker(server, tmp_path, OTHER, "lost-taker-2")
        with taker, cut_off_while_others_move_it(cut_off, tmp_path) as family:
            before = api.run(run)["state"]["name"]
            (tmp_path / "gate-1").touch()
            wait_until(lambda: are_over(family), what="end of attempt 1", timeout_seconds=60)
            assert api.run(run)["state"]["name"] == before
            wait_until(
                lambda: any("its end is not reported" in line for line in api.logs(run)),
                what="word of it on the run",
                timeout_seconds=30,
            )
            (tmp_path / "gate-2").touch()
            assert api.wait_end(run).name == "Completed"
        wait_until(
            lambda: "its end does not count" in cut_off.log(),
            what="notice of the worker that is back",
            timeout_seconds=60,
        )
    rows = [(row["status"], row["failure"]) for row in api.rows(run)]
    assert rows == [("failed", "NodeLost"), ("completed", None)]
    assert len([state for state in api.states(run) if state.is_final]) == 1


def test_attempt_that_runs_elsewhere_by_now_is_ended_when_its_worker_is_back(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """It would run on beside the other for as long as it takes."""
    cut_off = worker(server, tmp_path, POOL, "lost-back")
    with cut_off, worker(server, tmp_path, OTHER, "lost-taker-3"):
        run = submit_gated(api, tmp_path, "back")
        with cut_off_while_others_move_it(cut_off, tmp_path) as family:
            pass
        wait_until(lambda: are_over(family), what="end of attempt 1", timeout_seconds=90)
        assert api.run(run)["state"]["name"] == "Escalated"
        (tmp_path / "gate-2").touch()
        assert api.wait_end(run).name == "Completed"
    rows = [(row["node"], row["status"], row["failure"]) for row in api.rows(run)]
    assert rows == [
        ("lost-back", "failed", "NodeLost"),
        ("lost-taker-3", "completed", None),
    ]
    assert not (tmp_path / "gate-1").exists()
    assert any("What is left of it on node lost-back is ended" in it for it in api.logs(run))
