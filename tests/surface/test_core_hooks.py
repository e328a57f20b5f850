"""The private methods of Prefect and prefect-docker that we override: what we rely on is there.

Each of these fails loudly when Prefect changes what the override stands on.
"""

from __future__ import annotations

import inspect

import pytest
from prefect.workers.base import BaseJobConfiguration, BaseWorker
from prefect.workers.process import ProcessJobConfiguration
from prefect_docker.worker import DockerWorker

from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.process_worker import HeteroflowProcessWorker
from prefect_heteroflow.retrying_worker import RetryingWorker
from prefect_heteroflow.worker import HeteroflowJobConfiguration, HeteroflowWorker

OVERRIDES = [
    (RetryingWorker, BaseWorker, "_submit_scheduled_flow_runs"),
    (RetryingWorker, BaseWorker, "_cancel_run"),
    (RetryingWorker, BaseWorker, "_propose_crashed_state"),
    (RetryingWorker, BaseWorker, "_give_worker_labels_to_flow_run"),
    (HeteroflowWorker, DockerWorker, "_build_container_settings"),
    (HeteroflowWorker, DockerWorker, "_create_container"),
    (HeteroflowJobConfiguration, BaseJobConfiguration, "_base_flow_run_command"),
    (RetryConfiguration, BaseJobConfiguration, "prepare_for_flow_run"),
    (RetryConfiguration, BaseJobConfiguration, "resolve_for_flow_run"),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "name"), OVERRIDES, ids=[f"{o[1].__name__}.{o[2]}" for o in OVERRIDES]
)
def test_overridden_method_still_has_the_parameters_we_override(
    ours: type, theirs: type, name: str
) -> None:
    def parameters(owner: type) -> list[str]:
        return list(inspect.signature(getattr(owner, name)).parameters)

    assert parameters(ours) == parameters(theirs)


@pytest.mark.parametrize(
    ("caller", "called"),
    [
        (BaseWorker.get_and_submit_flow_runs, "self._submit_scheduled_flow_runs("),
        (BaseWorker._setup_cancellation_observer, "self._cancel_run"),
        (BaseWorker._submit_run_and_capture_errors, "self._give_worker_labels_to_flow_run("),
        (BaseWorker._submit_run_and_capture_errors, "Failed to submit flow run to infrastructure:"),
        (DockerWorker._create_and_start_container, "self._create_container("),
        (DockerWorker._create_and_start_container, "self._build_container_settings("),
        (BaseJobConfiguration.prepare_for_flow_run, "self._base_flow_run_command()"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__qualname__,
)
def test_core_still_calls_what_we_override(caller: object, called: str) -> None:
    assert called in inspect.getsource(caller)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("_runs_task_group", "_work_pool", "_client", "_work_pool_name"),
        *("_submitting_flow_run_ids", "_limiter", "_release_limit_slot"),
    ],
)
def test_attribute_of_the_core_worker_that_we_read_is_still_there(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(BaseWorker)


def test_create_container_gets_the_labels_that_tell_which_run_it_is_for() -> None:
    assert "labels=configuration.labels" in inspect.getsource(
        DockerWorker._build_container_settings
    )


def test_process_configuration_fills_in_a_command_that_we_replace() -> None:
    assert "self.command" in inspect.getsource(ProcessJobConfiguration.prepare_for_flow_run)


@pytest.mark.parametrize("worker", [HeteroflowWorker, HeteroflowProcessWorker])
def test_worker_type_is_found_by_its_name(worker: type[BaseWorker]) -> None:  # type: ignore[type-arg]
    assert BaseWorker.get_worker_class_from_type(worker.type) is worker


def test_worker_types_never_change() -> None:
    """They are stored on every pool."""
    assert (HeteroflowWorker.type, HeteroflowProcessWorker.type) == (
        "heteroflow",
        "heteroflow-process",
    )


@pytest.mark.parametrize("worker", [HeteroflowWorker, HeteroflowProcessWorker])
def test_every_job_variable_has_a_title_and_a_description(worker: type[BaseWorker]) -> None:  # type: ignore[type-arg]
    properties = worker.get_default_base_job_template()["variables"]["properties"]
    bare = [n for n, p in properties.items() if not p.get("title") or not p.get("description")]
    assert bare == []


@pytest.mark.parametrize("worker", [HeteroflowWorker, HeteroflowProcessWorker])
def test_every_placeholder_of_the_template_is_a_variable(worker: type[BaseWorker]) -> None:  # type: ignore[type-arg]
    """The server refuses a pool whose template names a variable that it does not declare."""
    template = worker.get_default_base_job_template()
    named = {
        value.strip("{} ") for value in template["job_configuration"].values() if "{{" in str(value)
    }
    assert named <= set(template["variables"]["properties"])
