"""Shared memory of a body or an attempt goes with its processes, however they are ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow

from prefect_heteroflow import HeteroTaskRunner, requires
from prefect_heteroflow.infra.leftovers import end_leftovers
from prefect_heteroflow.infra.memory_limits import (
    MemoryLimit,
    MemoryLimitUnavailable,
    create_memory_limit,
)
from prefect_heteroflow.infra.resource_trackers import TrackersLast, is_resource_tracker
from tests.support import runner_tasks, wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.processes import alive
from tests.support.runner_bed import flows_run_here
from tests.surface.test_task_runner_cancel import running_flow

OF_MULTIPROCESSING = "from multiprocessing.resource_tracker import main;main"
OF_LOKY = "from loky.backend.resource_tracker import main; main"
HOLDER = """
import os, signal, sys, time
from multiprocessing import resource_tracker, shared_memory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = shared_memory.SharedMemory(create=True, size=4096)
print(kept.name, resource_tracker._resource_tracker._pid, flush=True)
time.sleep(600)
"""


def is_there(name: str) -> bool:
    return Path("/dev/shm", name.lstrip("/")).exists()


@pytest.mark.parametrize("how", ["killed", "max_calls"])
def test_shared_memory_of_a_body_is_gone_while_its_flow_goes_on(
    server: PrefectServer, tmp_path: Path, how: str
) -> None:
    def body() -> None:
        with requires(max_retries=0, max_calls=1):
            future = runner_tasks.hold_shared_memory.submit(str(tmp_path), how == "killed")
        future.wait()
        name = (tmp_path / "started").read_text().split()[0]
        wait_until(lambda: not is_there(name), what="end of its memory", timeout_seconds=15)

    with flows_run_here(server):
        flow(task_runner=HeteroTaskRunner())(body)()


def test_shared_memory_of_a_body_is_gone_after_its_flow_was_killed(
    server: PrefectServer, tmp_path: Path
) -> None:
    with running_flow(server, tmp_path, "hold_shared_memory", grace_seconds=60) as process:
        name, tracker = (tmp_path / "started").read_text().split()
        assert is_there(name)
        process.kill()
        wait_until(lambda: not is_there(name), what="end of its memory", timeout_seconds=15)
        wait_until(lambda: not alive(int(tracker)), what="end of the tracker", timeout_seconds=15)


@pytest.mark.parametrize("kind", ["cgroup", "watcher"])
@pytest.mark.parametrize("end", ["kill_all", "close"])
def test_shared_memory_of_an_attempt_goes_with_its_processes(kind: Any, end: str) -> None:
    try:
        limit: MemoryLimit = create_memory_limit(f"test-{uuid4().hex[:8]}", 200, prefer=kind)
    except MemoryLimitUnavailable as reason:
        pytest.skip(f"no cgroup can be used on this machine: {reason}")
    command = limit.wrap([sys.executable, "-c", HOLDER])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    limit.enter(process.pid)
    assert process.stdout is not None
    name, _ = process.stdout.readline().split()
    getattr(limit, end)()
    process.communicate()
    assert not is_there(name)
    limit.close()


def test_shared_memory_of_a_leftover_goes_with_it() -> None:
    marks = {"HETEROFLOW_TASK_ID": uuid4().hex}
    environment = {**os.environ, **marks}
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name, _ = process.stdout.readline().split()
        end_leftovers(marks, grace_seconds=0.1)
        assert not is_there(name)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (f"{OF_MULTIPROCESSING}(0)", True),
        (f"{OF_LOKY}(0, False)", True),
        ("import time; from multiprocessing.resource_tracker import main; time.sleep(9)", False),
        ("from time import sleep; sleep(9)  # resource_tracker import main", False),
    ],
    ids=["multiprocessing", "loky", "near miss: imports it too", "near miss: names it"],
)
def test_tracker_is_known_by_its_command_line(tmp_path: Path, program: str, expected: bool) -> None:
    stand_in = tmp_path / "loky" / "backend" / "resource_tracker.py"  # it is not installed
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("def main(*_): input()\n")
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
    )
    try:
        wait_until(lambda: is_resource_tracker(process.pid) is not None, what="its command line")
        assert is_resource_tracker(process.pid) is expected
    finally:
        process.kill()
        process.communicate()


def test_tracker_is_due_only_when_its_time_is_over() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{OF_MULTIPROCESSING}(0)"], stdin=subprocess.PIPE
    )
    try:
        order = TrackersLast(grace_seconds=0.2)
        assert order.due([process.pid]) == []
        wait_until(lambda: order.due([process.pid]) == [process.pid], what="the end of its time")
    finally:
        process.kill()
        process.communicate()
