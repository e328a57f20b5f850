"""What counts as silence of the Docker engine, and what as its answer."""

from __future__ import annotations

import docker.errors
import pytest
import requests

from prefect_heteroflow.infra.container_engine import is_away


def answered(status: int) -> docker.errors.APIError:
    response = requests.Response()
    response.status_code = status
    return docker.errors.APIError("an answer", response=response)


def wrapped(cause: Exception | None) -> RuntimeError:
    """As prefect-docker raises it."""
    error = RuntimeError("Could not connect to Docker.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (requests.exceptions.ConnectionError(), True),
        (requests.exceptions.ReadTimeout(), True),
        (ConnectionResetError(), True),
        (docker.errors.DockerException("Error while fetching server API version"), True),
        (wrapped(docker.errors.DockerException("no socket")), True),
        (wrapped(None), False),
        (answered(404), False),
        (answered(500), False),
        (ValueError("a bad name"), False),
    ],
    ids=str,
)
def test_engine_is_away_when_nobody_answered(error: Exception, away: bool) -> None:
    assert is_away(error) is away
