"""What a child says, and what it is sent, of things that are its own matter."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.context import FlowRunContext, TaskRunContext
from prefect.locking.filesystem import FileSystemLockManager
from prefect.locking.memory import MemoryLockManager
from prefect.locking.protocol import LockManager

from prefect_heteroflow.task_runner.contexts import pack_flow, pack_run
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

ROOT = Path(__file__).parents[2]


def test_events_and_locks_of_tasks_are_silent(server: PrefectServer) -> None:
    """As with threads, though the child waits for its events, and locks are of one process."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.emitting_flow"],
        env=server.env(PYTHONPATH=str(ROOT), PREFECT_LOGGING_LEVEL="WARNING"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert found.stdout.endswith("(20, True)\n")
    assert found.stderr == ""


def stores_sent(server: PrefectServer, lock_manager: LockManager | None = None) -> tuple[Any, Any]:
    """The result stores that a body would get with its flow run and its task run.

    A task before it has left a result of a million bytes in memory.
    """

    def sent(context: Any, pack: Any) -> Any:
        context = context.get()
        store = context.result_store.model_copy(update={"lock_manager": lock_manager})
        return pickle.loads(pack(context.model_copy(update={"result_store": store}))).result_store

    @task(persist_result=True)
    def large() -> bytes:
        return bytes(1_000_000)

    @task
    def look() -> tuple[Any, Any]:
        return sent(FlowRunContext, pack_flow), sent(TaskRunContext, pack_run)

    with flows_run_here(server):
        return flow(lambda: (large(), look())[1])()


def test_body_is_not_sent_the_results_that_its_flow_has_in_memory(server: PrefectServer) -> None:
    """They would be all results of the flow, with each task."""
    assert [len(store.cache) for store in stores_sent(server)] == [0, 0]


def test_lock_manager_of_one_process_is_sent_without_its_locks(
    server: PrefectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks in the body find the lock manager of their own process."""
    manager = MemoryLockManager()
    assert manager.acquire_lock("key", "holder")
    try:
        stores = stores_sent(server, manager)
        assert [type(store.lock_manager) for store in stores] == [MemoryLockManager] * 2
        assert manager.is_locked("key")
    finally:
        manager.release_lock("key", "holder")
    assert "Serializing" not in caplog.text


def test_lock_manager_of_a_folder_is_sent_as_it_is(server: PrefectServer, tmp_path: Path) -> None:
    """The near miss: its locks hold for all processes."""
    for store in stores_sent(server, FileSystemLockManager(tmp_path)):
        assert store.lock_manager.lock_files_directory == tmp_path
