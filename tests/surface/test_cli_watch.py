"""`heteroflow submit --watch` on a real server: progress, the job's output, the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import LogCreate, WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Completed, Failed

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.orchestration.history import write_attempts
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Worker

T = TypeVar("T")
JOB = ("--image", "python:3.12-slim", "--command", "python -c 'print(1)'")
SCRIPT = "from prefect_heteroflow.cli import app; app()"


@pytest.fixture
def api(server: PrefectServer) -> Iterator[PrefectServer]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield server


@pytest.fixture
def pool(api: PrefectServer) -> str:
    name = f"watch-{uuid4()}"
    with_client(lambda it: it.create_work_pool(WorkPoolCreate(name=name, type="heteroflow")))
    return name


def with_client(action: Callable[[PrefectClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with get_client() as client:
            return await action(client)

    return asyncio.run(run())


@contextmanager
def watching(server: PrefectServer, pool: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A process that submits and watches; its output is no terminal."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "submit", *JOB, "--pool", pool, "--watch", *more],
        env=server.env(PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_run(process: subprocess.Popen[Any], pool: str) -> FlowRun:
    """The run that the process submitted."""
    found: list[FlowRun] = []

    async def look(client: PrefectClient) -> bool:
        body = {"work_pools": {"name": {"any_": [pool]}}, "limit": 1}
        answer = (await client.request("POST", "/flow_runs/filter", json=body)).json()
        found.extend(FlowRun.model_validate(it) for it in answer)
        return bool(found)

    def submitted() -> bool:
        assert process.poll() is None, "it ended before it submitted anything"
        return with_client(look)

    wait_until(submitted, what="a run", timeout_seconds=60)
    return found[0]


def row_of(run: FlowRun, status: AttemptStatus, **values: Any) -> Attempt:
    values = {"attempt": 1, "flow_run_id": str(run.id), "node": "node-1", **values}
    return Attempt(status=status, memory_mb=2048, **values)


def end(run: FlowRun, state: Any, *rows: Attempt) -> None:
    status = AttemptStatus.COMPLETED if state.is_completed() else AttemptStatus.FAILED
    row = row_of(run, status, decision="stop: told so by the test")

    async def act(client: PrefectClient) -> None:
        await write_attempts(client, run.id, rows or [row], summary=False)
        await client.set_flow_run_state(run.id, state, force=True)

    with_client(act)


def log(flow_run_id: UUID, *messages: str, at: datetime | None = None) -> None:
    """Lines as the API gets them from a worker."""
    moment = at or datetime.now(timezone.utc)
    lines = [
        LogCreate(
            name="prefect.flow_runs.worker",
            level=20,
            message=message,
            timestamp=moment + timedelta(microseconds=number),
            flow_run_id=flow_run_id,
        )
        for number, message in enumerate(messages)
    ]
    for first in range(0, len(lines), 200):
        batch = lines[first : first + 200]
        with_client(lambda client, batch=batch: client.create_logs(batch))  # type: ignore[misc]


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of standard output up to the one that holds the text."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"no line holds {text!r}: {lines}")


def messages(lines: list[str], word: str = "epoch") -> list[str]:
    """What was logged, without the time and the level before it."""
    return [line.rpartition(" | ")[2] for line in lines if word in line]


def test_watching_a_run_that_completes_ends_with_exit_code_0(pool: str, api: PrefectServer) -> None:
    """The changes go to standard error, the report to standard output."""
    with watching(api, pool, "--json") as process:
        end(wait_for_run(process, pool), Completed())
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["state"] == "Completed"
    assert "attempt 1 on node-1 with 2048 MB: completed" in err


def test_watching_a_run_that_fails_ends_with_exit_code_1(pool: str, api: PrefectServer) -> None:
    """Scripts can tell by the exit code alone."""
    state = Failed(name="PermanentFailure", message="no node is large enough")
    with watching(api, pool) as process:
        end(wait_for_run(process, pool), state)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "PermanentFailure: no node is large enough" in err


def test_interrupt_ends_the_watching_and_not_the_run(pool: str, api: PrefectServer) -> None:
    """Ctrl-C leaves the run alone and says so."""
    with watching(api, pool) as process:
        run = wait_for_run(process, pool)
        assert process.stderr is not None
        process.stderr.readline()  # it watches
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"the run goes on. See it with `heteroflow retries {run.id}`" in err
    assert with_client(lambda client: client.read_flow_run(run.id)).state_name == "Scheduled"


def test_lines_are_shown_while_the_run_goes_on_each_once(pool: str, api: PrefectServer) -> None:
    """Also one that comes after others that bear a later time, and those after the end."""
    with watching(api, pool) as process:
        run = wait_for_run(process, pool)
        log(run.id, "epoch 1", "epoch 2")
        seen = read_until(process, "epoch 2")
        log(run.id, "late epoch", at=datetime.now(timezone.utc) - timedelta(minutes=5))
        seen += read_until(process, "late epoch")
        end(run, Completed())
        log(run.id, "epoch of the end")
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    shown = messages(seen + out.splitlines())
    assert shown == ["epoch 1", "epoch 2", "late epoch", "epoch of the end"]
    assert "epoch" not in err


def test_long_log_is_shown_whole(pool: str, api: PrefectServer) -> None:
    """More lines than the API gives at once; a very late one stands at the end."""
    many = [f"epoch {number}" for number in range(450)]
    with watching(api, pool) as process:
        run = wait_for_run(process, pool)
        log(run.id, *many)
        seen = read_until(process, "epoch 449")
        log(run.id, "late epoch", at=datetime.now(timezone.utc) - timedelta(minutes=5))
        end(run, Completed())
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert messages(seen + out.splitlines()) == [*many, "late epoch"]


def test_lines_of_an_attempt_on_another_pool_are_shown(pool: str, api: PrefectServer) -> None:
    """Its run is another one; who watches the task need not know."""
    with watching(api, pool) as process:
        run = wait_for_run(process, pool)
        other = uuid4()
        rows = (
            row_of(run, AttemptStatus.FAILED, failure="GpuOutOfMemory"),
            row_of(run, AttemptStatus.COMPLETED, attempt=2, flow_run_id=str(other), node="node-2"),
        )
        log(run.id, "epoch 1")
        log(other, "epoch 2")
        end(run, Completed(), *rows)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert messages(out.splitlines()) == ["epoch 1", "epoch 2"]


def test_json_report_has_standard_output_for_itself(pool: str, api: PrefectServer) -> None:
    """The job's output goes to standard error then."""
    with watching(api, pool, "--json") as process:
        run = wait_for_run(process, pool)
        log(run.id, "epoch 1")
        end(run, Completed())
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["state"] == "Completed"
    assert messages(err.splitlines()) == ["epoch 1"]


