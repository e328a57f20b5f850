"""A worker that fails itself while it looks after a run: nothing of the run stays open."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import psutil
import pytest

from prefect_heteroflow.attempts.worker_errors import text_of
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "worker-errors"
BROKEN = """
from prefect_heteroflow.process_worker import HeteroflowProcessWorker

async def broken(self, handle):
    await original(self, handle)
    raise LookupError("broken by the test")

original = HeteroflowProcessWorker.read_report
HeteroflowProcessWorker.read_report = broken
"""


def test_run_crashes_with_the_error_and_its_row_is_closed(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    api.create_pool(POOL, "heteroflow-process")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(scratch)}
    flow = api.deploy("sleepy", POOL, name="broken", job_variables={"memory_mb": 64})
    with Worker(server, tmp_path, pool=POOL, node="broken", memory_mb=512, settings=settings):
        run = api.submit(flow, job_variables={"command": "true"})
        end = api.wait_end(run)
        assert end.type == "CRASHED"
        assert "LookupError: broken by the test" in end.message
        (row,) = api.rows(run)
        assert (row["status"], row["rule"]) == ("failed", "worker-error")
        assert "LookupError: broken by the test" in row["reason"]
        wait_until(lambda: not list(scratch.glob("heteroflow-*")), what="removed folders")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_console_without_the_characters_of_the_output_ends_no_attempt(
    server: PrefectServer, api: Api, tmp_path: Path, encoding: str
) -> None:
    """More than a pipe holds: a reader that gave up would leave the job standing."""
    api.create_pool(POOL, "heteroflow-process")
    code = "import sys; sys.stdout.buffer.write((chr(0x4e94) + chr(10)).encode() * 200000)"
    command = f'{sys.executable} -c "{code}"'
    flow = api.deploy("sleepy", POOL, name="console", job_variables={"memory_mb": 64})
    settings = {"PYTHONIOENCODING": encoding}
    with Worker(server, tmp_path, pool=POOL, node=encoding, memory_mb=512, settings=settings):
        run = api.submit(flow, job_variables={"command": command})
        assert api.wait_end(run).name == "Completed"
    assert not [p for p in psutil.process_iter(["cmdline"]) if code in (p.info["cmdline"] or [])]


async def fail(error: Exception) -> None:
    raise error


async def test_text_of_an_error_names_what_is_in_its_groups() -> None:
    """A group's own text is "unhandled errors in a TaskGroup", which helps nobody."""
    try:
        async with anyio.create_task_group(), anyio.create_task_group() as inner:
            inner.start_soon(fail, OSError("gone"))
    except Exception as error:
        text = text_of(error)
    assert text == "OSError: gone"


def test_text_of_an_error_is_its_type_and_text() -> None:
    assert text_of(ValueError("no")) == "ValueError: no"
