"""Many runs that fail at the same moment on one worker: each must reach its right next state."""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from benchmarks.recovery_bed import SMALL, Bed
from benchmarks.recovery_jobs import job
from tests.support import wait_until
from tests.support.images import PLAIN_IMAGE

MEMORY_MB = 32
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure, and what has to follow."""

    name: str
    failure: str
    next_state: str
    end: str
    attempts: int
    memory_mb: tuple[int, ...]


KINDS = (
    Kind("oom", "CpuOutOfMemory", "AwaitingRetry", "Completed", 2, (MEMORY_MB, 2 * MEMORY_MB)),
    Kind("transient", "NetworkTimeout", "AwaitingRetry", "Completed", 2, (MEMORY_MB, MEMORY_MB)),
    Kind("permission", "PermissionDenied", "PermanentFailure", "PermanentFailure", 1, (MEMORY_MB,)),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one run."""

    kind: Kind
    run: str
    wrong: str | None
    """What is not as it has to be."""
    decided_after: float
    """Seconds from the failure of all to this run's next state."""
    ended_after: float


@dataclass(frozen=True, slots=True)
class Many:
    """What became of all."""

    results: list[Result]
    start_seconds: float
    """How long it took until all were running."""


def measure(bed: Bed, count: int, pool: str = SMALL) -> Many:
    """Start `count` jobs that wait for a sign, give it, and see where each one gets."""
    deployments = [
        bed.deploy(pool, f"many-{kind.name}", PLAIN_IMAGE, memory_mb=MEMORY_MB) for kind in KINDS
    ]
    began = time.monotonic()
    runs: list[tuple[Kind, str]] = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        arguments = (kind.name, 1, "gate") if kind.name == "oom" else (kind.name, "gate")
        run = bed.api.submit(
            deployments[number % len(KINDS)], job_variables={"command": job(*arguments)}
        )
        runs.append((kind, run))
    # Until each is `Running` and its row is written: the failures then come alone.
    for _, run in runs:
        wait_until(
            functools.partial(_runs_or_has_ended, bed, run),
            what=f"state Running of {run}",
            timeout_seconds=900,
            interval_seconds=0.5,
        )
    start_seconds = time.monotonic() - began
    failed_at = bed.bench.open_gate()
    results = [_follow(bed, kind, run, failed_at) for kind, run in runs]
    return Many(results, start_seconds)


def _runs_or_has_ended(bed: Bed, run: str) -> bool:
    kind = bed.api.run(run)["state"]["type"]
    return kind in FINAL or (kind == "RUNNING" and bool(bed.api.rows(run)))


def _follow(bed: Bed, kind: Kind, run: str, failed_at: float) -> Result:
    end = bed.api.wait_end(run, timeout_seconds=900)
    states = bed.api.get(f"/flow_run_states/?flow_run_id={run}")
    times = [(_seconds(state["timestamp"]), state) for state in states]
    times.sort(key=lambda pair: pair[0])
    after = [(at, state) for at, state in times if at >= failed_at]
    rows = bed.api.rows(run)
    wrong = None
    seen = [state["name"] for _, state in times]
    final = [state["name"] for _, state in times if state["type"] in FINAL]
    if not bed.bench.starts(run):
        wrong = f"never ran: {end.name} ({end.message})"
    elif end.name != kind.end or final != [kind.end]:
        wrong = f"ended as {end.name} ({end.message}), final states {final}"
    elif not after or after[0][1]["name"] != kind.next_state:
        wrong = f"next state is not {kind.next_state}: {seen}"
    elif len(rows) != kind.attempts or rows[0]["failure"] != kind.failure:
        wrong = f"attempts {[(row['attempt'], row['failure']) for row in rows]}"
    elif tuple(row["memory_mb"] for row in rows) != kind.memory_mb:
        wrong = f"memory {[row['memory_mb'] for row in rows]}"
    elif len(bed.bench.starts(run)) != kind.attempts:
        wrong = f"{len(bed.bench.starts(run))} starts"
    decided = after[0][0] - failed_at if after else 0.0
    ended = after[-1][0] - failed_at if after else 0.0
    return Result(kind, run, wrong, decided, ended)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def show(many: Many, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"{len(many.results)} runs that fail at once on one worker, seconds")
    for name in ("failure", "runs", "wrong", "next state: median", "last", "end: median", "last"):
        table.add_column(name, justify="left" if name == "failure" else "right")
    groups = [(kind.failure, [r for r in many.results if r.kind == kind]) for kind in KINDS]
    for name, results in [*groups, ("all", many.results)]:
        if not results:
            continue
        decided = [result.decided_after for result in results]
        ended = [result.ended_after for result in results]
        table.add_row(
            name,
            str(len(results)),
            str(sum(result.wrong is not None for result in results)),
            f"{statistics.median(decided):.1f}",
            f"{max(decided):.1f}",
            f"{statistics.median(ended):.1f}",
            f"{max(ended):.1f}",
        )
    console.print(table)
    console.print(f"(all {len(many.results)} running {many.start_seconds:.0f} s after the first)")
    for result in many.results:
        if result.wrong is not None:
            console.print(f"wrong: {result.kind.name} {result.run}: {result.wrong}", markup=False)
