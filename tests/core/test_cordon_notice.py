"""A cordon that keeps runs waiting is said: once by the worker, and once on each run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.attempts.cordon_notice import CordonNotice
from prefect_heteroflow.attempts.placement import Placements
from prefect_heteroflow.core.resources import Cluster, Node
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.settings import HeteroflowSettings

NODE = Node(name="a", pool="p", memory_mb=4096, cordoned=True, cordon_reason="fan broken")
OTHER = Node(name="b", pool="p", memory_mb=4096)
SAID = (
    "Runs of pool p are left alone: node a is cordoned (fan broken)."
    " `heteroflow node uncordon a` ends that."
)
TOLD = (
    "The run waits: node a is cordoned (fan broken), and no other node of pool p takes it."
    " `heteroflow node uncordon a` lets it start."
)


class Log(logging.LoggerAdapter[logging.Logger]):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"))
        self.said: list[str] = []

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        self.said.append(str(msg) % args)


class Bed:
    """The placements of one worker, with its log and that of each run."""

    def __init__(self) -> None:
        self.worker, self.runs = Log(), Log()
        notice = CordonNotice(self.worker, lambda run: self.runs)
        client = cast("PrefectClient", None)  # none of the runs has a deployment
        self.placements = Placements(client, HeteroflowSettings(), notice)

    async def offer(
        self, node: Node, run: FlowRun, others: Sequence[Node] = (), times: int = 1
    ) -> list[bool]:
        cluster = Cluster(nodes=(node, *others))
        return [await self.placements.is_for(node, run, cluster, {}) for _ in range(times)]


def new_run(**values: Any) -> FlowRun:
    return FlowRun(flow_id=uuid4(), next_scheduled_start_time=utc_now(), **values)


async def test_run_that_only_a_cordoned_node_could_take_says_so_once() -> None:
    bed, run = Bed(), new_run()
    assert await bed.offer(NODE, run, times=3) == [False] * 3
    assert bed.runs.said == [TOLD]


async def test_worker_of_a_cordoned_node_says_once_that_it_leaves_runs_alone() -> None:
    bed = Bed()
    for run in (new_run(), new_run()):
        await bed.offer(NODE, run, times=2)
    assert bed.worker.said == [SAID]


async def test_next_cordon_is_said_again_but_not_to_the_same_run() -> None:
    bed, run = Bed(), new_run()
    free = Node(name="a", pool="p", memory_mb=4096)
    assert await bed.offer(NODE, run) == [False]
    assert await bed.offer(free, run) == [True]
    assert await bed.offer(NODE, run) == [False]
    assert (bed.worker.said, bed.runs.said) == ([SAID, SAID], [TOLD])


@pytest.mark.parametrize(
    ("variables", "others", "told"),
    [
        pytest.param({}, [OTHER], [], id="another takes it"),
        pytest.param({"memory_mb": 8192}, [OTHER], [TOLD], id="too large for the other"),
        pytest.param(
            {"placement": {"prefer": "a", "avoid": ["b"], "strict": True}},
            [OTHER],
            [TOLD],
            id="it must not go to the other",
        ),
        pytest.param({"memory_mb": "much"}, [OTHER], [], id="the other refuses it"),
    ],
)
async def test_run_is_told_that_it_waits_only_if_no_other_node_takes_it(
    variables: dict[str, Any], others: list[Node], told: list[str]
) -> None:
    bed = Bed()
    assert await bed.offer(NODE, new_run(job_variables=variables), others) == [False]
    assert bed.runs.said == told


async def test_run_that_is_not_due_yet_is_not_told_that_it_waits_for_the_node() -> None:
    bed, run = Bed(), new_run()
    run.next_scheduled_start_time = utc_now() + timedelta(seconds=8)
    assert await bed.offer(NODE, run) == [False]
    assert (bed.worker.said, bed.runs.said) == ([], [])
