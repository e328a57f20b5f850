"""How soon a killed run runs again, what that costs the API, and 200 runs that fail at once.

    python -m benchmarks.recovery                 # about ten minutes, as root, with Docker
    python -m benchmarks.recovery --runs 20       # steadier figures
    python -m benchmarks.recovery --only same,calls --timeline
    python -m benchmarks.recovery --only many --many 200

Figures of one session are for comparing with each other, not with those of another machine. The
goals: the next attempt's process runs at most 1 s later than by a `docker run` by hand on the same
node and at most 2 s later on another pool, with at most 10 API calls of the worker per attempt;
and none of the runs that fail at once gets a wrong next state.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import docker
from rich.console import Console
from rich.table import Table

from benchmarks import recovery_calls, recovery_many
from benchmarks.recovery_bed import (
    LARGE,
    LARGE_GPU_MB,
    SMALL,
    SMALL_GPU_MB,
    STOCK,
    Bed,
    bed,
    counted,
)
from benchmarks.recovery_jobs import MOUNT, job
from tests.support import wait_until
from tests.support.docker_engine import why_no_engine
from tests.support.images import BASE_IMAGE, PLAIN_IMAGE, why_not_buildable

PARTS = ("same", "flow", "other", "stock", "calls", "many")
SAME_NODE_GOAL, OTHER_POOL_GOAL = 1.0, 2.0
SMALL_MB, LARGE_MB, TOO_MUCH_TWICE_MB = 600, 16000, 400
"""Memory that the two nodes are declared to have, and what only the second one can double."""
SITE = {"PYTHONPATH": f"{MOUNT}/site"}
console = Console(width=max(100, Console().width))


@dataclass(slots=True, eq=False)
class Series:
    """One row of the table: seconds from the kill, or from the call, to the running process."""

    name: str
    floor: Series | None = None
    goal: float | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median in seconds."""
        return statistics.median(self.seconds)

    @property
    def p90(self) -> float:
        """The 90th percentile in seconds; the largest of fewer than ten."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(0.9 * len(self.seconds)))]

    def cells(self) -> list[str]:
        """The row as text."""
        over = None if self.floor is None else self.median - self.floor.median
        verdict = ""
        if over is not None and self.goal is not None:
            verdict = "reached" if over <= self.goal else f"missed by {over - self.goal:.2f} s"
        return [
            self.name,
            str(len(self.seconds)),
            f"{self.median:.2f}",
            f"{self.p90:.2f}",
            "" if over is None else f"{over:+.2f}",
            "" if self.goal is None else f"{self.goal:.0f}",
            verdict,
        ]


class Measurement:
    """The series of one session."""

    def __init__(self, bed: Bed, runs: int) -> None:
        self._bed = bed
        self._runs = runs
        self._client = bed.engine.client()
        self._by_hand = 0
        self.series: list[Series] = []

    def floor(self, name: str) -> Series:
        """A series of `docker run` by hand."""
        return self._series(Series(name))

    def _series(self, series: Series) -> Series:
        self.series.append(series)
        return series

    def start_by_hand(
        self,
        series: Series,
        image: str,
        command: str,
        client: docker.DockerClient | None = None,
        **more: object,
    ) -> None:
        """One more figure of the floor."""
        self._by_hand += 1
        run = f"by-hand-{self._by_hand}"
        called = self._bed.run_by_hand(client or self._client, run, image, command, **more)
        series.seconds.append(self._bed.bench.starts(run)[0] - called)

    # ---- the rows ------------------------------------------------------------------------------

    def same_node(self) -> None:
        """A plain job and a flow that the kernel kills, tried again on their node."""
        floor = self.floor("docker run by hand, plain image")
        retried = self._series(Series("same node, plain job", floor, SAME_NODE_GOAL))
        plain = self._bed.deploy(SMALL, "same-plain", PLAIN_IMAGE, command=job("oom", 1))
        for _ in range(self._runs):
            self.start_by_hand(floor, PLAIN_IMAGE, job("ok"))
            run = self._bed.api.submit(plain, job_variables={"memory_mb": 64})
            self._note(retried, run)

    def same_node_flow(self) -> None:
        """A flow in an image with Prefect: until Python starts, and until the flow's first line."""
        floor = self.floor("docker run by hand, Prefect image")
        process = self._series(Series("same node, flow: process", floor, SAME_NODE_GOAL))
        body_floor = self.floor("docker run of Prefect's engine by hand: flow's first line")
        body = self._series(Series("same node, flow: its first line", body_floor))
        flow = self._bed.deploy(SMALL, "same-flow", BASE_IMAGE, env=SITE, memory_mb=256)
        by_hand = self._bed.deploy(SMALL, "by-hand", BASE_IMAGE)
        for _ in range(self._runs):
            self.start_by_hand(floor, BASE_IMAGE, "python -c pass", environment=SITE)
            self._start_engine_by_hand(body_floor, by_hand)
            run = self._bed.api.submit(flow, {"need_mb": 400})
            killed_at = self._note(process, run)
            starts = self._bed.bench.wait_starts(run, 2, of_flow=True)
            body.seconds.append(starts[1] - killed_at)
            self._bed.api.wait_end(run)

    def _start_engine_by_hand(self, series: Series, deployment: str) -> None:
        # In `Pending` no worker takes it.
        created = self._bed.api.post(
            f"/deployments/{deployment}/create_flow_run",
            {"parameters": {"need_mb": 1}, "state": {"type": "PENDING"}},
        )
        run = str(created["id"])
        environment = {
            **SITE,
            "PREFECT_API_URL": self._bed.server.api_url,
            "PREFECT__FLOW_RUN_ID": run,
        }
        called = self._bed.run_by_hand(
            self._client,
            run,
            BASE_IMAGE,
            f"python -m prefect.engine {run}",
            environment=environment,
        )
        starts = self._bed.bench.wait_starts(run, 1, of_flow=True)
        series.seconds.append(starts[0] - called)

    def other_pool(self) -> None:
        """A GPU out of memory, and memory that fits the other node only."""
        floor = self.floor("docker run by hand, plain image, second engine")
        moved = {
            self._series(Series("other pool, GPU out of memory", floor, OTHER_POOL_GOAL)): (
                self._bed.deploy(
                    SMALL, "gpu", PLAIN_IMAGE, command=job("gpu"), gpu_count=1, memory_mb=64
                )
            ),
            self._series(Series("other pool, memory", floor, OTHER_POOL_GOAL)): self._bed.deploy(
                SMALL, "memory", PLAIN_IMAGE, command=job("oom", 1), memory_mb=TOO_MUCH_TWICE_MB
            ),
        }
        client = self._bed.second_engine.client()
        for _ in range(self._runs):
            self.start_by_hand(floor, PLAIN_IMAGE, job("ok"), client=client)
            for series, deployment in moved.items():
                self._note(series, self._bed.api.submit(deployment))

    def stock(self) -> None:
        """Stock Prefect: the run is set back to Scheduled as soon as its worker says Crashed."""
        stock = self._series(Series("stock docker worker, set back to Scheduled at once"))
        deployment = self._bed.deploy(
            STOCK, "stock", PLAIN_IMAGE, command=job("oom", 1), mem_limit="64m", memswap_limit="64m"
        )
        for _ in range(self._runs):
            run = self._bed.api.submit(deployment)
            death = self._bed.deaths.wait(run)
            # Before that its worker would still overwrite the state with Crashed.
            with contextlib.suppress(TimeoutError):
                wait_until(
                    functools.partial(self._has_crashed, run),
                    what="Crashed",
                    timeout_seconds=3,
                )
            self._bed.api.post(
                f"/flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED"}, "force": True}
            )
            starts = self._bed.bench.wait_starts(run, 2)
            stock.seconds.append(starts[1] - death.finished_at)

    def _has_crashed(self, run: str) -> bool:
        return bool(self._bed.api.run(run)["state"]["type"] == "CRASHED")

    def _note(self, series: Series, run: str) -> float:
        """Add the time from the run's first end to its second start; gives the first end."""
        death = self._bed.deaths.wait(run)
        starts = self._bed.bench.wait_starts(run, 2)
        series.seconds.append(starts[1] - death.finished_at)
        self._bed.api.wait_end(run)
        return death.finished_at


