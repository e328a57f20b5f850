"""Job variables and configuration of the `heteroflow` worker type: one attempt in a container."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from docker.types import DeviceRequest
from prefect.workers.base import BaseVariables
from prefect_docker.credentials import DockerRegistryCredentials
from prefect_docker.types import VolumeStr
from prefect_docker.worker import DockerWorkerJobConfiguration
from pydantic import Field

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.backend import AttemptPlan
from prefect_heteroflow.core.resources import Gpu, Resources
from prefect_heteroflow.infra import container as containers
from prefect_heteroflow.job_configuration import RetryConfiguration, RetryVariables

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

NODE_LABEL = "io.prefect-heteroflow.node"
TASK_LABEL = "io.prefect-heteroflow.task-id"
RUN_LABEL = "io.prefect-heteroflow.flow-run-id"
ATTEMPT_LABEL = "io.prefect-heteroflow.attempt"
RESOURCES_LABEL = "io.prefect-heteroflow.resources"
GPUS_LABEL = "io.prefect-heteroflow.gpus"
HOOK_LABEL = "io.prefect-heteroflow.cleanup-hook"


class HeteroflowVariables(RetryVariables, BaseVariables):
    """Job variables of the `heteroflow` worker type."""

    image: str | None = Field(
        default=None,
        title="Image",
        description=(
            "Reference of the container image. Empty means Prefect's own image of the worker's"
            " version."
        ),
        examples=["docker.io/prefecthq/prefect:3-latest"],
    )
    registry_credentials: DockerRegistryCredentials | None = Field(
        default=None,
        title="Registry credentials",
        description="Credentials for a registry that wants a password to pull from it.",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "IfPossible", "Never"] | None = Field(
        default=None,
        title="Image pull policy",
        description="When to pull the image: IfNotPresent, Always, IfPossible or Never.",
    )
    networks: list[str] = Field(
        default_factory=list,
        title="Networks",
        description="Docker networks that the container is connected to.",
    )
    network_mode: str | None = Field(
        default=None,
        title="Network mode",
        description="Network mode of the container, for example host. Not with networks.",
    )
    volumes: list[VolumeStr] = Field(
        default_factory=list,
        title="Volumes",
        description="Volumes to mount, as /path/of/the/node:/path/in/the/container.",
        examples=["/my/local/path:/path/in/container"],
    )
    auto_remove: bool = Field(
        default=True,
        title="Remove the container",
        description="Remove each attempt's container once its evidence has been read.",
    )
    stream_output: bool = Field(
        default=True,
        title="Stream output",
        description="Print the output of containers on the worker's standard output.",
    )
    privileged: bool = Field(
        default=False, title="Privileged", description="Give the container extended privileges."
    )
    container_create_kwargs: dict[str, Any] | None = Field(
        default=None,
        title="Container configuration",
        description="Further arguments for docker-py when it creates the container.",
    )


class HeteroflowJobConfiguration(RetryConfiguration, DockerWorkerJobConfiguration):
    """Configuration of one attempt in a container."""

    auto_remove: bool = Field(default=True)

    @classmethod
    def json_template(cls) -> dict[str, Any]:
        """The template of a pool, without the limits that follow from `memory_mb`."""
        derived = ("mem_limit", "memswap_limit")
        return {
            name: value for name, value in super().json_template().items() if name not in derived
        }

    @staticmethod
    def _base_flow_run_command() -> str:
        # The engine itself as the main process: an OOM kill of it is seen as such. Prefect's
        # `prefect flow-run execute` survives its killed child and exits 0.
        return containers.ENTRY_COMMAND


def apply_plan(
    configuration: HeteroflowJobConfiguration, plan: AttemptPlan, *, node_name: str
) -> None:
    """Write limits, GPUs, labels and the entry's files of one attempt into its configuration."""
    resources = plan.resources
    configuration.mem_limit = f"{resources.memory_mb}m"
    # Without it the container swaps instead of being killed.
    configuration.memswap_limit = configuration.mem_limit
    further: dict[str, Any] = dict(configuration.container_create_kwargs or {})
    if resources.shm_mb is not None:
        further["shm_size"] = f"{resources.shm_mb}m"
    if resources.gpu_count:
        further["device_requests"] = [_device_request(plan)]
    configuration.container_create_kwargs = further
    configuration.labels = {
        **configuration.labels,
        NODE_LABEL: node_name,
        TASK_LABEL: plan.task_id,
        RUN_LABEL: str(plan.flow_run.id),
        ATTEMPT_LABEL: str(plan.attempt),
        RESOURCES_LABEL: json.dumps(dataclasses.asdict(resources)),
        GPUS_LABEL: ",".join(gpu.uuid for gpu in plan.gpus),
    }
    if plan.context_json is not None:
        configuration.env = {
            **configuration.env,
            environment.CONTEXT_FILE: containers.CONTEXT_PATH,
            environment.REPORT_FILE: containers.REPORT_PATH,
        }


def plan_from_labels(
    labels: Mapping[str, str],
    flow_run: FlowRun,
    configuration: RetryConfiguration,
    *,
    gpus_of_node: Sequence[Gpu],
) -> AttemptPlan:
    """The plan of a container that an earlier process of the worker has started.

    It is what `apply_plan` wrote; nobody gets its output before a life watches the attempt again.

    Raises:
        KeyError: A label is missing.
        ValueError: A label cannot be read.
        TypeError: The resources have names that this version does not know.
    """
    gpus = set(filter(None, labels.get(GPUS_LABEL, "").split(",")))
    return AttemptPlan(
        flow_run=flow_run,
        configuration=configuration,
        task_id=labels[TASK_LABEL],
        attempt=int(labels[ATTEMPT_LABEL]),
        resources=Resources(**json.loads(labels[RESOURCES_LABEL])),
        gpus=tuple(gpu for gpu in gpus_of_node if gpu.uuid in gpus),
        context_json=None if configuration.is_plain_job else "",
        on_output=_ignore_output,
    )


def _device_request(plan: AttemptPlan) -> DeviceRequest:
    """The very GPUs that the attempt was given; a number of them where NVML did not name any."""
    uuids = [gpu.uuid for gpu in plan.gpus]
    named = len(uuids) == plan.resources.gpu_count and all(
        uuid.startswith(("GPU-", "MIG-")) for uuid in uuids
    )
    if named:
        return DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])
    return DeviceRequest(count=plan.resources.gpu_count, capabilities=[["gpu"]])


def _ignore_output(chunk: bytes, *, is_old: bool = False) -> None:
    """Until the life that watches the attempt again takes its output."""
