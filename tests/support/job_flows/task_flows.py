"""Flows with our task runner, run by workers of the tests."""

from __future__ import annotations

import json
from pathlib import Path

from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner, current_attempt, requires


@task
def seen() -> dict:
    attempt = current_attempt()
    assert attempt is not None
    return {"node": attempt.node, "memory_mb": attempt.memory_mb}


@flow(task_runner=HeteroTaskRunner())
def tell_what_a_task_sees(notes: str) -> None:
    Path(notes).write_text(json.dumps(seen.submit().result()))


@task
def fill(megabytes: int) -> dict:
    filled = bytearray(b"\1") * (megabytes * 1024 * 1024)
    assert filled[-1] == 1
    return seen.fn()


@flow(task_runner=HeteroTaskRunner())
def tell_what_a_filling_task_sees(notes: str, megabytes: int, memory_mb: int | None = None) -> None:
    task_run = requires(memory_mb=memory_mb)(fill).submit(megabytes)
    Path(notes).write_text(json.dumps(task_run.result()))
