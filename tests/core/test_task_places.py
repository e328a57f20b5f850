"""Where an attempt of a task runs: within its flow run, or beside it."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.policy import Decision, Ending, Place, Retry, Stop
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.task_places import (
    asks_text,
    has_text,
    is_at_home,
    places_beside,
    room_for_bodies,
    roomier,
)
from tests.core.policy_cases import cluster, node

HOME = Node(name="vm", pool="cpu", memory_mb=600)
VM = Node(name="vm", pool="cpu", memory_mb=24105)
STOP = Stop(ending=Ending.PERMANENT_FAILURE, reason="no")


def retry(memory_mb: int, place: Place | None = None) -> Retry:
    return Retry(
        resources=Resources(memory_mb=memory_mb),
        place=place or Place(pool="cpu", node="vm"),
        delay_seconds=0.0,
        reason="again",
    )


def test_node_of_the_flow_run_is_seen_as_its_worker_published_it() -> None:
    known = cluster(VM, node("other", "cpu"))
    assert places_beside(HOME, known) == known


@pytest.mark.parametrize(
    "known",
    [Cluster(), cluster(node("vm", "gpu")), cluster(node("other", "cpu"))],
    ids=["nothing is known", "its name in another pool", "another node of its pool"],
)
def test_flow_run_stands_for_its_machine_where_no_worker_has_published_that(
    known: Cluster,
) -> None:
    assert places_beside(HOME, known).nodes == (HOME, *known.nodes)


@pytest.mark.parametrize(
    ("memory_mb", "place", "at_home"),
    [
        (600, Place(pool="cpu", node="vm"), True),
        (600, Place(pool="cpu"), True),
        (601, Place(pool="cpu", node="vm"), False),
        (600, Place(pool="cpu", node="other"), False),
        (600, Place(pool="gpu", node="vm"), False),
        (600, Place(pool="cpu", waits_for="other"), False),
    ],
    ids=["fits", "any node", "too large", "another node", "another pool", "waits for a node"],
)
def test_attempt_is_at_home_if_it_goes_to_that_node_and_fits_the_flow_run(
    memory_mb: int, place: Place, at_home: bool
) -> None:
    assert is_at_home(place, Resources(memory_mb=memory_mb), HOME) is at_home


@pytest.mark.parametrize(
    ("at_home", "beside", "expected"),
    [
        (STOP, retry(1200), retry(1200)),
        (retry(600), retry(1200), retry(1200)),
        (retry(600), retry(500), retry(600)),
        (retry(600), STOP, retry(600)),
        (
            retry(600),
            retry(1200, Place(pool="cpu", waits_for="big")),
            retry(600),
        ),
        (STOP, STOP, STOP),
    ],
    ids=[
        "nothing more at home",
        "less at home",
        "more at home",
        "nothing beside",
        "a wait beside",
        "nothing at all",
    ],
)
def test_next_attempt_is_where_it_is_given_more(
    at_home: Decision, beside: Decision, expected: Decision
) -> None:
    assert roomier(at_home, beside) == expected


def test_what_the_flow_run_has_is_not_called_what_its_node_has() -> None:
    text = "this flow run has 600 MB of memory and GPUs: none (on vm)"
    assert has_text(HOME) == text


def test_what_the_flows_own_process_uses_cannot_be_promised_to_tasks() -> None:
    assert room_for_bodies(HOME, 170).memory_mb == 430


def test_flow_run_that_its_own_process_fills_has_room_for_the_least_of_tasks() -> None:
    assert room_for_bodies(HOME, 700).memory_mb == 6


def test_what_can_be_promised_of_the_flow_run_is_told_where_it_is_less() -> None:
    text = has_text(HOME, room_for_bodies(HOME, 170))
    assert text.startswith(
        "this flow run has 600 MB of memory (430 MB of it beside its own process)"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Resources(memory_mb=1200), "memory_mb=1200"),
        (
            Resources(memory_mb=1200, gpu_count=1, gpu_memory_mb=8192),
            "memory_mb=1200, gpu_count=1, gpu_memory_mb=8192",
        ),
        (Resources(memory_mb=1200, gpu_count=3), "memory_mb=1200, gpu_count=3"),
    ],
    ids=["memory alone", "a GPU", "any three GPUs"],
)
def test_what_is_asked_for_is_told_as_it_is_written(asked: Resources, said: str) -> None:
    assert asks_text(asked) == said
