"""A real Prefect server for the tests of what users see."""

from __future__ import annotations

from tests.support.shared_server import api, own_places, server

__all__ = ["api", "own_places", "server"]
