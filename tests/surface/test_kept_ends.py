"""The end of a process attempt outlasts its worker, when the API did not take it in time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.backend import AttemptEnd
from prefect_heteroflow.attempts.kept_ends import KeptEnd, KeptEnds
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.progress import Progress
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.environment import EngineReport
from prefect_heteroflow.infra.journal import Journal
from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

RUN, TASK = uuid4(), uuid4()
ENDED = "2026-01-01T00:01:00+00:00"
BEFORE, AFTER = "2026-01-01T00:00:30+00:00", "2026-01-01T00:02:00+00:00"
ROW = Attempt(
    attempt=2,
    flow_run_id=str(RUN),
    status=AttemptStatus.RUNNING,
    node="node-1",
    memory_mb=512,
    started=BEFORE,
    ended=ENDED,
)
KEPT = KeptEnd(
    task_id=TASK,
    row=ROW,
    end=AttemptEnd(signal=9, oom_kill_count=1, peak_memory_mb=500),
    report=EngineReport(aborted=True, state_message="x"),
    log="torch.OutOfMemoryError: CUDA out of memory.",
    progress=Progress(point="3/10", percent=30.0),
    gpu_uuids=("GPU-1",),
    gpu_memory_mb=8192,
)


# ---- files ---------------------------------------------------------------------------------------


def test_kept_end_is_the_same_through_json() -> None:
    assert KeptEnd.from_values(json.loads(json.dumps(KEPT.to_values()))) == KEPT


def test_secret_in_the_output_is_not_kept() -> None:
    log = "AWS_SECRET_ACCESS_KEY=abcdefghijklmnop1234"
    kept = dataclasses.replace(KEPT, log=log, report=EngineReport(state_message=log))
    assert "abcdefghijklmnop1234" not in json.dumps(kept.to_values())


@pytest.mark.parametrize("values", [None, [], {}, {"task_id": 3}, {**KEPT.to_values(), "end": 1}])
def test_other_values_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="not the end of an attempt"):
        KeptEnd.from_values(values)


def test_entry_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "ends"
    Journal(folder).write("a", {"x": 1})
    assert (folder.stat().st_mode & 0o777, (folder / "a.json").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )


def test_entry_is_replaced_and_removed_as_a_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("a", {"x": 1})
    journal.write("a", {"x": 2})
    assert journal.read_all() == {"a": {"x": 2}}
    journal.remove("a")
    journal.remove("a")
    assert (journal.read_all(), list(tmp_path.iterdir())) == ({}, [])


def test_half_an_entry_is_told_and_removed_and_the_next_one_counts(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"task_id": "')
    assert Journal(tmp_path).read_all() == {"half": None}


# ---- whether it still counts ---------------------------------------------------------------------


def run_in(kind: str, since: str = BEFORE) -> FlowRun:
    state: State[Any] = State(type=StateType(kind), timestamp=since)
    return FlowRun(id=RUN, flow_id=uuid4(), state=state)


def other(**values: Any) -> Attempt:
    return dataclasses.replace(ROW, ended=None, **values)


FAILED, PLANNED = AttemptStatus.FAILED, AttemptStatus.SCHEDULED
CASES: list[tuple[str, FlowRun, list[Attempt], bool]] = [
    ("as it was left", run_in("RUNNING"), [other()], True),
    ("its start was not told", run_in("PENDING"), [], True),
    ("planned for another node", run_in("PENDING"), [other(status=PLANNED, node="node-2")], True),
    ("given up by others", run_in("RUNNING"), [other(status=FAILED)], False),
    ("the next one is planned", run_in("RUNNING"), [other(attempt=3, status=PLANNED)], False),
    ("runs on another node", run_in("RUNNING"), [other(node="node-2")], False),
    ("taken up again", run_in("PENDING", AFTER), [], False),
    ("ended by its flow", run_in("FAILED", BEFORE), [other()], True),
]


@pytest.mark.parametrize(
    ("run", "rows", "expected"), [it[1:] for it in CASES], ids=[it[0] for it in CASES]
)
def test_end_counts_unless_somebody_has_gone_on_without_it(
    run: FlowRun, rows: list[Attempt], expected: bool
) -> None:
    assert KEPT.is_open(run, rows, "node-1") is expected


# ---- for how long --------------------------------------------------------------------------------


class Stopped(BaseException):
    """As a worker that is cancelled."""


@pytest.mark.parametrize(
    ("error", "stays"), [(None, False), (ValueError, False), (Stopped, True)], ids=str
)
async def test_end_is_kept_until_it_was_told_or_refused(
    tmp_path: Path, error: type[BaseException] | None, stays: bool
) -> None:
    settling: Any = SimpleNamespace(
        row=ROW,
        task_id=TASK,
        scanner=FailureScanner(),
        progress=None,
        gpu_uuids=(),
        gpu_memory_mb=None,
    )
    kept_ends = KeptEnds(tmp_path, SimpleNamespace(warning=print))  # type: ignore[arg-type]
    with contextlib.suppress(ValueError, Stopped):
        async with kept_ends.keep(settling, KEPT.end, None):
            assert list(Journal(tmp_path).read_all()) == [f"{RUN}-2"]
            if error is not None:
                raise error
    assert bool(Journal(tmp_path).read_all()) is stays


# ---- for real ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_of_next", ["kept", "kept-other"])
def test_attempt_that_ends_in_an_outage_is_settled_by_its_evidence_after_its_worker_was_killed(
    tmp_path: Path, pool_of_next: str
) -> None:
    """The next worker of the node has the evidence, also when it is one of another pool."""
    pool = "kept"
    fill = (
        f"import pathlib, time; pathlib.Path('{tmp_path}/up').touch()\n"
        f"while not pathlib.Path('{tmp_path}/go').exists(): time.sleep(0.1)\n"
        "block = bytearray(200 * 2**20)\n"
        "for index in range(0, len(block), 4096): block[index] = 1\n"
    )
    (tmp_path / "fill.py").write_text(fill)
    settings = {"PREFECT_CLIENT_MAX_RETRIES": "0", "PREFECT_HOME": str(tmp_path / "home")}
    with PrefectServer(tmp_path / "server") as server:
        with contextlib.closing(Api(server)) as api:
            for each in {pool, pool_of_next}:
                api.create_pool(each, "heteroflow-process")

        def worker_of(pool: str) -> Worker:
            return Worker(
                server, tmp_path, pool=pool, node="kept", memory_mb=4096, settings=settings
            )

        with worker_of(pool) as worker:
            with contextlib.closing(Api(server)) as api:
                flow = api.deploy("sleepy", pool, name="kept", job_variables={"memory_mb": 128})
                command = f"python {tmp_path}/fill.py"
                run = api.submit(flow, job_variables={"command": command, "retry_delay": 0})
                wait_until((tmp_path / "up").exists, what="attempt 1", timeout_seconds=90)
                wait_until(lambda: api.rows(run), what="row of attempt 1", timeout_seconds=60)
            server.kill()
            (tmp_path / "go").touch()
            ends = tmp_path / "home" / "heteroflow" / "ends"
            wait_until(lambda: list(ends.rglob("*.json")), what="kept end", timeout_seconds=60)
            worker.kill()
            server.start()
            with worker_of(pool_of_next), contextlib.closing(Api(server)) as api:
                assert api.wait_end(run).name == "Completed"
                told = [(row["failure"], row["memory_mb"]) for row in api.rows(run)]
            assert told == [("CpuOutOfMemory", 128), (None, 256)]
            assert list(ends.rglob("*.json")) == []
