"""Settings that cannot be used are refused where they are read, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect import flow
from pydantic import ValidationError

from prefect_heteroflow import HeteroTaskRunner
from prefect_heteroflow.settings import HeteroflowSettings, settings_problem
from tests.support import runner_tasks
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here
from tests.support.workers import Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MAX_RETRIES", "-7", "a whole number, from -1 to 100000 (-1 never gives up"),
        ("MAX_RETRIES", "1000000", "from -1 to 100000"),
        ("INFRASTRUCTURE_RETRIES", "-2", "a whole number"),
        ("RETRY_DELAY", "-1", "a number of seconds"),
        ("RETRY_DELAY", "nan", "a number of seconds"),
        ("MAX_RETRY_DELAY", "inf", "a number of seconds"),
        ("RETRY_JITTER", "inf", "a number of seconds"),
        ("BACKOFF_MULTIPLIER", "0", "from 1 to"),
        ("ESCALATION_DELAY", "-0.5", "a number of seconds"),
        ("OOM_MEMORY_LIMIT", "0", "a whole number of MiB"),
        ("RETRY_STRATEGY", "sideways", "retry_new_node"),
        ("RETRY_EXCEPTIONS", "not a type", "a list of exception types"),
        ("CLEANUP_PATTERNS", "../*.lock", "leads out of the attempt"),
        ("NODE_LIVENESS_SECONDS", "0", "greater than 0"),
        ("NODE_LIVENESS_SECONDS", "nan", "finite"),
        ("PLACEMENT_GRACE_SECONDS", "-5", "greater than or equal to 0"),
        ("CANCEL_GRACE_SECONDS", "-1", "greater than or equal to 0"),
        ("BREAKER_WINDOW", "0", "greater than 0"),
        ("BREAKER_TRIAL_TIMEOUT", "0", "greater than 0"),
        ("BREAKER_COOLDOWN", "-1", "greater than or equal to 0"),
        ("NO_PROGRESS_LIMIT", "1000000000000", "less than or equal to 100000"),
        ("NODE_MEMORY_MB", "1073741825", "less than or equal to 1073741824"),
        ("LOST_CONTACT_TIMEOUT", "0", "greater than 0"),
    ],
)
def test_setting_out_of_its_range_is_refused_with_its_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(f"{PREFIX}{name}", value)
    with pytest.raises(ValidationError) as caught:
        HeteroflowSettings()
    said = settings_problem(caught.value)
    assert f"{PREFIX}{name} is " in said
    assert allowed in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_RETRIES", "-1"),
        ("MAX_RETRIES", "0"),
        ("MAX_RETRIES", "100000"),
        ("RETRY_DELAY", "0"),
        ("BREAKER_WINDOW", "0.5"),
        ("BREAKER_COOLDOWN", "0"),
        ("NO_PROGRESS_LIMIT", "0"),
        ("BACKOFF_MULTIPLIER", "1"),
        ("OOM_MEMORY_LIMIT", "512"),
        ("RETRY_STRATEGY", "no_retry"),
        ("RETRY_EXCEPTIONS", "ValueError"),
        ("CLEANUP_PATTERNS", ""),
        ("NODE_LIVENESS_SECONDS", "0.5"),
        ("PLACEMENT_GRACE_SECONDS", "0"),
    ],
)
def test_setting_at_the_edge_of_its_range_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"{PREFIX}{name}", value)
    HeteroflowSettings()


def test_worker_with_a_setting_out_of_range_does_not_start(
    server: PrefectServer, tmp_path: Path
) -> None:
    settings = {f"{PREFIX}MAX_RETRIES": "-7"}
    worker = Worker(server, tmp_path, pool="bad-settings", node="bad", settings=settings)
    worker.start(wait=False)
    assert worker.wait_end() == 1
    assert f"{PREFIX}MAX_RETRIES is " in worker.log()
    assert "Traceback" not in worker.log()


def test_worker_warns_once_of_names_that_are_no_settings(
    server: PrefectServer, tmp_path: Path
) -> None:
    """Prefect ignores them without a word. The value may be a secret."""
    text = "[integrations.heteroflow]\nretry_dellay = 7\n"
    (tmp_path / "prefect.toml").write_text(text, encoding="utf-8")
    settings = {f"{PREFIX}MAX_RETRY": "hunter2"}
    with Worker(
        server, tmp_path, pool="typos", node="typos", settings=settings, folder=tmp_path
    ) as worker:
        log = worker.log()
    assert log.count("MAX_RETRY is no setting of prefect-heteroflow and is ignored; did you") == 1
    assert log.count("did you mean retry_delay?") == 1
    assert "hunter2" not in log


def test_task_runner_with_a_setting_out_of_range_says_which(
    server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY", "-1")

    @flow(task_runner=HeteroTaskRunner())
    def body() -> int:
        return runner_tasks.square.submit(2).result()

    with flows_run_here(server), pytest.raises(ValueError, match=f"{PREFIX}RETRY_DELAY is "):
        body()
