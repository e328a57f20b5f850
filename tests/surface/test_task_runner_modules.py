"""Where the code of a task comes from, and how its child gets it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.flows import load_flow_from_entrypoint

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here

FLOW_FILE = """
from prefect import flow, task
from prefect_heteroflow import HeteroTaskRunner


class Box:
    def __init__(self, content):
        self.content = content


class BoxError(Exception):
    pass


def doubled(box):
    return Box(2 * box.content)


@task(retries=0)
def work(box, change):
    if box.content < 0:
        raise BoxError("less than nothing")
    return change(box)


@flow(task_runner=HeteroTaskRunner(max_retries=0))
def boxes():
    box = work.submit(Box(2), doubled).result()
    try:
        work.submit(Box(-1), doubled).result()
    except BoxError as error:
        return type(box) is Box, box.content, str(error)
"""


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, whose path is as before afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    with flows_run_here(server):
        yield


def test_flow_file_that_is_loaded_twice_runs_its_tasks_with_all_that_it_defines(
    tmp_path: Path,
) -> None:
    """Prefect gives it a name then under which no other process finds it."""
    file = tmp_path / "boxes_loaded_twice.py"
    file.write_text(FLOW_FILE)
    load_flow_from_entrypoint(f"{file}:boxes")
    boxes: Any = load_flow_from_entrypoint(f"{file}:boxes")
    assert boxes.fn.__module__.startswith("__prefect_loader_")
    assert boxes() == (True, 4, "less than nothing")


def test_module_from_a_folder_that_the_flow_adds_to_its_path_is_found_by_its_children(
    tmp_path: Path,
) -> None:
    (tmp_path / "added_late.py").write_text(
        "from prefect import task\n@task(retries=0)\ndef late():\n    return __name__\n"
    )

    def body() -> tuple[int, str]:
        warm = runner_tasks.square.submit(3).result()
        sys.path.insert(0, str(tmp_path))
        return warm, import_module("added_late").late.submit().result()

    runner = HeteroTaskRunner(max_retries=0, max_workers=1)
    assert flow(task_runner=runner)(body)() == (9, "added_late")


def test_working_folder_that_is_gone_fails_neither_its_task_nor_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with threads: only a body that asks for its folder notices."""

    @task(retries=0)
    def folder() -> str | None:
        try:
            return os.getcwd()
        except FileNotFoundError:
            return None

    def body() -> list[Any]:
        monkeypatch.chdir(tmp_path)
        seen = [runner_tasks.square.submit(3).result()]
        gone = tmp_path / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        seen.append(folder.submit().result())
        os.chdir(tmp_path)
        return [*seen, folder.submit().result()]

    runner = HeteroTaskRunner(max_retries=0, max_workers=1)
    assert flow(task_runner=runner)(body)() == [9, None, str(tmp_path)]


def test_body_that_could_not_be_loaded_once_is_loaded_by_the_next_call(tmp_path: Path) -> None:
    """What the flow takes for sent is in the child, also where its import failed."""
    seen = tmp_path / "seen"
    (tmp_path / "fails_once.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from prefect import task\n"
        f"if os.getpid() != {os.getpid()} and not Path({str(seen)!r}).exists():\n"
        f"    Path({str(seen)!r}).touch()\n"
        "    raise ImportError('not yet')\n"
        "@task(retries=0)\ndef give():\n    return 4\n"
    )

    def body() -> tuple[str, int]:
        sys.path.insert(0, str(tmp_path))
        give = import_module("fails_once").give
        error = give.submit().result(raise_on_failure=False)
        return str(error), give.submit().result()

    text, four = flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))(body)()
    assert "not yet" in text
    assert four == 4


def test_body_can_pickle_what_the_script_of_its_flow_defines(server: PrefectServer) -> None:
    """Classes and functions, of its own globals and those that came as arguments."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "tests/support/script_that_pickles.py")],
        env=server.env(PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "[3, 4, [9, 4]]", done.stderr


def test_body_that_takes_a_large_variable_with_it_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twice submitted; the one of a module takes nothing with it."""
    table = bytes(11_000_000)

    @task(retries=0)
    def reads(index: int) -> int:
        return table[index]

    def body() -> list[int]:
        values = [reads.submit(index).result() for index in range(2)]
        return [*values, runner_tasks.square.submit(3).result()]

    runner = HeteroTaskRunner(max_retries=0, max_workers=1)
    assert flow(task_runner=runner)(body)() == [0, 0, 9]
    said = [text for text in caplog.messages if "pickled anew for each call" in text]
    assert len(said) == 1
    assert "'table' (11 MB)" in said[0]
