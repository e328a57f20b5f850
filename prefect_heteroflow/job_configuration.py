"""Job variables of both worker types, and how they are read.

The names are API: escalation writes them to the run, and users set them in deployments.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from prefect.exceptions import ObjectNotFound
from prefect.workers.base import BaseJobConfiguration
from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from typing_extensions import Self

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.job_values import (
    POLICY_NAMES,
    RESOURCE_NAMES,
    JobValueError,
    JobValues,
    parse_job_values,
)
from prefect_heteroflow.core.resources import DEFAULT_MEMORY_MB
from prefect_heteroflow.core.user_rules import combine_user_rules
from prefect_heteroflow.orchestration.transitions import job_variables_of
from prefect_heteroflow.settings import HeteroflowSettings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Flow as APIFlow
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse

# Commands that run a flow; any other command of the user's makes the run a plain job.
_FLOW_COMMAND = re.compile(
    r"prefect flow-run execute|prefect\.engine|prefect_heteroflow\.engine|prefect\.flow_engine"
    r"|bundles\.execute"
)


class RetryVariables(BaseModel):
    """Job variables that say what an attempt gets and how a failed one is tried again."""

    memory_mb: int = Field(
        default=DEFAULT_MEMORY_MB,
        ge=6,
        title="Memory (MB)",
        description=(
            "Memory limit of the attempt in MB (MiB). It doubles after each out-of-memory kill, up"
            " to oom_memory_limit."
        ),
    )
    shm_mb: int | None = Field(
        default=None,
        ge=1,
        title="Shared memory (MB)",
        description="Size of /dev/shm in MB (MiB). Empty means the engine's default of 64.",
    )
    gpu_count: int = Field(
        default=0, ge=0, title="GPUs", description="Number of GPUs that the attempt gets."
    )
    gpu_memory_mb: int | None = Field(
        default=None,
        ge=1,
        title="GPU memory (MB)",
        description="Least total memory of each GPU in MB (MiB). Empty means any GPU.",
    )
    retry_strategy: Literal["retry_new_node", "retry_same_node", "no_retry"] | None = Field(
        default=None,
        title="Retry strategy",
        description=(
            "Where a retry may run: retry_new_node, retry_same_node or no_retry. Empty means the"
            " worker's setting (retry_new_node)."
        ),
    )
    max_retries: int | None = Field(
        default=None,
        ge=-1,
        title="Retries",
        description=(
            "Retries after the first attempt; -1 never gives up, 0 is off. Empty means the"
            " worker's setting (3)."
        ),
    )
    infrastructure_retries: int | None = Field(
        default=None,
        ge=-1,
        title="Infrastructure retries",
        description=(
            "Separate number of retries for attempts that never started and for lost or preempted"
            " nodes. Empty means the worker's setting (3)."
        ),
    )
    retry_delay: float | None = Field(
        default=None,
        ge=0,
        title="Retry delay (seconds)",
        description="Seconds before the first retry. Empty means the worker's setting (30).",
    )
    backoff_multiplier: float | None = Field(
        default=None,
        ge=1,
        title="Backoff multiplier",
        description="Factor from one delay to the next. Empty means the worker's setting (2).",
    )
    max_retry_delay: float | None = Field(
        default=None,
        ge=0,
        title="Largest retry delay (seconds)",
        description="Largest delay in seconds, jitter apart. Empty means the worker's (300).",
    )
    retry_jitter: float | None = Field(
        default=None,
        ge=0,
        title="Jitter (seconds)",
        description="Largest random addition in seconds. Empty means the worker's setting (5).",
    )
    escalation_delay: float | None = Field(
        default=None,
        ge=0,
        title="Escalation delay (seconds)",
        description=(
            "Seconds before a retry with more memory or a bigger GPU. Empty means the delay of any"
            " other retry."
        ),
    )
    oom_memory_limit: int | None = Field(
        default=None,
        ge=6,
        title="Memory limit of growth (MB)",
        description=(
            "Largest memory_mb in MB (MiB) that growth may reach. Empty means the worker's setting"
            " (16384)."
        ),
    )
    retry_on: list[str | dict[str, Any]] | None = Field(
        default=None,
        title="Retry on",
        description=(
            "Rules of your own that make a failure retryable: texts, /regular expressions/, or"
            " mappings of pattern and class."
        ),
    )
    stop_on: list[str | dict[str, Any]] | None = Field(
        default=None,
        title="Stop on",
        description="Rules of your own that end the run at once, in the form of retry_on.",
    )
    retry_exceptions: bool | list[str] | None = Field(
        default=None,
        title="Retry exceptions",
        description=(
            "Whether exceptions of the flow's own code are retried: false, true, or a list of type"
            " names. Empty means the worker's setting (false)."
        ),
    )
    progress_file: str | None = Field(
        default=None,
        title="Progress file",
        description=(
            "File in which the job says how far it came (its last line, for example 42 % or"
            " 1200/5000): an absolute path, or one relative to the folder in which its process"
            " starts. Attempts that end at the same point no_progress_limit times in a row are not"
            " retried."
        ),
    )
    cleanup_patterns: list[str] | None = Field(
        default=None,
        title="Cleanup patterns",
        description=(
            "Files that are removed from the attempt's scratch folder (HETEROFLOW_SCRATCH) before a"
            " retry on the same node: names at any depth (*.partial), or paths in it"
            " (cache/**/*.tmp). Empty means the worker's setting (stale locks). A container begins"
            " with an empty scratch folder."
        ),
    )
    cleanup_hook: str | None = Field(
        default=None,
        title="Cleanup hook",
        description=(
            "Command, or package.module.function, that runs before a retry on the same node, where"
            " the attempt runs: in its working folder, or in a container of its own with the same"
            " image and volumes. One that fails or takes longer than the worker's"
            " cleanup_hook_timeout (60 s) is noted and keeps no retry from starting. Empty means"
            " the worker's setting (none)."
        ),
    )
    placement: dict[str, Any] | None = Field(
        default=None,
        title="Placement",
        description=(
            "Written by the worker before a retry: the node that should take the run (prefer), the"
            " nodes that leave it alone (avoid), the node that is away and that it waits for"
            " (waits_for), and since when (since)."
        ),
    )


class RetryConfiguration(BaseJobConfiguration):
    """The same values in a job configuration, not yet judged: bad ones end the run with a reason.

    A value that pydantic refused here would end the run as `Crashed` with a validation dump.
    """

    memory_mb: Any = None
    shm_mb: Any = None
    gpu_count: Any = None
    gpu_memory_mb: Any = None
    retry_strategy: Any = None
    max_retries: Any = None
    infrastructure_retries: Any = None
    retry_delay: Any = None
    backoff_multiplier: Any = None
    max_retry_delay: Any = None
    retry_jitter: Any = None
    escalation_delay: Any = None
    oom_memory_limit: Any = None
    retry_on: Any = None
    stop_on: Any = None
    retry_exceptions: Any = None
    progress_file: Any = None
    cleanup_patterns: Any = None
    cleanup_hook: Any = None
    placement: Any = None

    _refusal: str | None = PrivateAttr(default=None)
    _is_plain_job: bool = PrivateAttr(default=False)
    _memory_mb_was_set: bool = PrivateAttr(default=False)

    @property
    def refusal(self) -> str | None:
        """Why this configuration cannot be used at all, or `None`."""
        return self._refusal

    @property
    def is_plain_job(self) -> bool:
        """The user gave a command of its own: there is no Prefect inside."""
        return self._is_plain_job

    @property
    def memory_mb_was_set(self) -> bool:
        """A deployment or a run said `memory_mb`; it is not the pool's default."""
        return self._memory_mb_was_set

    @classmethod
    async def resolve_for_flow_run(
        cls,
        flow_run: FlowRun,
        *,
        client: PrefectClient,
        work_pool: WorkPool,
        worker_name: str,
        worker_id: UUID | None = None,
        deployment: DeploymentResponse | None = None,
    ) -> Self:
        """Build the configuration; values that no field accepts become its `refusal`."""
        if deployment is None and flow_run.deployment_id is not None:
            try:
                deployment = await client.read_deployment(flow_run.deployment_id)
            except ObjectNotFound:
                # Deleted while the run is under way: what the run itself says still counts.
                flow_run = flow_run.model_copy(update={"deployment_id": None})
        # A copy: core takes `env` out of the run's variables.
        flow_run = flow_run.model_copy(update={"job_variables": job_variables_of(flow_run)})
        run_variables = dict(flow_run.job_variables or {})
        deployment_variables = dict(getattr(deployment, "job_variables", None) or {})
        try:
            configuration = await super().resolve_for_flow_run(
                flow_run,
                client=client,
                work_pool=work_pool,
                worker_name=worker_name,
                worker_id=worker_id,
                deployment=deployment,
            )
        except (ValidationError, AttributeError) as error:
            # (`env` given as a list fails inside of core's own validator.)
            configuration = cls()
            configuration._refusal = _refusal_text(error)
            configuration.prepare_for_flow_run(
                flow_run,
                deployment,
                None,
                work_pool,
                worker_name,
                worker_id=worker_id,
            )
        configuration._memory_mb_was_set = (
            "memory_mb" in run_variables or "memory_mb" in deployment_variables
        )
        return configuration

    def prepare_for_flow_run(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None = None,
        flow: APIFlow | None = None,
        work_pool: WorkPool | None = None,
        worker_name: str | None = None,
        worker_id: UUID | None = None,
    ) -> None:
        """Note whether this is a plain job before the base class fills in the command."""
        self._is_plain_job = self.command is not None and not _FLOW_COMMAND.search(self.command)
        super().prepare_for_flow_run(
            flow_run, deployment, flow, work_pool, worker_name, worker_id=worker_id
        )

    def job_values(self, settings: HeteroflowSettings) -> JobValues:
        """The values of the run over the worker's settings.

        Raises:
            JobValueError: A value is out of its range, or a rule cannot be parsed.
        """
        defaults = {name: getattr(settings, name) for name in POLICY_NAMES}
        given = {
            name: getattr(self, name)
            for name in (*POLICY_NAMES, *RESOURCE_NAMES, "progress_file")
            if getattr(self, name) is not None
        }
        values = parse_job_values(given, defaults)
        try:
            combine_user_rules(retry_on=values.retry_on, stop_on=values.stop_on)
        except ValueError as error:
            raise JobValueError(str(error), failure=FailureClass.INVALID_CONFIG) from error
        return values


