"""Flows with our task runner, run by workers of the tests."""

from __future__ import annotations

import json
import os
import signal
import time
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


@task
def hold(megabytes: int, folder: str) -> None:
    """Keep so much memory until the file `release` is there."""
    filled = bytearray(b"\1") * (megabytes * 1024 * 1024)
    Path(folder, "held").touch()
    while not Path(folder, "release").exists():
        time.sleep(0.05)
    assert filled[-1] == 1


@task
def fill_beside(megabytes: int, folder: str) -> dict:
    while not Path(folder, "held").exists():
        time.sleep(0.05)
    return fill.fn(megabytes)


@flow(task_runner=HeteroTaskRunner())
def fill_in_company(
    folder: str, holding_mb: int, megabytes: int, memory_mb: int, max_retries: int
) -> None:
    """One task fills memory while another, which asks for none, holds some."""
    holding = hold.submit(holding_mb, folder)
    needs = requires(memory_mb=memory_mb, max_retries=max_retries)
    filling = needs(fill_beside).submit(megabytes, folder)
    filling.wait()
    Path(folder, "release").touch()
    Path(folder, "notes").write_text(json.dumps(filling.result()))
    holding.result()


@task(task_run_name="dies-once")
def die_once() -> None:
    attempt = current_attempt()
    if attempt is not None and attempt.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@flow(task_runner=HeteroTaskRunner())
def tell_of_a_task_that_dies() -> None:
    die_once.submit().result()
