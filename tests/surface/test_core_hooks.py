"""The private methods of Prefect and prefect-docker that we override: what we rely on is there.

Each of these fails loudly when Prefect changes what the override stands on.
"""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from prefect.cache_policies import TaskSource
from prefect.events.utilities import emit_event
from prefect.futures import PrefectConcurrentFuture
from prefect.logging.handlers import APILogHandler
from prefect.task_engine import AsyncTaskRunEngine, SyncTaskRunEngine
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.engine import resolve_to_final_result
from prefect.workers.base import BaseJobConfiguration, BaseWorker
from prefect.workers.process import ProcessJobConfiguration
from prefect_docker.worker import DockerWorker

from prefect_heteroflow.job_configuration import RetryConfiguration
from prefect_heteroflow.process_worker import HeteroflowProcessWorker
from prefect_heteroflow.retrying_worker import RetryingWorker
from prefect_heteroflow.worker import HeteroflowJobConfiguration, HeteroflowWorker
from tests.support.prefect_server import PrefectServer

OVERRIDES = [
    (RetryingWorker, BaseWorker, "_submit_scheduled_flow_runs"),
    (RetryingWorker, BaseWorker, "get_and_submit_flow_runs"),
    (RetryingWorker, BaseWorker, "sync_with_backend"),
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


@pytest.mark.parametrize(
    "label",
    [
        "prefect.worker.name",
        "prefect.worker.type",
        "prefect.work-pool.name",
        "prefect.work-pool.id",
    ],
)
def test_core_still_gives_a_run_the_labels_that_we_give_it_in_its_stead(label: str) -> None:
    source = inspect.getsource(BaseWorker._give_worker_labels_to_flow_run)
    assert f'"{label}"' in source
    assert source.count('"prefect.') == 4


def test_create_container_gets_the_labels_that_tell_which_run_it_is_for() -> None:
    assert "labels=configuration.labels" in inspect.getsource(
        DockerWorker._build_container_settings
    )


def test_process_configuration_fills_in_a_command_that_we_replace() -> None:
    assert "self.command" in inspect.getsource(ProcessJobConfiguration.prepare_for_flow_run)


@pytest.mark.parametrize("worker", [HeteroflowWorker, HeteroflowProcessWorker])
def test_worker_type_is_found_by_its_name(worker: type[BaseWorker]) -> None:  # type: ignore[type-arg]
    assert BaseWorker.get_worker_class_from_type(worker.type) is worker


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (SyncTaskRunEngine.call_task_fn, "call_with_parameters(self.task.fn, parameters)"),
        (AsyncTaskRunEngine.call_task_fn, "call_with_parameters(self.task.fn, parameters)"),
        (SyncTaskRunEngine.handle_timeout, "isinstance(exc, TaskRunTimeoutError)"),
        (ThreadPoolTaskRunner.submit, "run_task_sync"),
        (ThreadPoolTaskRunner.__exit__, "self.cancel_all()"),
        (TaskSource.compute_key, "source_code"),
        (emit_event, "ProcessPoolForwardingEventsClient"),
        (APILogHandler, "emit_api_log("),
        (resolve_to_final_result, "state.result(raise_on_failure=False"),
        (SyncTaskRunEngine.transaction_context, "self.task.refresh_cache"),
        (SyncTaskRunEngine.compute_transaction_key, "self.task.cache_policy.compute_key("),
        (PrefectConcurrentFuture.result, "self._final_state"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__qualname__,
)
def test_engine_still_does_what_the_task_runner_stands_on(where: object, words: str) -> None:
    """It is given a copy of the task, and children hand logs and events to the flow's process."""
    assert words in inspect.getsource(where)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [SyncTaskRunEngine, AsyncTaskRunEngine])
def test_engine_asks_the_condition_before_it_reads_the_delay(engine: type) -> None:
    """The condition sets the delay of the decision on the task."""
    source = inspect.getsource(engine.handle_retry)
    assert 0 < source.index("self.can_retry(") < source.index("self.task.retry_delay_seconds")


def test_template_runs_no_thread_when_it_forks(server: PrefectServer) -> None:
    """Importing what a child needs starts none; a fork of a thread's lock would hang."""
    script = (
        "import threading; from prefect_heteroflow.task_runner import child;"
        " child.prepare_template(); print(threading.active_count())"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, env=server.env(), text=True).strip() == "1"


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


@pytest.mark.parametrize(
    "first",
    [
        "import docker",
        "from prefect.utilities.importtools import lazy_import; lazy_import('docker')",
    ],
    ids=["docker", "lazily"],
)
def test_errors_of_the_engine_are_those_that_are_caught_whoever_imported_docker_first(
    first: str,
) -> None:
    """Prefect's lazy import makes the next `import docker.errors` load it a second time."""
    look = (
        "import docker.errors, prefect_heteroflow.worker; from docker.api import client;"
        " raised = client.create_api_error_from_http_exception.__globals__;"
        " assert all(raised[name] is getattr(docker.errors, name)"
        " for name in ('APIError', 'NotFound', 'ImageNotFound', 'DockerException'))"
    )
    subprocess.run([sys.executable, "-c", f"{first}; {look}"], check=True, timeout=120)