def show(series: Sequence[Series]) -> None:
    """Print the table of times."""
    table = Table(title="From the kill (by hand: from the call) to the running process, seconds")
    for name in ("", "n", "median", "p90", "over the floor", "goal", ""):
        table.add_column(name, justify="left" if not name else "right")
    for row in series:
        if row.seconds:
            table.add_row(*row.cells())
    console.print(table)


@contextlib.contextmanager
def nodes(bed: Bed, parts: Sequence[str]) -> Iterator[None]:
    """The workers that the parts need."""
    with contextlib.ExitStack() as stack:
        if {"same", "flow", "other", "many"} & set(parts):
            stack.enter_context(bed.worker(SMALL, memory_mb=SMALL_MB, gpus=str(SMALL_GPU_MB)))
        if "other" in parts:
            stack.enter_context(
                bed.worker(
                    LARGE,
                    engine=bed.second_engine,
                    memory_mb=LARGE_MB,
                    gpus=str(LARGE_GPU_MB),
                )
            )
        if "stock" in parts:
            stack.enter_context(bed.worker(STOCK, worker_type="docker"))
        yield


def measure(bed: Bed, options: argparse.Namespace, parts: Sequence[str]) -> None:
    """Take and print all figures."""
    measurement = Measurement(bed, options.runs)
    rows: dict[str, Callable[[], None]] = {
        "same": measurement.same_node,
        "flow": measurement.same_node_flow,
        "other": measurement.other_pool,
        "stock": measurement.stock,
    }
    with nodes(bed, parts):
        for name, take in rows.items():
            if name in parts:
                console.print(f"[dim]taking: {name}")
                take()
        if measurement.series:
            show(measurement.series)
        if "many" in parts:
            recovery_many.show(recovery_many.measure(bed, options.many), console)
    if "calls" in parts:
        with counted(bed) as (api, engine):
            cycles = recovery_calls.measure(bed, api, engine, runs=max(2, options.runs // 2))
            recovery_calls.show(cycles, console, timeline=options.timeline)


def why_not() -> str | None:
    """Why the figures cannot be taken here, or `None`."""
    return why_no_engine() or why_not_buildable(PLAIN_IMAGE) or why_not_buildable(BASE_IMAGE)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=10, help="runs per row (10)")
    parser.add_argument("--many", type=int, default=200, help="runs that fail at once (200)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts of {','.join(PARTS)}")
    parser.add_argument("--keep", type=Path, help="a new folder for all logs, kept afterwards")
    parser.add_argument("--timeline", action="store_true", help="each request of one retry")
    options = parser.parse_args()
    parts = [part for part in options.only.split(",") if part]
    unknown = set(parts) - set(PARTS)
    if unknown or options.runs < 1 or options.many < 1:
        parser.error(f"--only takes some of {','.join(PARTS)}; --runs and --many are at least 1")
    lacking = why_not()
    if lacking is not None:
        sys.exit(f"The benchmark cannot run here: {lacking}. It needs what the Docker tests need.")
    with (
        tempfile.TemporaryDirectory(prefix="recovery-") as folder,
        bed(options.keep or Path(folder), second_engine="other" in parts) as made,
    ):
        measure(made, options, parts)


if __name__ == "__main__":
    main()
