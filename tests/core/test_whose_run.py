"""Who settles a run that a worker has left: its node, nobody yet, or whoever finds it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from prefect_heteroflow.core.contact import Absence, Whose, absence_of, seen_again, whose
from prefect_heteroflow.core.resources import Cluster, Node, Pool


def node(name: str, *, live: bool = True, stopped: bool = False, pool: str = "pool") -> Node:
    return Node(name=name, pool=pool, memory_mb=1024, live=live, stopped=stopped)


LIVE, SILENT = node("live"), node("silent", live=False)
GONE, FOREIGN = node("gone", live=False, stopped=True), node("foreign", pool="other")


@pytest.mark.parametrize(
    ("facts", "looks", "expected"),
    [
        ({"left_by": "here"}, 1, Whose.OURS),
        ({"left_by": "there"}, 99, Whose.ANOTHERS),
        ({"taken_on": "here", "taker": "me"}, 1, Whose.OURS),
        ({"taken_on": "live", "taker": "me", "others": [LIVE]}, 99, Whose.ANOTHERS),
        ({"taker": "me"}, 1, Whose.OURS),
        ({"taker": "me", "others": [SILENT, FOREIGN]}, 1, Whose.OURS),
        ({"taker": "me", "others": [LIVE]}, 7, Whose.ANOTHERS),
        ({"taker": "you"}, 99, Whose.ANOTHERS),
        ({}, 1, Whose.OURS),
        ({"others": [GONE, FOREIGN]}, 1, Whose.OURS),
        ({"others": [LIVE]}, 7, Whose.ANOTHERS),
        ({"others": [LIVE]}, 8, Whose.NOBODYS),
        ({"others": [SILENT]}, 39, Whose.ANOTHERS),
        ({"others": [SILENT]}, 40, Whose.NOBODYS),
        ({"others": [LIVE, SILENT, GONE]}, 39, Whose.ANOTHERS),
        ({"others": [LIVE, SILENT, GONE]}, 40, Whose.NOBODYS),
    ],
    ids=[
        "row of this node",
        "row of another node",
        "label of this node",
        "label of another node, whose worker has the same name",
        "label of this worker",
        "label of this worker, and no other live node",
        "label of this worker, or of another live one of the same name",
        "label of another worker",
        "alone",
        "the others were stopped",
        "live, and may be about to say so",
        "live, and does not look after it",
        "silent, not for long enough",
        "silent for long enough",
        "one of them silent, not for long enough",
        "one of them silent for long enough",
    ],
)
def test_run_is_settled_by_who_left_it_or_after_silence(
    facts: dict[str, Any], looks: int, expected: Whose
) -> None:
    """A worker that is only cut off from the API may still run it."""
    here = node("here")
    given = {"left_by": None, "taken_on": None, "taker": None, "others": [], **facts}
    found = whose(
        given["left_by"],
        taken_on=given["taken_on"],
        taker=given["taker"],
        worker_name="me",
        node=here,
        others=[here, *given["others"]],
        looks=looks,
        looks_of_silence=40,
    )
    assert found is expected


def test_looks_count_only_when_they_are_apart_in_time() -> None:
    """A worker that starts looks twice within a second."""
    state, seen = uuid4(), None
    counts = []
    for now in (0.0, 0.5, 15.0, 16.0, 31.0):
        seen = seen_again(seen, state, now=now, apart_seconds=10.0)
        counts.append(seen.looks)
    assert counts == [1, 1, 2, 2, 3]


def test_looks_count_from_one_again_when_the_run_has_moved() -> None:
    before = seen_again(None, uuid4(), now=0.0, apart_seconds=10.0)
    assert seen_again(before, uuid4(), now=15.0, apart_seconds=10.0).looks == 1


CHILDREN, CONTAINERS = "heteroflow-process", "heteroflow"
POOLS = tuple(
    Pool(name=name, worker_type=kind)
    for name, kind in [("a", CHILDREN), ("b", CHILDREN), ("c", CONTAINERS), ("d", CONTAINERS)]
)


def there(pool: str, *former: str, live: bool = True, stopped: bool = False) -> Node:
    return Node(
        name="n", pool=pool, memory_mb=1, live=live, stopped=stopped, former_pools=tuple(former)
    )


@pytest.mark.parametrize(
    ("node", "pool", "expected"),
    [
        (None, "a", None),
        (there("a"), "a", None),
        (there("a", live=False), "a", Absence(is_over=False)),
        (there("a", live=False, stopped=True), "a", Absence(is_over=True)),
        (there("c", live=False, stopped=True), "c", Absence(is_over=False)),
        (there("b", "a"), "a", None),
        (there("a", "b"), "a", None),
        (there("d", "c"), "c", None),
        (there("c", "a"), "a", None),
        (there("a", "c"), "c", Absence(is_over=False, moved_to="a")),
        (there("b", "a", live=False), "a", Absence(is_over=True, moved_to="b")),
        (there("d", "c", live=False), "c", Absence(is_over=False, moved_to="d")),
        (there("b"), "a", Absence(is_over=True, moved_to="b")),
    ],
    ids=[
        "unknown",
        "live",
        "silent",
        "stopped, and its children with it",
        "stopped, its containers go on",
        "moved: its worker settles what it had left",
        "moved there and back",
        "moved: its worker watches the containers again",
        "moved: children are no riddle to a worker that starts containers",
        "moved: its worker sees no containers",
        "moved and silent: the children had ended before",
        "moved and silent: the containers may go on",
        "moved, and nobody wrote down from where",
    ],
)
def test_nobody_looks_after_a_run_when_no_live_worker_has_the_nodes_name_and_sees_the_run(
    node: Node | None, pool: str, expected: Absence | None
) -> None:
    cluster = Cluster(nodes=() if node is None else (node,), pools=POOLS)
    assert absence_of("n", pool, cluster) == expected


def test_pool_that_its_only_node_has_left_takes_no_runs() -> None:
    """Planned attempts that wait in it are moved on, as when its node is away."""
    assert Cluster(nodes=(there("b", "a"),), pools=POOLS).pools_without_takers == {"a"}


@pytest.mark.parametrize(
    ("before", "pool", "expected"),
    [
        (there("a"), "a", ()),
        (there("a"), "b", ("a",)),
        (there("b", "a"), "a", ("b",)),
        (there("b", "a"), "c", ("b", "a")),
        (there("p9", *[f"p{n}" for n in range(8)]), "a", ("p9", *[f"p{n}" for n in range(7)])),
    ],
    ids=["same pool", "moved", "back", "moved on", "no more than eight"],
)
def test_node_knows_the_pools_in_which_earlier_workers_of_its_name_were(
    before: Node, pool: str, expected: tuple[str, ...]
) -> None:
    assert there(pool).after(before).former_pools == expected
