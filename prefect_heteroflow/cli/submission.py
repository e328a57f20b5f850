"""From what a user typed to a run of the container-job deployment: check everything, then create.

Nothing is created before every check has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled, to_state_create

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError
from prefect_heteroflow.cli.nodes import read_settings
from prefect_heteroflow.container_job import DEPLOYMENT_NAME, ENTRYPOINT, container_job
from prefect_heteroflow.core.image_reference import image_reference_problem
from prefect_heteroflow.core.job_values import JobValueError, JobValues, parse_job_values
from prefect_heteroflow.core.near_names import doubtful_variables
from prefect_heteroflow.core.resources import Cluster, Resources
from prefect_heteroflow.core.routing import (
    OUR_WORKER_TYPES,
    STARTS_CONTAINERS,
    NoRoute,
    is_declared,
    route,
)
from prefect_heteroflow.core.user_rules import combine_user_rules
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.job_configuration import check_command
from prefect_heteroflow.orchestration.nodes import read_cluster

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

DEFAULT_DEPLOYMENT = f"{container_job.name}/{DEPLOYMENT_NAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A plain job as a user asked for it."""

    command: str
    image: str | None = None
    values: Mapping[str, str]
    """Job variables of ours that were given, as text: `{"memory_mb": "4096"}`."""
    env: Sequence[str] = ()
    """`NAME=VALUE` each."""
    pool: str | None = None
    deployment: str = DEFAULT_DEPLOYMENT
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request that passed every check that needs no API."""

    request: JobRequest
    job_variables: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The run that was created."""

    flow_run: FlowRun
    pool: str
    registered: bool
    """The deployment did not exist and was created for it."""
    doubts: tuple[str, ...] = ()
    """A sentence for each job variable that is ignored and most likely mistyped."""


def check_request(request: JobRequest) -> CheckedRequest:
    """The request with its job variables, after every check that needs no API.

    Raises:
        CommandError: Something cannot be used; the text names it, what is allowed and what to do.
    """
    if not request.command.strip():
        raise _refused("--command is empty: give the command that the image shall run.")
    typed = {"--command": (request.command,), "--env": request.env, "--name": (request.name or "",)}
    for option, texts in typed.items():
        if any(storable(text) != text for text in texts):
            raise _refused(f"{option} is no UTF-8 text, which the Prefect API cannot store.")
    _check_command(request.command)
    if request.image is not None and (problem := image_reference_problem(request.image)):
        raise _refused(problem)
    values = _parsed(request.values)
    variables: dict[str, Any] = {"command": request.command}
    variables.update({name: _typed(values, name) for name in request.values})
    if request.image is not None:
        variables["image"] = request.image
    if request.env:
        variables["env"] = dict(_assignment(text) for text in request.env)
    return CheckedRequest(request=request, job_variables=variables)


def _parsed(values: Mapping[str, object]) -> JobValues:
    settings = read_settings()
    defaults = {name: getattr(settings, name) for name in type(settings).model_fields}
    try:
        parsed = parse_job_values(values, defaults)
        combine_user_rules(retry_on=parsed.retry_on, stop_on=parsed.stop_on)
    except ValueError as error:
        raise _refused(str(error)) from error
    return parsed


def _check_command(command: str) -> None:
    try:
        check_command(command)
    except JobValueError as error:
        raise _refused(str(error)) from error


def _accepted(variables: Mapping[str, Any], pool: WorkPool) -> JobValues:
    """What a worker of the pool would read of these variables, which it would refuse as we do.

    Not the job configuration itself: to build it, blocks with secrets would be loaded. So what
    stands for a block or a Variable is left to the worker.
    """
    read = {name: value for name, value in variables.items() if not _is_placeholder(value)}
    image = read.get("image")
    if STARTS_CONTAINERS[pool.type]:
        if not variables.get("image"):
            raise _refused(f"Pool {pool.name!r} starts containers: say which with --image.")
        if isinstance(image, str) and (problem := image_reference_problem(image)):
            raise _refused(problem)
    if not isinstance(read.get("env", {}), Mapping):
        raise _refused("The job variable env must map names to values: correct the deployment.")
    return _parsed(read)


