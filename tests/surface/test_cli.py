"""The console script as a whole, and how its commands say what went wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from uuid import UUID

import httpx
import pytest
import typer
from click.testing import Result
from prefect.exceptions import ObjectNotFound
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from typer.testing import CliRunner

from prefect_heteroflow.cli import app
from prefect_heteroflow.cli.api_errors import CommandError, api_error_text, api_errors

SLOW = ("prefect", "httpx", "docker", "pydantic")
REQUEST = httpx.Request("GET", "http://server/api/flow_runs/1")


def status_error(status: int, text: str) -> httpx.HTTPStatusError:
    response = httpx.Response(status, text=text, request=REQUEST)
    return httpx.HTTPStatusError("refused", request=REQUEST, response=response)


def test_help_names_every_command() -> None:
    """Whoever types `heteroflow` finds them all."""
    output = CliRunner().invoke(app, ["--help"]).stdout
    for command in ("submit", "retries", "nodes", "pool", "breaker", "diagnose", "rules"):
        assert f" {command} " in output


def test_version_is_that_of_the_package() -> None:
    """It comes from the metadata alone."""
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == version("prefect-heteroflow")


def test_help_imports_nothing_slow() -> None:
    """Prefect takes seconds to import; `--help` does without."""
    script = (
        "import sys; from prefect_heteroflow.cli import app; app(['--help'], standalone_mode=False)"
        f"; print('slow:', [name for name in {SLOW!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "slow: []"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ConnectError("refused"), "cannot be reached (refused)"),
        (httpx.ReadTimeout(""), "cannot be reached (ReadTimeout)"),
        (RuntimeError("Failed to reach API at http://server/api"), "cannot be reached"),
        (status_error(401, ""), "PREFECT_API_AUTH_STRING"),
        (status_error(422, "memory_mb\nis wrong"), "answered 422 to GET /api/flow_runs/1"),
        (ObjectNotFound(status_error(404, ""), "no such thing"), "no such thing"),
        (ObjectNotFound(status_error(404, "")), "404"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_error_of_the_api_is_one_line(error: Exception, said: str) -> None:
    """It says what happened and what to do."""
    text = api_error_text(error)
    assert text is not None
    assert said in text
    assert "\n" not in text


NEED_AN_API = [
    ["nodes"],
    ["nodes", "--json"],
    ["nodes", "cordon", "n"],
    ["nodes", "uncordon", "n"],
    ["pool", "ls"],
    ["pool", "tag", "p", "--memory-mb", "1"],
    ["pool", "untag", "p"],
    ["attempts", "some-run"],
    ["retries", "some-run"],
    ["retries", str(UUID(int=1)), "--json"],
    ["submit", "--image", "alpine", "--command", "true", "--pool", "p"],
]


def without_api(arguments: list[str], *, ephemeral: bool, url: str | None = None) -> Result:
    settings = {PREFECT_API_URL: url, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: ephemeral}
    with temporary_settings(settings):
        return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("ephemeral", [True, False])
@pytest.mark.parametrize("arguments", NEED_AN_API, ids=" ".join)
def test_command_without_a_configured_api_says_what_to_set(
    arguments: list[str], ephemeral: bool
) -> None:
    """Prefect would start a temporary server, and the answer would be about an empty world."""
    result = without_api(arguments, ephemeral=ephemeral)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: No Prefect API is configured")
    assert "prefect server start" in result.stderr
    assert "prefect config set PREFECT_API_URL=" in result.stderr


def test_empty_api_url_is_no_configured_api() -> None:
    """`PREFECT_API_URL=` in the environment: Prefect's client takes it for none."""
    result = without_api(["nodes"], ephemeral=True, url="")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: No Prefect API is configured")


@pytest.mark.parametrize("arguments", [["rules"], ["diagnose", "-"]], ids=" ".join)
def test_command_that_needs_no_server_works_without_an_api(arguments: list[str]) -> None:
    """A log can be looked at on any machine."""
    settings = {PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}
    with temporary_settings(settings):
        result = CliRunner().invoke(app, arguments, input="Killed\n")
    assert result.exit_code == 0, result.stderr


def test_error_that_is_not_the_apis_keeps_its_traceback() -> None:
    """A fault of ours is not dressed up as a fault of the server."""
    with pytest.raises(RuntimeError, match="a bug"), api_errors():
        raise RuntimeError("a bug")


def test_command_error_ends_with_its_own_exit_code() -> None:
    """2 stands for input that was refused before anything started."""
    with pytest.raises(typer.Exit) as raised, api_errors():
        raise CommandError("no such pool", exit_code=2)
    assert raised.value.exit_code == 2
