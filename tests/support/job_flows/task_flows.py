"""Flows with our task runner, run by workers of the tests."""

from __future__ import annotations

import json
from pathlib import Path

from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner, current_attempt


@task
def seen() -> dict:
    attempt = current_attempt()
    assert attempt is not None
    return {"node": attempt.node, "memory_mb": attempt.memory_mb}


@flow(task_runner=HeteroTaskRunner())
def tell_what_a_task_sees(notes: str) -> None:
    Path(notes).write_text(json.dumps(seen.submit().result()))