def test_end_shows_the_attempts_and_each_reason_once(pool: str, api: PrefectServer) -> None:
    """State and table come last; what the table says is not told before."""
    decision = "memory 2048 -> 4096 MB on node-1, retry 1 of 3 in 0 s"
    waiting = AwaitingRetry(message=decision, scheduled_time=datetime.now(timezone.utc))
    with watching(api, pool) as process:
        run = wait_for_run(process, pool)
        failed = row_of(
            run,
            AttemptStatus.FAILED,
            failure="CpuOutOfMemory",
            reason="The kernel killed it.",
            decision=decision,
        )
        end(run, waiting, failed)
        assert process.stderr is not None
        while "AwaitingRetry" not in process.stderr.readline():
            pass
        end(run, Completed(), failed, row_of(run, AttemptStatus.COMPLETED, attempt=2))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.index("\nCompleted") < err.index("The kernel killed it.")
    assert (err.count("The kernel killed it."), err.count(decision)) == (1, 1)


def test_output_of_a_real_job_is_shown_with_its_end(
    pool: str, api: PrefectServer, tmp_path: Path
) -> None:
    """From the process to the person who waits; the exit code says that it failed."""
    job = "python3 -c 'import sys; print(\"epoch of the job\"); sys.exit(3)'"
    name = f"{pool}-real"
    more = ("--pool", name, "--command", job, "--max-retries", "0")
    command = [sys.executable, "-c", SCRIPT, "submit", "--watch", *more]
    with_client(
        lambda it: it.create_work_pool(WorkPoolCreate(name=name, type="heteroflow-process"))
    )
    env = api.env(PYTHONPATH=os.pathsep.join(sys.path))
    with Worker(api, tmp_path, pool=name, node="watched-node", memory_mb=8192):
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 1, done.stderr
    assert messages(done.stdout.splitlines(), "epoch") == ["epoch of the job"]
    assert "\nFailed: UnknownError" in done.stderr
    assert "attempt 1 on watched-node with 2048 MB: failed - UnknownError" in done.stderr


def test_terminal_shows_whole_lines_above_the_progress(pool: str, api: PrefectServer) -> None:
    """The display in place does not break them, nor does it repeat them."""
    lines = [f"epoch {number} [bold] {'x' * 100}" for number in range(5)]
    control, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "submit", *JOB, "--pool", pool, "--watch"],
        env=api.env(PYTHONPATH=os.pathsep.join(sys.path), TERM="xterm", COLUMNS="80"),
        stdout=terminal,
        stderr=terminal,
    ) as process:
        try:
            run = wait_for_run(process, pool)
            for line in lines:
                log(run.id, line)
            end(run, Completed())
            os.close(terminal)
            output = read_terminal(control)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(control)
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", output.replace("\r", "\n"))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", coloured)
    assert messages(shown.splitlines()) == lines


def read_terminal(control: int) -> str:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(control, 65536)
        except OSError:  # the last process closed its side
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
