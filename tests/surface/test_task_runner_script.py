"""The script of a flow and its interpreter, as the bodies of its tasks see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.prefect_server import PrefectServer

HEAD = """
import multiprocessing, os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from prefect import flow, task
from prefect_heteroflow import HeteroTaskRunner, current_attempt
"""
SPAWNS = """
with Path(sys.argv[1]).open("a") as file:
    file.write(f"{__name__}\\n")

def squared(number):
    return number * number

@task(retries=0)
def in_processes():
    context = multiprocessing.get_context(sys.argv[2])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return list(pool.map(squared, range(3)))

@flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))
def spawns():
    return in_processes.submit().result()

if __name__ == "__main__":
    print(spawns())
"""
SHOWS_ARGUMENTS = """
@task(retries=0)
def seen():
    return sys.argv[1:], sys.flags.optimize, sys.warnoptions, dict(sys._xoptions)

@flow(task_runner=HeteroTaskRunner(max_retries=0))
def shows():
    first = seen.submit().result()
    sys.argv = [sys.argv[0], "changed"]
    return first, seen.submit().result()

if __name__ == "__main__":
    expected = seen.fn()
    first, second = shows()
    print(first == expected, second[0])
"""
PRINTS = """
@task(retries=0)
def say():
    print("said")
    print("shouted", file=sys.stderr)

@task(retries=1, retry_delay_seconds=0)
def dies_once():
    if current_attempt().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@flow(task_runner=HeteroTaskRunner(max_workers=1))
def prints():
    say.submit().wait()
    dies_once.submit().wait()

if __name__ == "__main__":
    prints()
"""


def run_script(
    server: PrefectServer, folder: Path, code: str, *command: str
) -> subprocess.CompletedProcess[str]:
    """What `script.py` prints, through pipes, called with these words after `python`."""
    (folder / "script.py").write_text(HEAD + code)
    environment = server.env(PYTHONPATH=str(Path(__file__).parents[2]))
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
@pytest.mark.parametrize("script", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_process_that_a_body_spawns_imports_the_script_of_its_flow_once(
    server: PrefectServer, tmp_path: Path, how: str, script: list[str]
) -> None:
    """As with threads: under the name that keeps its main part from running."""
    imports = tmp_path / "imports"
    done = run_script(server, tmp_path, SPAWNS, *script, str(imports), how)
    assert done.stdout.strip() == "[0, 1, 4]", done.stderr
    assert imports.read_text().split() == ["__main__", "__mp_main__"]


def test_body_sees_the_arguments_and_the_flags_of_its_flow(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Also arguments that the flow changes."""
    flags = ["-O", "-Wignore::ResourceWarning", "-Xfaulthandler"]
    done = run_script(server, tmp_path, SHOWS_ARGUMENTS, *flags, "script.py", "one", "--two")
    assert done.stdout.strip() == "True ['changed']", done.stderr


def test_output_of_a_body_is_there_though_its_child_is_killed_later(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Into a pipe it is buffered."""
    done = run_script(server, tmp_path, PRINTS, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["said"]
    assert "shouted\n" in done.stderr
