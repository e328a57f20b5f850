"""When an attempt that waits on another pool is given up: a clock, and what is known of nodes."""

from __future__ import annotations

import httpx
import pytest

from prefect_heteroflow.core.resources import Cluster, Node, Pool, Resources
from prefect_heteroflow.task_runner.wait_for_node import WaitForNode

ASKED = Resources(memory_mb=64)
LIVE = Cluster(nodes=(Node(name="a", pool="large", memory_mb=64, live=True),))
AWAY = Cluster(nodes=(Node(name="a", pool="large", memory_mb=64, live=False),))
CORDONED = Cluster(nodes=(Node(name="a", pool="large", memory_mb=64, cordoned=True),))
ONE_OF_TWO = Cluster(nodes=(*AWAY.nodes, Node(name="b", pool="large", memory_mb=64)))
OTHER_POOL = Cluster(nodes=(*AWAY.nodes, Node(name="b", pool="small", memory_mb=64)))
NO_NODE = Cluster()
PAUSED = Cluster(nodes=LIVE.nodes, pools=(Pool(name="large", paused=True),))
TOO_SMALL = Cluster(nodes=(*AWAY.nodes, Node(name="b", pool="large", memory_mb=32)))
OUTAGE = None


@pytest.mark.parametrize(
    ("seen", "in_vain_at"),
    [
        ([AWAY] * 6, 75),
        ([CORDONED] * 6, 75),
        ([LIVE, AWAY, AWAY, AWAY, AWAY, AWAY], 90),
        ([AWAY, AWAY, AWAY, LIVE, AWAY, AWAY], None),
        ([OTHER_POOL] * 6, 75),
        ([AWAY, OUTAGE, OUTAGE, OUTAGE, AWAY, AWAY], 75),
        ([ONE_OF_TWO] * 6, None),
        ([NO_NODE] * 6, None),
        ([OUTAGE] * 6, None),
        ([AWAY, AWAY, AWAY, AWAY], None),
    ],
    ids=[
        "away for the whole timeout",
        "cordoned for the whole timeout",
        "away from the second look on",
        "back in between",
        "only another pool has a live node",
        "an outage in between decides nothing",
        "one of two nodes is live",
        "a pool that has no node yet",
        "nothing is known",
        "near miss: not long enough",
    ],
)
def test_attempt_waits_in_vain_if_no_node_of_its_pool_takes_runs_for_the_timeout(
    seen: list[Cluster | None], in_vain_at: float | None
) -> None:
    looks = iter(seen)

    def read_cluster() -> Cluster:
        cluster = next(looks)
        if cluster is None:
            raise httpx.ConnectError("away")
        return cluster

    waiting = WaitForNode(
        "large", read_cluster, timeout_seconds=60, resources=ASKED, say=lambda _: None
    )
    times = [15.0 * number for number in range(len(seen) + 1)]  # the first only starts the clock
    answers = [at for at in times if waiting.is_in_vain(at)]
    assert (answers[0] if answers else None) == in_vain_at


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            AWAY,
            "each node of pool large is cordoned or not heard of; if none comes back, it is given"
            " up after 60 s",
        ),
        (NO_NODE, "pool large has no worker yet"),
        (PAUSED, "pool large is paused"),
        (TOO_SMALL, "no node of pool large that takes runs now is large enough for it"),
        (
            LIVE,
            "a of pool large would fit and has not taken it: no slot is free there. A flow run"
            " holds its own slot while it waits for its tasks, so this one may be what it waits"
            " for: raise `--limit` of the worker, or the concurrency limit of the pool or its"
            " queue",
        ),
    ],
    ids=["its nodes are away", "it has none", "paused", "the live one is too small", "no slot"],
)
def test_why_it_waits_is_said_once(cluster: Cluster, said: str) -> None:
    heard: list[str] = []
    waiting = WaitForNode(
        "large", lambda: cluster, timeout_seconds=60, resources=ASKED, say=heard.append
    )
    for at in range(0, 60, 15):
        waiting.is_in_vain(at)
    assert heard == [f"it waits: {said}"]


def test_attempt_that_a_worker_may_still_take_is_not_said_to_wait() -> None:
    """Workers poll every 10 s."""
    heard: list[str] = []
    waiting = WaitForNode(
        "large", lambda: LIVE, timeout_seconds=60, resources=ASKED, say=heard.append
    )
    for at in (0, 15, 29):
        waiting.is_in_vain(at)
    assert heard == []
