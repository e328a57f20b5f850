"""The commands and snippets of the documents, run or looked up where they are defined."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from prefect_heteroflow.cli import app
from tests.core.test_docs import PAGES, README, ROOT, blocks
from tests.support.prefect_server import PrefectServer
from tests.support.workers import PREFECT, Api, Worker

_SHELL = re.compile(r"^(?: {4})+((?:heteroflow|prefect|make) (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
_INLINE = re.compile(r"`((?:heteroflow|prefect) [a-z][^`]*|make [a-z]+[^`]*)`")
_PREFECT_OWN = ("prefect config set", "prefect flow-run execute")  # named, not recommended
EXAMPLE = next(code for code in blocks(README, "python") if "from_source" in code)
SNIPPETS = blocks(README, "python")


def commands(first_word: str) -> list[str]:
    """Every command of the documents that starts with this word."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for line in [*_SHELL.findall(text), *_INLINE.findall(text)]:
            command = " ".join(line.replace("\\\n", " ").split("  #")[0].split())
            if command.startswith(f"{first_word} "):
                found[command] = None
    return list(found)


def cli_commands() -> dict[tuple[str, ...], click.Command]:
    """Every command and group of commands of `heteroflow`, by its words."""
    found: dict[tuple[str, ...], click.Command] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if words:
            found[words] = command
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*words, name))

    walk(typer.main.get_command(app), ())
    return found


CLI = cli_commands()


def words_of(command: str) -> tuple[str, ...]:
    """The words of the longest command of `heteroflow` that this line starts with."""
    words = tuple(shlex.split(command)[1:])
    return next((words[:end] for end in range(len(words), 0, -1) if words[:end] in CLI), ())


@pytest.mark.parametrize("command", commands("heteroflow"))
def test_heteroflow_command_of_the_documents_exists_with_its_options(command: str) -> None:
    """Nobody types a command of the documents in vain."""
    found = CLI[words_of(command)]
    known = {option for parameter in found.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in shlex.split(command) if word.startswith("--")}
    assert used <= known


@pytest.mark.parametrize("words", CLI, ids=" ".join)
def test_every_command_is_in_the_readme(words: tuple[str, ...]) -> None:
    """A command that nobody finds is not there."""
    assert f"heteroflow {' '.join(words)}" in README


def test_every_option_of_submit_is_in_the_readme() -> None:
    """It is the command with the most of them."""
    options = [
        option for each in CLI[("submit",)].params for option in each.opts if option != "--help"
    ]
    assert [option for option in options if f"{option}" not in README] == []


@cache
def prefect_help(*words: str) -> str:
    """What `prefect ... --help` prints."""
    env = {**os.environ, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        [PREFECT, *words, "--help"], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command", [each for each in commands("prefect") if each not in _PREFECT_OWN]
)
def test_prefect_command_of_the_documents_exists_with_its_options(command: str) -> None:
    """Prefect's command line is asked itself."""
    words = shlex.split(command)[1:]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    names = [word for word in words if not word.startswith("-")]
    level = 1 if names[0] == "deploy" else 2
    shown = prefect_help(*names[:level]) + ("--no-prompt" if "--no-prompt" in words else "")
    assert [option for option in options if option not in shown] == []


@pytest.mark.parametrize("command", commands("make"))
def test_make_target_of_the_documents_exists(command: str) -> None:
    """The Makefile has the target and uses each variable that is set."""
    makefile = (ROOT / "Makefile").read_text()
    target, *variables = shlex.split(command)[1:]
    names = [variable.partition("=")[0] for variable in variables]
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert [name for name in names if f"$({name})" not in makefile] == []


@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: f"{len(code)} characters")
def test_snippet_runs(code: str, tmp_path: Path) -> None:
    """Everything that it imports and declares is there; the example itself runs below."""
    file = tmp_path / "snippet.py"  # Prefect reads the source of a flow from its file
    file.write_text(code, encoding="utf-8")
    runpy.run_path(str(file), run_name="snippet")


def test_automation_of_the_readme_is_accepted_by_the_server(server: PrefectServer) -> None:
    """Its event, labels and action are what Prefect takes."""
    (code,) = [code for code in SNIPPETS if "Automation(" in code]
    block = (
        "from prefect.blocks.notifications import SlackWebhook\n"
        "SlackWebhook(url='https://hooks.slack.test/services/a/b/c').save('gpu-alerts')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", block + code + "\ncreate_automation()"],
        env=server.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def api(server: PrefectServer) -> Iterator[Api]:
    """The server's REST API."""
    with contextlib.closing(Api(server)) as found:
        yield found


