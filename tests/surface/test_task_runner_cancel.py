"""Cancelling a flow ends the bodies of its tasks, gently and then by force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

ROOT = Path(__file__).parents[2]


@contextmanager
def running_flow(
    server: PrefectServer, folder: Path, body: str, *more: str, grace_seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """The flow in a process of its own, once its body runs."""
    command = [sys.executable, "-m", "tests.support.cancelled_flow"]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [*command, str(folder), body, str(grace_seconds), *more],
        env=server.env(PYTHONPATH=str(ROOT)),
        cwd=ROOT,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_until((folder / "started").exists, what="start of the body", timeout_seconds=90)
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


def body_is_gone(folder: Path) -> bool:
    pid = int((folder / "started").read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def newest_task_runs(api: Api) -> list[dict[str, Any]]:
    named = {"flows": {"name": {"any_": ["cancelled"]}}}  # other tests have runs on this server
    flows = api.post("/flow_runs/filter", {**named, "sort": "START_TIME_DESC", "limit": 1})
    wanted = {"flow_runs": {"id": {"any_": [flows[0]["id"]]}}}
    return api.post("/task_runs/filter", wanted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_running_body_is_interrupted_and_the_waiting_one_never_starts(
    server: PrefectServer, api: Api, tmp_path: Path, number: signal.Signals
) -> None:
    """The body sees KeyboardInterrupt; its task is Cancelled and is not retried."""
    with running_flow(server, tmp_path, "wait_forever", grace_seconds=60) as process:
        # The flow submits the second task a moment after the first body has started.
        wait_until(lambda: _run(newest_task_runs(api)), what="two tasks that run")
        process.send_signal(number)
        process.wait(40)
        assert (tmp_path / "started-interrupted").exists()
        assert not (tmp_path / "second").exists()
        wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=10)
    states = wait_until(
        lambda: ended if (ended := _ended(newest_task_runs(api))) else None, what="ended tasks"
    )
    assert states == [("CANCELLED", 1), ("CANCELLED", 1)]


def _run(runs: list[dict[str, Any]]) -> bool:
    return [run["state_type"] for run in runs] == ["RUNNING", "RUNNING"]


def _ended(runs: list[dict[str, Any]]) -> list[tuple[str, int]] | None:
    states = [(run["state_type"], run["run_count"]) for run in runs]
    return states if len(states) == 2 and all(kind == "CANCELLED" for kind, _ in states) else None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_running_body_of_an_async_flow_is_interrupted(
    server: PrefectServer, tmp_path: Path, number: signal.Signals
) -> None:
    """There the signal arrives as a cancelled task of the event loop."""
    with running_flow(server, tmp_path, "wait_forever", "in-a-loop", grace_seconds=60) as process:
        process.send_signal(number)
        process.wait(40)
        assert (tmp_path / "started-interrupted").exists()


def test_body_that_ignores_the_interrupt_is_ended_after_the_grace_time(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Not before it, and not much later."""
    with running_flow(server, tmp_path, "ignore_interrupts", grace_seconds=2) as process:
        asked_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until((tmp_path / "ignored").exists, what="the interrupt")
        wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=30)
        assert time.monotonic() - asked_at >= 2
        process.wait(30)


def test_flow_that_is_killed_takes_its_children_along(
    server: PrefectServer, tmp_path: Path
) -> None:
    """SIGKILL leaves no time to say anything; nothing goes on all the same."""
    with running_flow(server, tmp_path, "ignore_interrupts", grace_seconds=60) as process:
        process.kill()
        wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=10)


def test_flow_that_is_killed_takes_its_children_along_though_a_fork_of_it_lives_on(
    server: PrefectServer, tmp_path: Path
) -> None:
    """As a pool of `multiprocessing` does: it must not hold open what tells of the flow's end."""
    forked = tmp_path / "forked"
    with running_flow(server, tmp_path, "ignore_interrupts", "forks", grace_seconds=60) as process:
        wait_until(
            lambda: forked.exists() and forked.read_text(), what="the fork", timeout_seconds=30
        )
        process.kill()
        try:
            wait_until(lambda: body_is_gone(tmp_path), what="end of the body", timeout_seconds=10)
        finally:
            os.kill(int(forked.read_text()), signal.SIGKILL)
