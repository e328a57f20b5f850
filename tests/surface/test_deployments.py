"""`prefect.yaml` and the work-pool templates, used as a user uses them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.write_templates import FOLDER, WORKERS
from prefect_heteroflow.cli.submission import DEFAULT_DEPLOYMENT, CheckedRequest, JobRequest
from prefect_heteroflow.cli.submission import submit_job as submit
from prefect_heteroflow.core.job_values import JobValueError, parse_job_values
from tests.support.prefect_server import PrefectServer

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "prefect.yaml").read_text())
NAMES = [f"{entry['name']}/{entry['name']}" for entry in CONFIG["deployments"]]
POOL = "gpu-8gb"


def prefect(server: PrefectServer, *arguments: str) -> str:
    """The output of one `prefect` command in a clone, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=ROOT,
        env=server.env(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deployed(server: PrefectServer) -> dict[str, DeploymentResponse]:
    """Everything that the two commands of the README leave on the server, by name."""
    template = str(FOLDER / "heteroflow.json")
    create = ("work-pool", "create", POOL, "--type", "heteroflow", "--overwrite")
    prefect(server, *create, "--base-job-template", template)
    prefect(server, "deploy", "--all")

    async def read() -> dict[str, DeploymentResponse]:
        async with get_client() as client:
            return {name: await client.read_deployment_by_name(name) for name in NAMES}

    with temporary_settings({PREFECT_API_URL: server.api_url}):
        return asyncio.run(read())


@pytest.mark.parametrize("name", NAMES)
def test_deploy_all_creates_the_deployment_on_its_pool(
    deployed: dict[str, DeploymentResponse], name: str
) -> None:
    """One pool and one command are enough."""
    assert deployed[name].work_pool_name == POOL


@pytest.mark.parametrize("name", [name for name in NAMES if name != DEFAULT_DEPLOYMENT])
def test_deployed_flow_runs_from_the_clone(
    deployed: dict[str, DeploymentResponse], name: str
) -> None:
    """The pull step names the folder of the clone, and the entrypoint a file in it."""
    deployment = deployed[name]
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    assert deployment.pull_steps == [step]
    assert (ROOT / str(deployment.entrypoint).partition(":")[0]).is_file()


def test_containers_see_the_clone_under_its_own_path(
    deployed: dict[str, DeploymentResponse],
) -> None:
    """The same pull step works in a container as in a process."""
    assert deployed["host-oom/host-oom"].job_variables["volumes"] == [f"{ROOT}:{ROOT}:ro"]


@pytest.mark.parametrize(
    "entry", CONFIG["deployments"], ids=[entry["name"] for entry in CONFIG["deployments"]]
)
def test_job_variables_are_sound_apart_from_the_bad_setting(entry: dict[str, Any]) -> None:
    """Only the deployment that shows a refusal is refused."""
    variables = entry["work_pool"]["job_variables"]
    try:
        parse_job_values(variables)
    except JobValueError:
        assert entry["name"] == "bad-setting"
    else:
        assert entry["name"] != "bad-setting"


def test_submit_registers_the_same_deployment_as_prefect_yaml(
    deployed: dict[str, DeploymentResponse], server: PrefectServer
) -> None:
    """It makes no difference which of the two came first."""
    expected = deployed[DEFAULT_DEPLOYMENT]

    async def register_anew() -> DeploymentResponse:
        async with get_client() as client:
            await client.delete_deployment(expected.id)
            request = JobRequest(command="true", image="alpine", values={}, pool=POOL)
            checked = CheckedRequest(
                request=request, job_variables={"command": "true", "image": "alpine"}
            )
            await submit(client, checked)
            return await client.read_deployment_by_name(DEFAULT_DEPLOYMENT)

    with temporary_settings({PREFECT_API_URL: server.api_url}):
        registered = asyncio.run(register_anew())
    same = (
        *("name", "flow_id", "work_pool_name", "entrypoint", "pull_steps", "description", "tags"),
        *("job_variables", "parameters", "parameter_openapi_schema", "enforce_parameter_schema"),
    )
    assert {key: getattr(registered, key) for key in same} == {
        key: getattr(expected, key) for key in same
    }


@pytest.mark.parametrize("worker", WORKERS, ids=lambda worker: worker.type)
def test_template_file_is_what_the_worker_says(worker: Any) -> None:
    """After a change: `python deployments/write_templates.py`."""
    stored = json.loads((FOLDER / f"{worker.type}.json").read_text())
    assert stored == worker.get_default_base_job_template()
