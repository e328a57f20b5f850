"""`make demo` on a real server with real workers, and what it does when something is wrong."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from demo.cases import NODES, Case, cases, differences
from demo.report import Shown, print_report
from demo.services import processes_of
from prefect_heteroflow.cli.watching import View
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
CASES = cases(docker=False)


def demo(home: Path, *options: str) -> subprocess.Popen[str]:
    """The command of `make demo`, in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The user's own server is none of its business.
        env={**os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PYTHONUNBUFFERED": "1"},
    )


def ended(process: subprocess.Popen[str], timeout_seconds: float) -> tuple[int, str]:
    """Exit status and output, once it has ended."""
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    finally:
        process.kill()
    return process.returncode, output


@dataclass(frozen=True)
class Finished:
    """A demo that ran to its end."""

    status: int
    output: str
    home: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One whole demo, which all tests of its output share."""
    home = tmp_path_factory.mktemp("demo")
    return Finished(*ended(demo(home), timeout_seconds=540), home)


def test_demo_ends_with_0(finished: Finished) -> None:
    """Every case ended as it should."""
    assert finished.status == 0, finished.output
    assert f"{len(CASES)} of {len(CASES)} runs ended as they should" in finished.output


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_demo_prints_the_attempts_of_the_case_and_a_link(finished: Finished, case: Case) -> None:
    """Node, memory and cause of each attempt, the decision, and where to look."""
    part = finished.output.partition(case.title)[2]
    table, link, after = part.partition("/runs/flow-run/")
    assert link
    assert table.splitlines()[-1].startswith(f"{case.state}, as intended  http://")
    assert after.splitlines()[0].endswith("(stays up with KEEP=1)")
    for failure, node, memory_mb in case.attempts:
        words = [str(word) for word in (node, memory_mb, failure) if word is not None]
        assert re.search(r"\b.*?\b".join(map(re.escape, words)), table), table


def test_demo_leaves_nothing_running(finished: Finished) -> None:
    """Server, workers and what they started are gone."""
    assert processes_of(finished.home.resolve()) == []


def test_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C while the server starts."""
    process = demo(tmp_path)
    wait_until(lambda: processes_of(tmp_path), what="the server", timeout_seconds=60)
    process.send_signal(signal.SIGINT)
    status, output = ended(process, timeout_seconds=60)
    assert (status, processes_of(tmp_path)) == (130, []), output


def test_killed_demo_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """Nobody can react to SIGKILL; the next demo in the same folder makes up for it."""
    first = demo(tmp_path)
    wait_until(lambda: processes_of(tmp_path), what="the server", timeout_seconds=60)
    first.kill()
    first.communicate()
    left = {process.pid for process in processes_of(tmp_path)}
    second = demo(tmp_path)
    wait_until(
        lambda: not left & {process.pid for process in processes_of(tmp_path)},
        what="end of what was left",
        timeout_seconds=60,
    )
    second.send_signal(signal.SIGTERM)
    assert ended(second, timeout_seconds=60)[0] == 130


def test_second_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """They would share a database."""
    first = demo(tmp_path)
    wait_until(lambda: processes_of(tmp_path), what="the server", timeout_seconds=60)
    status, output = ended(demo(tmp_path), timeout_seconds=60)
    first.send_signal(signal.SIGINT)
    ended(first, timeout_seconds=60)
    assert status == 1
    assert f"Another demo (process {first.pid})" in output


def test_taken_port_is_refused_with_its_number(tmp_path: Path) -> None:
    """Before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output = ended(demo(tmp_path, "--port", str(port)), timeout_seconds=60)
    assert (status, f"Port {port} cannot be used" in output) == (1, True)


def test_missing_docker_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do instead."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    status, output = ended(demo(tmp_path, "--docker"), timeout_seconds=60)
    assert status == 1
    assert "No Docker engine answers" in output
    assert "Traceback" not in output


def test_too_old_python_is_named(tmp_path: Path) -> None:
    """With the command that names another one."""
    script = (
        "import runpy, sys; sys.version_info = (3, 9, 18, 'final', 0);"
        f" runpy.run_path({str(ROOT / 'demo' / 'prepare.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "is Python 3.9" in done.stderr) == (1, True)
    assert "make demo PYTHON=" in done.stderr


def report(case: Case, *, state: str | None = None, kept: bool = False) -> tuple[int, str]:
    """How many cases failed, and what is printed, for a run of one attempt."""
    failure, node, memory_mb = case.attempts[0]
    status = AttemptStatus.COMPLETED if failure is None else AttemptStatus.FAILED
    row = Attempt(
        attempt=1, flow_run_id="r", status=status, failure=failure, node=node, memory_mb=memory_mb
    )
    view = View(name="run", state=state or case.state, final=True, attempts=(row,))
    shown = Shown(case=case, view=view, url="http://127.0.0.1:1/runs/flow-run/r")
    console = Console(file=io.StringIO(), width=132)
    failures = print_report(console, [shown], kept=kept, seconds=1)
    assert isinstance(console.file, io.StringIO)
    return failures, console.file.getvalue()


REFUSED = next(case for case in CASES if case.state == "PermanentFailure")


def test_failure_that_was_intended_is_introduced_as_such() -> None:
    """Nobody takes the failed attempts of a demo for a failed demo."""
    failures, output = report(REFUSED)
    assert failures == 0
    assert "\nPermanentFailure, as intended  http://" in output
    assert output.index("the case is made so") < output.index(REFUSED.title)


def test_failure_that_was_not_intended_is_told_apart() -> None:
    """The near miss: it ends as another state than the case says."""
    failures, output = report(REFUSED, state="Crashed")
    assert (failures, "as intended" in output) == (1, False)
    assert "Not as it should be: it ended as Crashed, expected PermanentFailure" in output


@pytest.mark.parametrize("kept", [True, False])
def test_links_say_whether_they_outlive_the_demo(kept: bool) -> None:
    """With KEEP=1 they do, and there is nothing to say."""
    output = report(REFUSED, kept=kept)[1]
    assert ("flow-run/r  (stays up with KEEP=1)" in output) is not kept
    assert ("`make demo KEEP=1` keeps it up" in output) is not kept


@dataclass(frozen=True)
class FakeRow:
    """A row of the history, as far as it is judged."""

    failure: str | None
    node: str | None
    memory_mb: int | None


def rows_of(case: Case) -> Sequence[FakeRow]:
    return [FakeRow(*attempt) for attempt in case.attempts]


def test_case_that_ended_as_it_should_has_no_differences() -> None:
    """State and attempts are compared, nothing else."""
    assert differences(CASES[0], CASES[0].state, rows_of(CASES[0])) == []


def test_case_with_another_end_is_told() -> None:
    """With what was seen and what was expected."""
    (said,) = differences(CASES[0], "Crashed", rows_of(CASES[0]))
    assert said == "it ended as Crashed, expected Completed"


def test_case_with_other_attempts_is_told() -> None:
    """With what was seen and what was expected."""
    (said,) = differences(CASES[0], CASES[0].state, rows_of(CASES[0])[:1])
    assert said.startswith("its attempts were CpuOutOfMemory on demo-8gb with 256 MB, expected")


def test_nodes_are_those_that_the_readme_promises() -> None:
    """8, 24 and 80 GB."""
    assert [node.gpu_mb // 1024 for node in NODES] == [8, 24, 80]
