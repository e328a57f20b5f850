"""Eight tasks, one of which kills its process, under each task runner.

    pip install -e '.[benchmark]'
    python -m benchmarks.killed_task --runners hetero,process,dask,ray

Each task has `retries=2` and takes half a second; number 3 sends SIGKILL to its own process, the
first time that it runs. Each runner has two workers, a process of its own and so many seconds; what
has not ended by then is printed as it stands.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from prefect import flow, task

from benchmarks.task_runner import make_runners
from tests.support.prefect_server import PrefectServer

TASKS, DYING = 8, 3
ROOT = Path(__file__).parents[1]
RESULT = "states: "


@task(retries=2, retry_delay_seconds=0)
def square(number: int, mark: str) -> int:
    time.sleep(0.5)  # the work: all eight are under way when the third one dies
    if number == DYING and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def run_one(name: str, mark: str, seconds: float) -> None:
    """Run the flow under one runner and print how each task stands at the end."""
    runner = make_runners([name], workers=2)[name]()

    @flow(task_runner=runner)
    def eight() -> None:
        futures = [square.submit(number, mark) for number in range(TASKS)]
        until = time.monotonic() + seconds
        print(RESULT + json.dumps([_state(future, until) for future in futures]), flush=True)
        # Some runners wait for ever for a task that is gone.
        os.kill(os.getpid(), signal.SIGKILL)

    eight()


def _state(future: Any, until: float) -> str:
    try:
        future.wait(timeout=max(0.1, until - time.monotonic()))
        return str(future.state.name)
    except Exception as error:  # each peer has errors of its own for a dead process
        return type(error).__name__


def compare(names: list[str], seconds: float) -> None:
    """Print one row of a table for each runner."""
    print("| runner | how its eight tasks stand | seconds |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, PrefectServer(Path(folder)) as server:
        for name in names:
            mark = str(Path(folder, f"mark-{name}"))
            log = Path(folder, f"{name}.log")
            command = [sys.executable, "-m", "benchmarks.killed_task", "--one", name]
            started = time.monotonic()
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*command, "--mark", mark, "--seconds", str(seconds)],
                    env=server.env(PREFECT_LOGGING_LEVEL="ERROR"),
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    process.wait(seconds + 120)
                except subprocess.TimeoutExpired:
                    print(f"| {name} | still running |", end="")
                finally:
                    _end_group(process.pid)
                    process.wait()
            lines = log.read_text().splitlines()
            found = [line for line in lines if RESULT in line]
            if not found:
                print(f"| {name} | no answer: {lines[-1] if lines else ''} | |", flush=True)
                continue
            states = Counter(json.loads(found[0].split(RESULT, 1)[1]))
            text = ", ".join(f"{count} {state}" for state, count in states.most_common())
            print(f"| {name} | {text} | {time.monotonic() - started:.0f} |", flush=True)


def _end_group(pid: int) -> None:
    """Dask and Ray leave processes of their own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runners", default="hetero,process,dask,ray")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--mark", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.mark, options.seconds)
    else:
        compare(options.runners.split(","), options.seconds)


if __name__ == "__main__":
    main()
