"""`heteroflow submit` on a real server: what it refuses, what it creates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from click.testing import Result
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from prefect_heteroflow.cli import app
from prefect_heteroflow.cli.submission import DEFAULT_DEPLOYMENT, room_problem
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool, Resources
from prefect_heteroflow.worker import HeteroflowWorker
from tests.support.prefect_server import PrefectServer

T = TypeVar("T")
JOB = ("--image", "python:3.12-slim", "--command", "python -c 'print(1)'")


@pytest.fixture
def api(server: PrefectServer) -> Iterator[PrefectServer]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        yield server


@pytest.fixture
def pool(api: PrefectServer) -> str:
    """A new pool, and no deployment from the test before."""
    name = f"submit-{uuid4()}"
    with_client(
        lambda client: client.create_work_pool(WorkPoolCreate(name=name, type="heteroflow"))
    )
    with_client(remove_deployment)
    return name


def with_client(action: Callable[[PrefectClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with get_client() as client:
            return await action(client)

    return asyncio.run(run())


async def remove_deployment(client: PrefectClient) -> None:
    try:
        deployment = await client.read_deployment_by_name(DEFAULT_DEPLOYMENT)
    except ObjectNotFound:
        return
    await client.delete_deployment(deployment.id)


async def count_runs(client: PrefectClient) -> int:
    return int((await client.request("POST", "/flow_runs/count", json={})).json())


def run_command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "240"}).invoke(app, ["submit", *arguments])


def submitted(*arguments: str) -> FlowRun:
    result = run_command(*arguments, "--json")
    assert result.exit_code == 0, result.output
    run_id = UUID(json.loads(result.stdout)["task_id"])
    return with_client(lambda client: client.read_flow_run(run_id))


def test_first_submission_creates_the_deployment_for_the_pool(pool: str) -> None:
    """On a fresh server one command is enough."""
    run = submitted(*JOB, "--pool", pool)
    deployment = with_client(lambda client: client.read_deployment_by_name(DEFAULT_DEPLOYMENT))
    assert (run.deployment_id, deployment.work_pool_name) == (deployment.id, pool)


def test_run_carries_the_job_variables_that_were_given(pool: str) -> None:
    """Only what was given: everything else stays with the deployment, the pool and the worker."""
    run = submitted(
        *(*JOB, "--pool", pool, "--name", "my-job", "--memory-mb", "4096", "--gpu-count", "1"),
        *("--gpu-memory-mb", "20000", "--shm-mb", "256", "--retry-strategy", "retry_same_node"),
        *("--max-retries", "-1", "--env", "EPOCHS=3", "--env", "URL=a=b"),
    )
    assert run.name == "my-job"
    assert run.job_variables == {
        "image": "python:3.12-slim",
        "command": "python -c 'print(1)'",
        "memory_mb": 4096,
        "gpu_count": 1,
        "gpu_memory_mb": 20000,
        "shm_mb": 256,
        "retry_strategy": "retry_same_node",
        "max_retries": -1,
        "env": {"EPOCHS": "3", "URL": "a=b"},
    }


def test_other_pool_than_the_deployments_takes_the_run(pool: str) -> None:
    """One deployment serves every pool."""
    other = f"submit-{uuid4()}"
    with_client(
        lambda client: client.create_work_pool(WorkPoolCreate(name=other, type="heteroflow"))
    )
    first = submitted(*JOB, "--pool", pool)
    run = submitted(*JOB, "--pool", other)
    assert (run.work_pool_name, run.deployment_id) == (other, first.deployment_id)


def test_pool_is_the_deployments_when_none_is_given(pool: str) -> None:
    """The second submission needs no `--pool`."""
    submitted(*JOB, "--pool", pool)
    assert submitted(*JOB).work_pool_name == pool


def test_run_is_due_at_once(pool: str) -> None:
    """It is `Scheduled`, so that a worker takes it at its next poll."""
    submitted(*JOB, "--pool", pool)
    assert submitted(*JOB, "--pool", pool).state_name == "Scheduled"


def test_submission_prints_the_run_and_a_link_to_its_page(pool: str, api: PrefectServer) -> None:
    """The person who submitted can open the page."""
    output = run_command(*JOB, "--pool", pool, "--name", "linked").stdout
    assert "Submitted linked" in output
    assert f"{api.url}/runs/flow-run/" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--memory-mb", "-5"), "memory_mb '-5'"),
        (("--memory-mb", "2.5"), "memory_mb '2.5'"),
        (("--memory-mb", "99999"), "oom_memory_limit 16384"),
        (("--gpu-count", "-1"), "gpu_count '-1'"),
        (("--gpu-memory-mb", "8000"), "gpu_count 0"),
        (("--retry-strategy", "elsewhere"), "retry_new_node"),
        (("--max-retries", "-2"), "max_retries '-2'"),
        (("--shm-mb", "0"), "shm_mb '0'"),
        (("--image", "No Such Image"), "white space"),
        (("--command", " "), "--command is empty"),
        (("--command", "echo 'a"), "No closing quotation"),
        (("--command", "echo \udcff"), "--command is no UTF-8"),
        (("--name", "run-\udcff"), "--name is no UTF-8"),
        (("--env", "A=\udcff"), "--env is no UTF-8"),
        (("--env", "EPOCHS"), "NAME=VALUE"),
        (("--pool", "no-such-pool"), "no work pool 'no-such-pool'"),
        (("--deployment", "no/such"), "no deployment 'no/such'"),
        (("--deployment", "nonsense"), "FLOW/NAME"),
    ],
)
def test_bad_input_is_refused_before_anything_is_created(
    pool: str, arguments: tuple[str, str], said: str
) -> None:
    """Exit code 2, a text that names the value, no run and no deployment."""
    before = with_client(count_runs)
    result = run_command(*JOB, "--pool", pool, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert with_client(count_runs) == before
    with pytest.raises(ObjectNotFound):
        with_client(lambda client: client.read_deployment_by_name(DEFAULT_DEPLOYMENT))


def test_missing_image_on_a_container_pool_is_refused(pool: str) -> None:
    """A command alone would run in the default image, which nobody asked for."""
    result = run_command("--command", "true", "--pool", pool)
    assert (result.exit_code, "--image" in result.stderr) == (2, True)


def test_no_pool_on_a_fresh_server_is_refused_with_the_pools_there_are(pool: str) -> None:
    """The text says what to type next."""
    result = run_command(*JOB)
    assert result.exit_code == 2
    assert "--pool" in result.stderr
    assert pool in result.stderr


def test_pool_of_another_type_is_refused(pool: str) -> None:
    """A worker that neither limits memory nor retries would drop the wishes silently."""
    name = f"submit-{uuid4()}"
    with_client(lambda client: client.create_work_pool(WorkPoolCreate(name=name, type="process")))
    result = run_command(*JOB, "--pool", name)
    assert (result.exit_code, "type 'process'" in result.stderr) == (2, True)


async def change_deployment(client: PrefectClient, run: FlowRun, variables: dict[str, Any]) -> None:
    body = {"job_variables": variables}
    await client.request("PATCH", f"/deployments/{run.deployment_id}", json=body)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"max_retries": -2}, "max_retries -2"),
        ({"retry_on": ["/(/"]}, "retry_on"),
        ({"cleanup_hook": "echo 'a"}, "cleanup hook"),
        ({"env": ["A=1"]}, "env must map names to values"),
    ],
)
def test_variable_of_the_deployment_that_a_worker_would_refuse_is_refused(
    pool: str, variables: dict[str, Any], said: str
) -> None:
    """The run would be created, and end as `InvalidConfig` when a worker takes it."""
    first = submitted(*JOB, "--pool", pool)
    with_client(lambda client: change_deployment(client, first, variables))
    before = with_client(count_runs)
    result = run_command(*JOB)
    assert (result.exit_code, with_client(count_runs)) == (2, before)
    assert said in " ".join(result.stderr.split())


def test_default_of_the_pool_that_a_worker_would_refuse_is_refused(pool: str) -> None:
    """The worker reads it where neither the run nor the deployment says anything."""
    name = f"submit-{uuid4()}"
    template = HeteroflowWorker.get_default_base_job_template()
    template["variables"]["properties"]["memory_mb"]["default"] = 99999
    with_client(
        lambda client: client.create_work_pool(
            WorkPoolCreate(name=name, type="heteroflow", base_job_template=template)
        )
    )
    result = run_command(*JOB, "--pool", name)
    assert (result.exit_code, "oom_memory_limit 16384" in result.stderr) == (2, True)


def test_image_that_is_the_default_of_the_pool_is_enough(pool: str) -> None:
    name = f"submit-{uuid4()}"
    template = HeteroflowWorker.get_default_base_job_template()
    template["variables"]["properties"]["image"]["default"] = "python:3.12-slim"
    with_client(
        lambda client: client.create_work_pool(
            WorkPoolCreate(name=name, type="heteroflow", base_job_template=template)
        )
    )
    assert run_command("--command", "true", "--pool", name).exit_code == 0


@flow(name="submit-train")
def train() -> None:
    """Only its deployment is needed."""


def deploy_train(pool: str, variables: dict[str, Any]) -> str:
    async def create(client: PrefectClient) -> None:
        flow_id = await client.create_flow(train)
        await client.create_deployment(
            flow_id=flow_id, name="nightly", work_pool_name=pool, job_variables=variables
        )

    with_client(create)
    return "submit-train/nightly"


def test_deployment_of_a_flow_is_not_run_without_its_flow(pool: str) -> None:
    """The command would take the place of the flow, and the run would complete without it."""
    before = with_client(count_runs)
    result = run_command(*JOB, "--deployment", deploy_train(pool, {}))
    assert (result.exit_code, with_client(count_runs)) == (2, before)
    assert "runs the flow 'submit-train', and --command would take its place" in result.stderr
    assert "prefect deployment run submit-train/nightly" in result.stderr


def test_deployment_that_has_a_command_of_its_own_takes_another_one(pool: str) -> None:
    """Its flow is not run anyway."""
    name = deploy_train(pool, {"command": "true"})
    run = submitted(*JOB, "--deployment", name)
    assert (run.job_variables or {})["command"] == "python -c 'print(1)'"


def test_mistyped_job_variable_of_the_deployment_is_told(pool: str) -> None:
    """The run would go on without it, and nobody would know why. What is not ours is left alone."""
    first = submitted(*JOB, "--pool", pool)
    variables = {"max_retrys": 7, "team": "vision"}
    with_client(lambda client: change_deployment(client, first, variables))
    result = run_command(*JOB)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"Warning: max_retrys is no job variable of pool '{pool}' and is ignored; did you mean"
        " max_retries?"
    ]


NODE = Node(
    name="node-1",
    pool="gpu-8gb",
    memory_mb=16384,
    gpus=(Gpu(uuid="GPU-1", name="small", memory_mb=8192),),
    docker=True,
)


def judged(resources: Resources, *nodes: Node, pool: str = "gpu-8gb") -> str | None:
    cluster = Cluster(nodes=nodes, pools=(Pool(name="gpu-8gb", worker_type="heteroflow"),))
    return room_problem(resources, cluster, pool=pool, pool_type="heteroflow")


def test_gpu_count_that_no_node_has_is_refused() -> None:
    """The job could wait for ever."""
    problem = judged(Resources(gpu_count=2), NODE)
    assert problem is not None
    assert "2 GPUs" in problem


def test_node_that_is_away_still_counts() -> None:
    """It can come back: the job waits for it."""
    away = Node(**{name: getattr(NODE, name) for name in NODE.__slots__} | {"live": False})
    assert judged(Resources(gpu_count=1), away) is None


def test_pool_of_which_nothing_is_known_is_not_judged() -> None:
    """Its machines may be of any size."""
    assert judged(Resources(gpu_count=2), NODE, pool="gpu-80gb") is None
