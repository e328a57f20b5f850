"""Eight tasks, one of which kills its process, under each task runner.

    pip install -e '.[benchmark]'
    python -m benchmarks.killed_task --runners hetero,process,dask,ray

Each task has `retries=2` (`--retries 0`: none) and takes half a second; number 3 sends SIGKILL
to its own process in its first runs (`--kills`, one). Each runner has two workers, a process of
its own and so many seconds; what has not ended by then is printed as it stands. How often the
body of number 3 was started is counted beside Prefect's own run count: a runner that starts it
again by itself asks nobody's `retries` and leaves no word of it.
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
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from benchmarks.task_runner import make_runners
from tests.support.prefect_server import PrefectServer

TASKS, DYING = 8, 3
ROOT = Path(__file__).parents[1]
RESULT = "states: "


@task
def square(number: int, mark: str, kills: int) -> int:
    time.sleep(0.5)  # the work: all eight are under way when the third one dies
    if number == DYING:
        with Path(mark).open("a") as starts:
            starts.write("x")
        if len(Path(mark).read_text()) <= kills:
            os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def run_one(name: str, options: argparse.Namespace) -> None:
    """Run the flow under one runner and print how each task stands at the end."""
    runner = make_runners([name], workers=2)[name]()
    body = square.with_options(retries=options.retries, retry_delay_seconds=0)

    @flow(task_runner=runner)
    def eight() -> None:
        futures = [body.submit(number, options.mark, options.kills) for number in range(TASKS)]
        until = time.monotonic() + options.seconds
        states = [_state(future, until) for future in futures]
        found = {
            "states": states,
            "dying": states[DYING],
            "starts": len(Path(options.mark).read_text()),
            "run_count": _run_count(futures[DYING]),
        }
        print(RESULT + json.dumps(found), flush=True)
        # Some runners wait for ever for a task that is gone.
        os.kill(os.getpid(), signal.SIGKILL)

    eight()


def _state(future: Any, until: float) -> str:
    try:
        future.wait(timeout=max(0.1, until - time.monotonic()))
        return str(future.state.name)
    except Exception as error:  # each peer has errors of its own for a dead process
        return type(error).__name__


def _run_count(future: Any) -> int | str:
    """As the API has it, which learns it a moment after the end."""
    with get_client(sync_client=True) as client:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                run = client.read_task_run(future.task_run_id)
            except ObjectNotFound:
                continue
            if run.state is not None and run.state.is_final():
                return run.run_count
            time.sleep(0.2)  # the API says nothing by itself: asked again
    return "not told"


def compare(names: list[str], options: argparse.Namespace) -> None:
    """Print one row of a table for each runner."""
    print(f"retries={options.retries}, killed in its first {options.kills} run(s)")
    print("| runner | how its eight tasks stand | the killed one | starts | run count | seconds |")
    print("|---|---|---|---|---|---|")
    seconds = options.seconds
    with tempfile.TemporaryDirectory() as folder, PrefectServer(Path(folder)) as server:
        for name in names:
            mark = str(Path(folder, f"mark-{name}"))
            log = Path(folder, f"{name}.log")
            command = [sys.executable, "-m", "benchmarks.killed_task", "--one", name]
            command += ["--retries", str(options.retries), "--kills", str(options.kills)]
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
            answer = json.loads(found[0].split(RESULT, 1)[1])
            states = Counter(answer["states"])
            text = ", ".join(f"{count} {state}" for state, count in states.most_common())
            rest = " | ".join(str(answer[key]) for key in ("dying", "starts", "run_count"))
            spent = time.monotonic() - started
            print(f"| {name} | {text} | {rest} | {spent:.0f} |", flush=True)


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
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--kills", type=int, default=1, help="runs of number 3 that die")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--mark", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options)
    else:
        compare(options.runners.split(","), options)


if __name__ == "__main__":
    main()
