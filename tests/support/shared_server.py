"""Fixtures of both tiers that need a Prefect server; each `conftest.py` takes them in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.prefect_server import PrefectServer, forget_places
from tests.support.workers import Api

__all__ = ["api", "own_places", "server"]

_SHARED: list[PrefectServer] = []


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One server for all tests; a test that stops or kills it needs one of its own."""
    with PrefectServer(tmp_path_factory.mktemp("server")) as started:
        _SHARED.append(started)
        yield started
        _SHARED.remove(started)


@pytest.fixture(scope="module", autouse=True)
def own_places() -> Iterator[None]:
    """Each file of tests leaves the shared server without nodes and declared pools."""
    yield
    for started in _SHARED:
        forget_places(started)


@pytest.fixture(scope="session")
def api(server: PrefectServer) -> Iterator[Api]:
    """The REST API of `server`."""
    with contextlib.closing(Api(server)) as found:
        yield found
