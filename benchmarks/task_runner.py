"""What a task costs under each task runner, on one server in one session.

    pip install -e '.[benchmark]'
    python -m benchmarks.task_runner --runners thread,process,hetero,dask,ray

Trivial tasks, all submitted at once and one by one; the first ones warm the runner up
and are not counted. Each runner has its own defaults, those with a cluster two workers on two
cores. Before each count the server has digested what it was told before: it takes seconds, and
the runner that came next would pay for them. Runners that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from prefect import flow, task
from prefect.task_runners import TaskRunner

from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

MIB = 1024 * 1024
WARM_UP = 16
IDLE_SHARE = 0.05
"""Of one core, for a second: then the server has digested what it was told."""
MOST_IDLE_SECONDS = 180


@task
def trivial(number: int) -> int:
    return number


@task
def measure(data: bytes) -> int:
    return len(data)


def make_runners(
    names: list[str], workers: int | None = None
) -> dict[str, Callable[[], TaskRunner[Any]]]:
    """Runner by name; one that cannot be imported is named on standard output."""
    found: dict[str, Callable[[], TaskRunner[Any]]] = {}
    for name in names:
        try:
            found[name] = _maker(name, workers)
        except ImportError as error:
            print(f"{name}: left out, {error}")
    return found


def _maker(name: str, workers: int | None) -> Callable[[], TaskRunner[Any]]:
    cores = workers or os.cpu_count() or 1
    if name == "thread":
        from prefect.task_runners import ThreadPoolTaskRunner

        return lambda: ThreadPoolTaskRunner(max_workers=workers)
    if name == "process":
        from prefect.task_runners import ProcessPoolTaskRunner

        return lambda: ProcessPoolTaskRunner(max_workers=workers)
    if name == "hetero":
        from prefect_heteroflow import HeteroTaskRunner

        return lambda: HeteroTaskRunner(max_workers=workers)
    if name == "dask":
        from prefect_dask import DaskTaskRunner

        return lambda: DaskTaskRunner(
            cluster_kwargs={"n_workers": cores, "dashboard_address": None}
        )
    if name == "ray":
        from prefect_ray import RayTaskRunner

        return lambda: RayTaskRunner(init_kwargs={"num_cpus": cores})
    raise SystemExit(f"{name!r} is no runner; use thread, process, hetero, dask or ray.")


def throughput(runner: TaskRunner[Any], count: int) -> float:
    """Milliseconds per trivial task, all submitted at once."""
    spent: list[float] = []

    @flow(task_runner=runner)
    def many() -> None:
        [future.wait() for future in [trivial.submit(n) for n in range(WARM_UP)]]
        started = time.perf_counter()
        [future.wait() for future in [trivial.submit(n) for n in range(count)]]
        spent.append(time.perf_counter() - started)

    many()
    return spent[0] / count * 1000


def latency(runner: TaskRunner[Any], count: int, data: bytes | None = None) -> float:
    """Median milliseconds from the submit of one task to its result, one after the other."""
    spent: list[float] = []

    @flow(task_runner=runner)
    def one_by_one() -> None:
        trivial.submit(0).wait()
        for number in range(count):
            started = time.perf_counter()
            future = trivial.submit(number) if data is None else measure.submit(data)
            future.result()
            spent.append(time.perf_counter() - started)

    one_by_one()
    return statistics.median(spent) * 1000


def growth(runner: TaskRunner[Any], count: int) -> dict[str, float]:
    """Memory and descriptors of the flow's process and its children, early and at the end."""
    seen: list[tuple[float, int]] = []

    def look() -> None:
        gc.collect()
        own = psutil.Process()
        tree = [own, *own.children(recursive=True)]
        seen.append((sum(p.memory_info().rss for p in tree) / MIB, own.num_fds()))

    @flow(task_runner=runner)
    def very_many() -> None:
        for start in range(0, count, 500):
            [f.wait() for f in [trivial.submit(n) for n in range(start, start + 500)]]
            if start == 1000:
                look()
        look()

    very_many()
    (first_mb, first_fds), (last_mb, last_fds) = seen[0], seen[-1]
    return {
        "tasks": count,
        "memory_mb_after_1500": round(first_mb),
        "memory_mb": round(last_mb),
        "descriptors_after_1500": first_fds,
        "descriptors": last_fds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runners", default="thread,process,hetero,dask,ray")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--large", action="store_true", help="also 1 MB and 100 MB arguments")
    parser.add_argument("--growth", type=int, default=0, metavar="TASKS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, PrefectServer(Path(folder)) as server:
        _log_less()
        with flows_run_here(server):
            results = measured(server, make_runners(options.runners.split(",")), options)
    _compare(results)


def measured(
    server: PrefectServer,
    makers: dict[str, Callable[[], TaskRunner[Any]]],
    options: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    """All figures by runner. The rounds take turns, so that a slow minute hits all alike."""
    results: dict[str, dict[str, Any]] = {name: {} for name in makers}

    def count(key: str, rounds: int, of: Callable[[TaskRunner[Any]], float]) -> None:
        counts: dict[str, list[float]] = {name: [] for name in makers}
        for _ in range(rounds):
            for name, make in makers.items():
                counts[name].append(round(_when_idle(server, lambda make=make: of(make())), 2))
        for name, found in counts.items():
            print(name, key, found, flush=True)
            results[name][key] = min(found)

    count("ms_per_task", options.rounds, lambda runner: throughput(runner, options.tasks))
    count("latency_ms", options.rounds, lambda runner: latency(runner, 30))
    if options.large:
        small, large = os.urandom(MIB), os.urandom(100 * MIB)
        count("latency_1mb_ms", 1, lambda runner: latency(runner, 10, small))
        count("latency_100mb_ms", 1, lambda runner: latency(runner, 3, large))
    if options.growth:
        for name, make in makers.items():
            print(name, json.dumps(growth(make(), options.growth)), flush=True)
    return results


def _when_idle(server: PrefectServer, count: Callable[[], float]) -> float:
    process = psutil.Process(server.pid)
    until = time.monotonic() + MOST_IDLE_SECONDS
    while process.cpu_percent(interval=1.0) > 100 * IDLE_SHARE and time.monotonic() < until:
        pass
    return count()


def _log_less() -> None:
    """Here and in the processes of the runners: lines of tasks are not what is measured."""
    os.environ["PREFECT_LOGGING_LEVEL"] = "WARNING"
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _compare(results: dict[str, dict[str, Any]]) -> None:
    ours = results.get("hetero")
    if ours is None:
        return
    for name, found in results.items():
        if name != "hetero":
            ratio = found["ms_per_task"] / ours["ms_per_task"]
            print(f"hetero takes {1 / ratio:.2f} of {name} ({ratio:.1f} x as fast)")


if __name__ == "__main__":
    main()
