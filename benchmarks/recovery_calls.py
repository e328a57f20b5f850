"""The requests that one attempt costs: to the API, and to the Docker engine."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.recovery_bed import COUNTED, Bed
from benchmarks.recovery_jobs import job
from tests.support.counting_proxy import CountingProxy, Request
from tests.support.images import PLAIN_IMAGE

KILLS = 3
GOAL = 10

# What Prefect's `BaseWorker` asks for each run that it takes, whatever the worker type.
CORE = (
    "POST /work_pools/{name}/get_scheduled_flow_runs",
    "GET /deployments/{id}",
    "GET /flows/{id}",
    "POST /flow_runs/{id}/set_state (Pending)",
    "POST /flow_runs/{id}/set_state (Submitting)",
    "PATCH /flow_runs/{id}/labels",
    "PATCH /flow_runs/{id} (infrastructure_pid)",
)
# What comes every few seconds or in batches, however many attempts there are.
BESIDE = (
    "POST /logs/",
    "POST /flow_runs/filter",
    "POST /work_pools/{name}/workers/heartbeat",
    "GET /work_pools/{name}",
    "PATCH /variables/{id}",
    "GET /events/in",
    "GET /events/out",
    "GET /health",
    "GET /admin/version",
    "GET /csrf-token",
)


@dataclass(frozen=True, slots=True)
class Cycle:
    """From one kill of a run to the next: one attempt with all that led to it."""

    killed_at: float
    started_at: float
    """The next attempt's process."""
    api: list[Request]
    engine: list[Request]

    def counted(self) -> Counter[str]:
        """API requests of this attempt by kind."""
        kinds = (request.kind for request in self.api)
        return Counter(kind for kind in kinds if kind not in BESIDE)


def measure(bed: Bed, api: CountingProxy, engine: CountingProxy, *, runs: int) -> list[Cycle]:
    """Each run is killed three times: two whole cycles."""
    deployment = bed.deploy(
        COUNTED, "counted", PLAIN_IMAGE, command=job("oom", KILLS), memory_mb=32
    )
    cycles = []
    for _ in range(runs):
        run = bed.api.submit(deployment)
        bed.api.wait_end(run)
        bed.deaths.wait(run, KILLS)
        ends = [death.finished_at for death in bed.deaths.of(run)]
        starts = bed.bench.starts(run)
        cycles += [
            Cycle(
                killed_at=ends[index],
                started_at=starts[index + 1],
                api=api.between(ends[index], ends[index + 1]),
                engine=engine.between(ends[index], ends[index + 1]),
            )
            for index in range(KILLS - 1)
        ]
    return cycles


def show(cycles: Sequence[Cycle], console: Console, *, timeline: bool) -> None:
    """Print the requests by kind, and the timeline of the median cycle."""
    console.print(
        _requests_table(
            cycles, "API requests of the worker per attempt (plain job, same node)", _api
        )
    )
    totals = [sum(cycle.counted().values()) for cycle in cycles]
    core = [sum(n for kind, n in cycle.counted().items() if kind in CORE) for cycle in cycles]
    median, of_core = statistics.median(totals), statistics.median(core)
    verdict = "reached" if median <= GOAL else "missed"
    console.print(
        f"API calls per attempt: {median:g}, of them {of_core:g} of Prefect's own worker and"
        f" {median - of_core:g} of ours (goal: at most {GOAL}, {verdict})"
    )
    console.print(
        _requests_table(cycles, "Requests to the Docker engine per attempt", lambda c: c.engine)
    )
    if timeline:
        console.print(_timeline(sorted(cycles, key=_wait)[len(cycles) // 2]))


def _wait(cycle: Cycle) -> float:
    return cycle.started_at - cycle.killed_at


def _api(cycle: Cycle) -> list[Request]:
    return [request for request in cycle.api if request.kind not in BESIDE]


def _milliseconds(request: Request) -> float:
    return 1000 * ((request.answered_at or request.at) - request.at)


def _requests_table(
    cycles: Sequence[Cycle], title: str, of: Callable[[Cycle], Sequence[Request]]
) -> Table:
    table = Table(title=title)
    table.add_column("request", overflow="fold", min_width=45)
    for name in ("per attempt", "refused", "median ms", "before the start, ms"):
        table.add_column(name, justify="right")
    requests = [(cycle, request) for cycle in cycles for request in of(cycle)]
    for kind, count in Counter(request.kind for _, request in requests).most_common():
        same = [(cycle, request) for cycle, request in requests if request.kind == kind]
        before = [_milliseconds(r) for cycle, r in same if r.at < cycle.started_at]
        table.add_row(
            f"{kind}  (core)" if kind in CORE else kind,
            f"{count / len(cycles):.1f}",
            str(sum((request.status or 0) >= 400 for _, request in same) or ""),
            f"{statistics.median(_milliseconds(request) for _, request in same):.0f}",
            f"{sum(before) / len(cycles):.0f}",
        )
    return table


def _timeline(cycle: Cycle) -> Table:
    """Each request from the kill to the next start, with milliseconds since the kill."""
    table = Table(title=f"One retry: {_wait(cycle):.2f} s from the kill to the next start")
    for name in ("at ms", "took ms", "to", "request"):
        table.add_column(name, justify="right" if name.endswith("ms") else "left")
    both = [("api", r) for r in cycle.api] + [("engine", r) for r in cycle.engine]
    for to, request in sorted(both, key=lambda pair: pair[1].at):
        if request.at > cycle.started_at + 0.2:
            break
        table.add_row(
            f"{1000 * (request.at - cycle.killed_at):.0f}",
            f"{_milliseconds(request):.0f}" if request.answered_at else "",
            to,
            request.kind,
        )
    table.add_row(f"{1000 * _wait(cycle):.0f}", "", "", "the next attempt's process runs")
    return table
