"""A flow whose tasks emit events and hold locks: `python -m tests.support.emitting_flow`."""

from __future__ import annotations

import os
from typing import Any

from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.events import emit_event
from prefect.locking.memory import MemoryLockManager
from prefect.runtime import flow_run
from prefect.transactions import IsolationLevel

from prefect_heteroflow import HeteroTaskRunner

_lock_manager: Any = MemoryLockManager
LOCKED: Any = INPUTS.configure(
    isolation_level=IsolationLevel.SERIALIZABLE, lock_manager=_lock_manager()
)


@task
def emit(count: int) -> int:
    for number in range(count):
        emit_event("heteroflow-test.emitted", {"prefect.resource.id": f"test.{number}"})
    return count


@task(cache_policy=LOCKED, persist_result=True)
def process_of_body(salt: str) -> int:
    return os.getpid()


@task(cache_policy=LOCKED, persist_result=True)
def locked(salt: str) -> int:
    """The process of its body, from a task of the body that has the same lock manager."""
    return process_of_body.submit(f"{salt} inside").result()


@flow(task_runner=HeteroTaskRunner())
def emitting() -> tuple[int, bool]:
    salt = str(flow_run.id)
    futures = [locked.submit(salt) for _ in range(2)]
    bodies = {future.result() for future in futures}
    return emit.submit(20).result(), len(bodies) == 1 and os.getpid() not in bodies


if __name__ == "__main__":
    print(emitting())