def check_command(command: str | None) -> None:
    """Refuse a command that cannot be split into words.

    Raises:
        JobValueError: It is blank, or a quote is not closed.
    """
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise JobValueError(
            f"command is {command!r}: {error}. Close the quote, or escape it.",
            failure=FailureClass.INVALID_CONFIG,
        ) from error
    if not words:
        raise JobValueError(
            f"command is {command!r}, expected a program and its arguments. Leave it out to run"
            " the flow.",
            failure=FailureClass.INVALID_CONFIG,
        )


def _refusal_text(error: ValidationError | AttributeError) -> str:
    """One line per refused value, without pydantic's own decoration."""
    if isinstance(error, AttributeError):
        return "Job variables that cannot be used: env must map names to values. Correct it."
    problems = "; ".join(
        f"{'.'.join(str(part) for part in item['loc'])}{_shown(item)}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False)
    )
    return (
        f"Job variables that cannot be used: {problems}. Correct them in the deployment,"
        " the run or the work pool, and run it again."
    )


def _shown(item: Any) -> str:
    """The value, where it cannot hold a secret."""
    name, value = item["loc"][0] if item["loc"] else "", item.get("input")
    is_ours = name in (*POLICY_NAMES, *RESOURCE_NAMES)
    return f" = {value!r}" if is_ours or isinstance(value, bool | int | float) else ""