def _is_placeholder(value: object) -> bool:
    return isinstance(value, str) and "{{" in value


def _defaults_of(pool: WorkPool) -> dict[str, Any]:
    """What the pool's template says where neither deployment nor run does."""
    properties = pool.base_job_template.get("variables", {}).get("properties", {})
    given = {name: about.get("default") for name, about in properties.items()}
    return {name: value for name, value in given.items() if value is not None}


def _typed(values: JobValues, name: str) -> int | str:
    """The value as JSON holds it: a number, or the text of the strategy."""
    if name == "retry_strategy":
        return values.policy.retry_strategy.value
    home = values.resources if hasattr(values.resources, name) else values.policy
    number: int = getattr(home, name)
    return number


async def submit_job(client: PrefectClient, checked: CheckedRequest) -> Submitted:
    """Create the run on its pool; the deployment too, if it is the default one and missing.

    Args:
        client: A client of the API.
        checked: What `check_request` made of the user's request.

    Raises:
        CommandError: The deployment or the pool cannot take this job.
    """
    request = checked.request
    deployment = await _find_deployment(client, request)
    if deployment is not None:
        await _check_runs_commands(client, deployment, request.deployment)
    pool_name = request.pool or (deployment.work_pool_name if deployment else None)
    if pool_name is None:
        raise _refused(
            f"Deployment {request.deployment} has no work pool: choose one with --pool."
            f" {await _pools_there_are(client)}"
            if deployment
            else f"There is no deployment {request.deployment} yet. Choose a work pool with --pool,"
            f" and it is created for that pool. {await _pools_there_are(client)}"
        )
    pool = await _read_pool(client, pool_name)
    # The run's variables stand over the deployment's own.
    variables = {**(deployment.job_variables or {} if deployment else {}), **checked.job_variables}
    resources = _accepted({**_defaults_of(pool), **variables}, pool).resources
    settings = read_settings()
    cluster = await read_cluster(client, liveness_seconds=settings.node_liveness_seconds)
    if problem := room_problem(resources, cluster, pool=pool.name, pool_type=pool.type):
        raise _refused(problem)
    registered = deployment is None
    if deployment is None:
        deployment = await _register_deployment(client, pool.name)
    run = await _create_run(client, deployment, pool.name, request.name, checked.job_variables)
    known = pool.base_job_template.get("variables", {}).get("properties", {})
    doubts = doubtful_variables(variables, known, pool=pool.name)
    return Submitted(flow_run=run, pool=pool.name, registered=registered, doubts=doubts)


def room_problem(
    resources: Resources, cluster: Cluster, *, pool: str, pool_type: str
) -> str | None:
    """Why no machine that is known can ever hold the job; `None` if one can, or nobody knows.

    Machines that are away or cordoned count: they can come back. A pool of which nothing is known
    may have any machine.
    """
    known = any(node.pool == pool for node in cluster.nodes) or any(
        declared.name == pool and is_declared(declared) for declared in cluster.pools
    )
    if not known:
        return None
    at_best = Cluster(
        nodes=tuple(replace(node, live=True, cordoned=False) for node in cluster.nodes),
        pools=tuple(replace(each, paused=False) for each in cluster.pools),
    )
    found = route(resources, at_best, current_pool=pool, containers=STARTS_CONTAINERS[pool_type])
    return found.reason if isinstance(found, NoRoute) else None


