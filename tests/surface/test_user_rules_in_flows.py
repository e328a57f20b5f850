"""The user's own rules count for flows too: what a flow has said, and how it ends by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "own-rules"
SAID = "loss is nan"


@pytest.fixture(scope="module")
def runs(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Runs of all cases, side by side on one worker."""
    api.create_pool(POOL, "heteroflow-process")
    says = api.deploy("says_and_raises", POOL, name="rules")

    def submit(kind: str, **variables: Any) -> str:
        values = {"memory_mb": 256, "max_retries": 1, "retry_delay": 0, **variables}
        return api.submit(says, {"text": SAID, "kind": kind}, values)

    root = tmp_path_factory.mktemp("rules")
    with Worker(server, root, pool=POOL, node="own-rules", memory_mb=4096):
        yield {
            "retry-printed": submit("printed", retry_on=[SAID]),
            "retry-logged": submit("logged", retry_on=[SAID]),
            "retry-exit": submit("exit", retry_on=[SAID]),
            "retry-near-miss": submit("printed", retry_on=["loss is inf"]),
            "stop-transient": submit("transient", stop_on=[SAID]),
            "stop-printed": submit("printed", stop_on=[SAID]),
            "stop-exit": submit("exit", stop_on=[SAID]),
            "exit-alone": submit("exit", retry_on=["loss is inf"]),
            **{
                name: api.submit(api.deploy(name, POOL, name="rules"))
                for name in ("too_slow", "too_slow_async")
            },
        }


@pytest.mark.parametrize(
    ("case", "attempts", "ending"),
    [
        ("retry-printed", 2, "Failed"),
        ("retry-logged", 2, "Failed"),
        ("retry-exit", 2, "Crashed"),
        ("retry-near-miss", 1, "Failed"),
        ("stop-transient", 1, "PermanentFailure"),
        ("stop-printed", 1, "PermanentFailure"),
        ("stop-exit", 1, "PermanentFailure"),
        ("exit-alone", 1, "Crashed"),
    ],
)
def test_rule_counts_for_what_the_flow_has_said(
    api: Api, runs: dict[str, str], case: str, attempts: int, ending: str
) -> None:
    end = api.wait_end(runs[case])
    assert (len(api.rows(runs[case])), end.name) == (attempts, ending)


@pytest.mark.parametrize("name", ["too_slow", "too_slow_async"])
def test_flow_that_ran_longer_than_its_own_limit_is_no_fault_of_the_network(
    api: Api, runs: dict[str, str], name: str
) -> None:
    assert api.wait_end(runs[name]).name == "TimedOut"
    (row,) = api.rows(runs[name])
    assert row["failure"] == "ResourceLimitExceeded"
