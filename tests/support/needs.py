"""What happens to a test whose machine lacks something: a skip here, a failure in CI."""

from __future__ import annotations

import os

import pytest

REQUIRE = "HETEROFLOW_REQUIRE_DOCKER"


def need(lacking: str | None) -> None:
    """Skip the test with the reason `lacking`; fail it where everything must be there.

    That is in CI (`CI=true`) and with `HETEROFLOW_REQUIRE_DOCKER=1`. `None` lets it run.
    """
    if lacking is None:
        return
    if os.environ.get("CI") == "true" or os.environ.get(REQUIRE) == "1":
        pytest.fail(f"cannot run here, and must: {lacking}", pytrace=False)
    pytest.skip(lacking)