async def _find_deployment(client: PrefectClient, request: JobRequest) -> DeploymentResponse | None:
    """The deployment; `None` where it is the default one, which can be created."""
    if request.deployment.count("/") != 1:
        raise _refused(
            f"--deployment {request.deployment!r}: allowed is FLOW/NAME,"
            f" for example {DEFAULT_DEPLOYMENT}."
        )
    try:
        return await client.read_deployment_by_name(request.deployment)
    except ObjectNotFound:
        if request.deployment == DEFAULT_DEPLOYMENT:
            return None
        raise _refused(
            f"There is no deployment {request.deployment!r}: create it with `prefect deploy`, or"
            f" leave --deployment out to use {DEFAULT_DEPLOYMENT}."
        ) from None


async def _check_runs_commands(
    client: PrefectClient, deployment: DeploymentResponse, name: str
) -> None:
    """Refuse a deployment that is there to run its flow: the command would take its place."""
    flow = await client.read_flow(deployment.flow_id)
    if flow.name == container_job.name or (deployment.job_variables or {}).get("command"):
        return
    raise _refused(
        f"Deployment {name} runs the flow {flow.name!r}, and --command would take its place."
        f" To run the flow: `prefect deployment run {name}`. To run the command: leave"
        " --deployment out, or name a deployment that has a command of its own."
    )


async def _read_pool(client: PrefectClient, name: str) -> WorkPool:
    try:
        pool = await client.read_work_pool(name)
    except ObjectNotFound:
        raise _refused(
            f"There is no work pool {name!r}. {await _pools_there_are(client)}"
        ) from None
    if pool.type not in OUR_WORKER_TYPES:
        raise _refused(
            f"Work pool {name!r} has the type {pool.type!r}, which neither limits memory nor"
            f" retries. {await _pools_there_are(client)}"
        )
    return pool


async def _pools_there_are(client: PrefectClient) -> str:
    pools = await client.read_work_pools()
    names = sorted(pool.name for pool in pools if pool.type in OUR_WORKER_TYPES)
    if names:
        return f"Pools that can take it: {', '.join(names)}."
    return "Create one with `prefect work-pool create NAME --type heteroflow`."


async def _register_deployment(client: PrefectClient, pool: str) -> DeploymentResponse:
    """Create the deployment as `prefect.yaml` does, so that both ways give the same one."""
    flow_id = await client.create_flow_from_name(container_job.name)
    deployment_id = await client.create_deployment(
        flow_id=flow_id,
        name=DEPLOYMENT_NAME,
        work_pool_name=pool,
        entrypoint=ENTRYPOINT,
        description=container_job.description,
        parameter_openapi_schema={"type": "object", "title": "Parameters", "properties": {}},
        enforce_parameter_schema=True,
        tags=["heteroflow"],
        pull_steps=[],
    )
    return await client.read_deployment(deployment_id)


async def _create_run(
    client: PrefectClient,
    deployment: DeploymentResponse,
    pool: str,
    name: str | None,
    variables: dict[str, Any],
) -> FlowRun:
    if pool == deployment.work_pool_name:
        return await client.create_flow_run_from_deployment(
            deployment.id, name=name, job_variables=variables
        )
    # `create_flow_run_from_deployment` knows no pool and `create_flow_run` no deployment.
    body: dict[str, Any] = {
        "flow_id": str(deployment.flow_id),
        "deployment_id": str(deployment.id),
        "parameters": deployment.parameters or {},
        "tags": list(deployment.tags),
        "work_pool_name": pool,
        "job_variables": variables,
        "state": to_state_create(Scheduled()).model_dump(mode="json", exclude_unset=True),
    }
    if name:
        body["name"] = name
    response = await client.request("POST", "/flow_runs/", json=body)
    response.raise_for_status()
    return FlowRun.model_validate(response.json())


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or name != name.strip():
        # The text itself is not repeated: it may be a secret without its name.
        raise _refused("--env takes NAME=VALUE, for example --env EPOCHS=3.")
    return name, value


def _refused(message: str) -> CommandError:
    return CommandError(message, exit_code=EXIT_REFUSED)
