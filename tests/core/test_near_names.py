"""Names that were mistyped, and the ones that were meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_heteroflow.core.job_values import JOB_VARIABLE_NAMES
from prefect_heteroflow.core.near_names import doubtful_variables, near_name
from prefect_heteroflow.job_configuration import RetryVariables
from prefect_heteroflow.setting_names import unknown_settings

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


def test_name_that_is_like_no_known_one_has_no_near_one() -> None:
    assert near_name("colour", ["max_retries", "memory_mb"]) is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("max_retrys", "max_retries"), ("memory", "memory_mb"), ("Memory_MB", "memory_mb")],
)
def test_job_variable_that_is_close_to_one_of_ours_is_told_with_it(typed: str, meant: str) -> None:
    (said,) = doubtful_variables([typed], ["image", *JOB_VARIABLE_NAMES], pool="cpu")
    assert said == (
        f"{typed} is no job variable of pool 'cpu' and is ignored; did you mean {meant}?"
    )


@pytest.mark.parametrize("name", ["team", "node_selector", "labels", "volume", "timeout"])
def test_foreign_job_variable_is_left_alone(name: str) -> None:
    """Others put variables of their own into deployments."""
    assert doubtful_variables([name], JOB_VARIABLE_NAMES, pool="cpu") == ()


def test_variable_that_the_pool_knows_is_no_typo() -> None:
    """A template may have one whose name is close to ours."""
    assert doubtful_variables(["memory"], ["memory"], pool="cpu") == ()


def test_names_of_job_variables_are_those_of_the_template() -> None:
    assert set(JOB_VARIABLE_NAMES) == set(RetryVariables.model_fields)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder: settings are read from its files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_environment_variable_that_is_no_setting_is_told_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be a secret."""
    monkeypatch.setenv(f"{PREFIX}MAX_RETRY", "hunter2")
    assert unknown_settings() == (
        f"{PREFIX}MAX_RETRY is no setting of prefect-heteroflow and is ignored; did you mean"
        " MAX_RETRIES?",
    )


@pytest.mark.usefixtures("folder")
def test_environment_variable_that_is_like_no_setting_is_told_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"{PREFIX}XYZZY", "1")
    assert unknown_settings() == (
        f"{PREFIX}XYZZY is no setting of prefect-heteroflow and is ignored.",
    )


@pytest.mark.usefixtures("folder")
def test_setting_that_exists_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """However its name is written: Prefect's settings do not mind the case."""
    monkeypatch.setenv(f"{PREFIX}MAX_RETRIES", "2")
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY".lower(), "2")
    assert unknown_settings() == ()


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("prefect.toml", "integrations.heteroflow"),
        ("pyproject.toml", "tool.prefect.integrations.heteroflow"),
    ],
)
def test_key_of_a_file_that_is_no_setting_is_told_with_its_file(
    folder: Path, file: str, table: str
) -> None:
    text = f'[{table}]\nretry_dellay = "hunter2"\nmax_retries = 2\n'
    (folder / file).write_text(text, encoding="utf-8")
    assert unknown_settings() == (
        f"retry_dellay in [{table}] of {file} is no setting of prefect-heteroflow and is ignored;"
        " did you mean retry_delay?",
    )


def test_name_in_a_dotenv_file_is_told(folder: Path) -> None:
    (folder / ".env").write_text(f"{PREFIX}NODENAME=a\n", encoding="utf-8")
    (said,) = unknown_settings()
    assert said.endswith("did you mean NODE_NAME?")