def test_example_of_the_readme_completes_with_twice_the_memory(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Pool, deployment and worker as in the README; only the delay is shorter."""
    (tmp_path / "train.py").write_text(EXAMPLE, encoding="utf-8")

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=tmp_path, env=server.env(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(PREFECT, "work-pool", "create", "cpu", "--type", "heteroflow-process")
    run(sys.executable, "train.py")
    deployment = api.get("/deployments/name/train/nightly")["id"]
    delays = {"PREFECT_INTEGRATIONS_HETEROFLOW_ESCALATION_DELAY": "0"}
    with Worker(server, tmp_path, pool="cpu", node="docs-cpu", settings=delays, memory_mb=8192):
        flow_run = api.submit(deployment)
        assert api.wait_end(flow_run).name == "Completed"
    assert [row["memory_mb"] for row in api.rows(flow_run)] == [2048, 4096]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[PrefectServer]:
    """One of its own: on the shared one another test has made pool `gpu-8gb` for containers."""
    with PrefectServer(tmp_path / "new") as found:
        yield found


@pytest.fixture
def new_api(new_server: PrefectServer) -> Iterator[Api]:
    """Its REST API."""
    with contextlib.closing(Api(new_server)) as found:
        yield found


def test_gpu_example_moves_between_two_workers_started_as_its_page_says(
    new_server: PrefectServer, new_api: Api, tmp_path: Path
) -> None:
    """The lines of `deployments/README.md` for a machine without Docker and GPUs."""
    page = (ROOT / "deployments" / "README.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in page.splitlines() if "_NODE_GPUS=" in line]
    workers, pools = [], []
    for line in lines:
        words = shlex.split(line)
        values = dict(word.split("=", 1) for word in words if word.startswith("PREFECT_"))
        options = dict(pairwise(words))
        pools.append(options["--pool"])
        new_api.create_pool(options["--pool"], options["--type"])
        node = values.pop("PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME")
        gpus = values.pop("PREFECT_INTEGRATIONS_HETEROFLOW_NODE_GPUS")
        assert not values
        workers.append(Worker(new_server, tmp_path, pool=options["--pool"], node=node, gpus=gpus))
    run_prefect = [PREFECT, "--no-prompt", "deploy", "--name", "gpu-oom"]
    done = subprocess.run(
        run_prefect, cwd=ROOT, env=new_server.env(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    deployment = new_api.get("/deployments/name/gpu-oom/gpu-oom")["id"]
    with workers[0], workers[1]:
        no_wait = {"retry_delay": 0, "retry_jitter": 0, "memory_mb": 512, "gpu_count": 1}
        run = new_api.submit(deployment, job_variables=no_wait)
        assert new_api.wait_end(run).name == "Completed"
    rows = [(row["pool"], row["gpu_memory_mb"], row["failure"]) for row in new_api.rows(run)]
    assert rows == [(pools[0], 8192, "GpuOutOfMemory"), (pools[1], 24576, None)]


def deployed(
    server: PrefectServer,
    api: Api,
    folder: Path,
    config: dict[str, Any],
    pool_type: str = "heteroflow",
) -> Any:
    """The deployment `train/nightly` after `prefect deploy --all` with this `prefect.yaml`."""
    (folder / "train.py").write_text(EXAMPLE, encoding="utf-8")
    (folder / "prefect.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    pool = config["deployments"][0]["work_pool"]["name"]
    if pool not in [each["name"] for each in api.post("/work_pools/filter", {})]:
        api.create_pool(pool, pool_type)
    done = subprocess.run(
        [PREFECT, "--no-prompt", "deploy", "--all"],
        cwd=folder,
        env=server.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return api.get("/deployments/name/train/nightly")


def readme_deployment(index: int = 0) -> dict[str, Any]:
    """The `prefect.yaml` of "On real nodes": for containers, and for processes."""
    examples = [yaml.safe_load(text) for text in blocks(README, "yaml")]
    found: list[dict[str, Any]] = [each for each in examples if "deployments" in each]
    return found[index]


def test_deployment_of_the_readme_finds_its_code_in_the_image(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """The pull step of the snippet reaches the deployment, with its job variables."""
    config = readme_deployment()
    found = deployed(server, api, tmp_path, config)
    assert found["pull_steps"] == config["pull"]
    assert found["job_variables"] == config["deployments"][0]["work_pool"]["job_variables"]


def test_deployment_of_the_readme_for_processes_finds_its_code_in_a_folder_of_the_node(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    config = readme_deployment(1)
    found = deployed(server, api, tmp_path, config, "heteroflow-process")
    assert found["pull_steps"] == config["pull"]
    assert found["job_variables"] == config["deployments"][0]["work_pool"]["job_variables"]


def test_list_on_the_command_line_of_the_readme_reaches_the_run_as_a_list(
    server: PrefectServer, api: Api, tmp_path: Path
) -> None:
    """Prefect reads the value of a job variable as JSON."""
    deployed(server, api, tmp_path, readme_deployment(1), "heteroflow-process")
    (command,) = [each for each in commands("prefect") if "retry_on=" in each]
    done = subprocess.run(
        [PREFECT, *shlex.split(command)[1:]],
        env=server.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = [
        each
        for each in api.post("/flow_runs/filter", {})
        if "retry_on" in (each["job_variables"] or {})
    ]
    assert run["job_variables"]["retry_on"] == ["Checkpoint not found"]


@pytest.mark.parametrize("has_image", [True, False], ids=["with an image", "without"])
def test_deployment_without_a_pull_step_expects_the_code_where_the_readme_says(
    server: PrefectServer, api: Api, tmp_path: Path, has_image: bool
) -> None:
    """Prefect's own guess, which is seldom right for a container."""
    config = readme_deployment()
    del config["pull"]
    if not has_image:
        del config["deployments"][0]["work_pool"]["job_variables"]["image"]
    (step,) = deployed(server, api, tmp_path, config)["pull_steps"]
    expected = "/opt/prefect" if has_image else str(tmp_path)
    assert step == {"prefect.deployments.steps.set_working_directory": {"directory": expected}}


def test_body_of_the_rest_example_creates_a_plain_job(server: PrefectServer, api: Api) -> None:
    """The text between the quotes of `curl -d` is sent as it stands."""
    (request,) = [text for text in blocks(README, "bash") if "curl" in text]
    body = json.loads(shlex.split(request.replace("\\\n", " "))[-1])
    api.create_pool("docs-rest", "heteroflow")
    deployment = api.deploy("host_oom", "docs-rest", name="docs-rest")
    created = api.post(f"/deployments/{deployment}/create_flow_run", body)
    assert created["job_variables"] == body["job_variables"]
    assert ast.literal_eval(created["job_variables"]["command"].split()[-1]) == 0
