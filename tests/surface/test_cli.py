"""The console script as a whole, and how its commands say what went wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import httpx
import pytest
import typer
from prefect.exceptions import ObjectNotFound
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
        (RuntimeError("No Prefect API URL provided. Please set"), "cannot be reached"),
        (
            RuntimeError("Timed out while attempting to connect to ephemeral Prefect API server."),
            "set PREFECT_API_URL",
        ),
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


def test_error_that_is_not_the_apis_keeps_its_traceback() -> None:
    """A fault of ours is not dressed up as a fault of the server."""
    with pytest.raises(RuntimeError, match="a bug"), api_errors():
        raise RuntimeError("a bug")


def test_command_error_ends_with_its_own_exit_code() -> None:
    """2 stands for input that was refused before anything started."""
    with pytest.raises(typer.Exit) as raised, api_errors():
        raise CommandError("no such pool", exit_code=2)
    assert raised.value.exit_code == 2
