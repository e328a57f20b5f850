"""The smallest place that fits, or what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool, Resources
from prefect_heteroflow.core.routing import (
    NoRoute,
    Route,
    awaited_nodes,
    fits,
    largest_memory_mb,
    route,
)
from tests.core.policy_cases import cluster, node

ASK = Resources(memory_mb=4096)
GPU = Resources(memory_mb=4096, gpu_count=1)


def where(request: Resources, known: Cluster, **more: Any) -> tuple[str, str | None]:
    answer = route(request, known, **{"current_pool": None, **more})
    assert isinstance(answer, Route), answer
    return answer.pool, answer.node


def why_not(request: Resources, known: Cluster, **more: Any) -> str:
    answer = route(request, known, **{"current_pool": None, **more})
    assert isinstance(answer, NoRoute), answer
    return answer.reason


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Resources(memory_mb=8192), True),
        (Resources(memory_mb=8193), False),
        (Resources(memory_mb=1024, gpu_count=2), True),
        (Resources(memory_mb=1024, gpu_count=3), False),
        (Resources(memory_mb=1024, gpu_count=1, gpu_memory_mb=24576), True),
        (Resources(memory_mb=1024, gpu_count=2, gpu_memory_mb=24576), False),
        (Resources(memory_mb=1024, gpu_count=0, gpu_memory_mb=99999), True),
    ],
)
def test_fits_compares_memory_and_gpus(request_, expected):
    """At the size itself it fits; GPU memory counts only where a GPU is asked."""
    assert fits(request_, node("n", "p", 8192, 8192, 24576)) is expected


def test_fits_does_not_count_a_sick_gpu():
    """Health that is unknown is no illness."""
    sick = Gpu(uuid="a", name="a", memory_mb=8192, healthy=False)
    unknown = Gpu(uuid="b", name="b", memory_mb=8192)
    assert not fits(GPU, Node(name="n", pool="p", memory_mb=8192, gpus=(sick,)))
    assert fits(GPU, Node(name="n", pool="p", memory_mb=8192, gpus=(sick, unknown)))


def test_current_node_comes_first_then_its_pool_then_the_smallest():
    """The order of preference, by avoiding the best one each time."""
    known = cluster(
        node("here", "p", 65536, 81920),
        node("near", "p", 65536, 81920),
        node("no-gpu-large", "q", 65536),
        node("no-gpu-small", "q", 4096),
        node("gpu-8", "q", 4096, 8192),
        node("gpu-24", "a", 4096, 24576),
    )
    order, avoid = [], []
    for _ in known.nodes:
        chosen = where(ASK, known, current_pool="p", current_node="here", avoid_nodes=avoid)[1]
        order.append(chosen)
        avoid.append(chosen)
    assert order == ["here", "near", "no-gpu-small", "no-gpu-large", "gpu-8", "gpu-24"]


def test_equal_places_are_told_apart_by_name():
    """No answer depends on the order in which nodes were read."""
    assert where(ASK, cluster(node("b", "p"), node("a", "q"))) == ("q", "a")
    assert where(ASK, cluster(node("b", "p"), Pool(name="a", memory_mb=4096))) == ("p", "b")


def test_node_of_the_same_name_in_another_pool_is_another_node():
    """It moved to another pool: it is no longer the place of the attempt."""
    known = cluster(node("n", "q", 4096, 8192), node("small", "q"))
    assert where(ASK, known, current_pool="p", current_node="n") == ("q", "small")


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (node("n", live=False), "n (pool p) would fit but is not live"),
        (node("n", cordoned=True), "n (pool p) would fit but is cordoned"),
        (
            node("n", cordoned=True, cordon_reason="Xid 79"),
            "n (pool p) would fit but is cordoned (Xid 79)",
        ),
        (Pool(name="c", memory_mb=4096, paused=True), "pool c would fit but is paused"),
    ],
)
def test_place_that_is_away_is_not_chosen_but_named(member, why):
    """The message tells what could be brought back."""
    reason = why_not(ASK, cluster(member, node("small", "q", 16)))
    assert f"no place is free that fits: {why}; bring it back" in reason


def test_node_in_a_paused_pool_is_not_chosen():
    """Nothing starts there."""
    known = cluster(node("n"), Pool(name="p", paused=True))
    assert "n (pool p) would fit but is in a paused pool" in why_not(ASK, known)


def test_declared_pool_counts_as_one_node_until_it_has_a_live_one():
    """A tag says what will come; a live node says what is there."""
    declared = Pool(name="cloud", memory_mb=65536, gpu_memory_mb=40960, gpu_count=4)
    four = Resources(gpu_count=4, gpu_memory_mb=40960)
    assert where(four, cluster(declared)) == ("cloud", None)
    assert where(four, cluster(declared, node("old", "cloud", live=False))) == ("cloud", None)
    assert "no known node has 4 GPUs" in why_not(four, cluster(declared, node("now", "cloud")))


def test_gpu_memory_that_is_declared_alone_means_one_gpu_and_enough_memory():
    """`heteroflow pool tag NAME --gpu-memory-mb N` and nothing else."""
    declared = Pool(name="cloud", gpu_memory_mb=40960)
    assert where(GPU, cluster(declared)) == ("cloud", None)
    assert "the most is 1, on pool cloud" in why_not(Resources(gpu_count=2), cluster(declared))


def test_sizes_that_are_not_declared_come_last_and_are_never_more():
    """What is unknown may fit, but is not known to be larger."""
    vague = Pool(name="a", gpu_count=1)
    known = cluster(vague, node("n", "p", 65536, 81920))
    assert where(GPU, known) == ("p", "n")
    assert where(GPU, cluster(vague)) == ("a", None)
    assert "declares GPUs without their memory" in why_not(
        GPU, cluster(vague), more_gpu_memory_than_mb=8192
    )
    why_not(ASK, cluster(Pool(name="a", gpu_memory_mb=8192)), more_memory_than_mb=1)


def test_pool_without_a_declaration_is_no_place():
    """It exists, and nobody said what is in it."""
    assert "no live node and no declared pool" in why_not(ASK, cluster(Pool(name="p")))


def test_more_gpu_memory_is_strictly_more_and_smallest_first():
    """Not the same class again, and not the largest because it is near."""
    known = cluster(
        node("n8", "p", 8192, 8192), node("n80", "p", 8192, 81920), node("n24", "q", 8192, 24576)
    )
    more = {"current_pool": "p", "current_node": "n8"}
    assert where(GPU, known, more_gpu_memory_than_mb=8192, **more) == ("q", "n24")
    assert where(GPU, known, more_gpu_memory_than_mb=24576, **more) == ("p", "n80")


def test_mixed_node_counts_by_the_gpus_that_would_be_taken():
    """One GPU of 8 GB beside one of 80: small for one GPU, large for two."""
    known = cluster(node("mixed", "p", 8192, 8192, 81920), node("even", "p", 8192, 24576, 24576))
    assert where(GPU, known) == ("p", "mixed")
    assert where(Resources(gpu_count=2), known) == ("p", "even")


def test_more_memory_is_strictly_more():
    """A node of the same size is no progress."""
    known = cluster(node("a", "p", 4096), node("b", "q", 4097))
    assert where(ASK, known, current_pool="p", more_memory_than_mb=4096) == ("q", "b")
    assert "more than 4097 MB of memory" in why_not(ASK, known, more_memory_than_mb=4097)


@pytest.mark.parametrize(
    ("member", "containers", "suits"),
    [
        ((node("n", docker=True),), True, True),
        ((node("n", docker=True),), False, False),
        ((node("n", docker=False),), True, False),
        ((node("n"),), True, True),
        ((node("n"), Pool(name="p", worker_type="heteroflow-process")), True, False),
        ((node("n"), Pool(name="p", worker_type="heteroflow")), True, True),
        ((node("n"), Pool(name="p", worker_type="heteroflow")), False, False),
        ((node("n"), Pool(name="p", worker_type="of-a-stranger")), True, True),
        ((Pool(name="c", memory_mb=4096, worker_type="kubernetes"),), True, True),
        ((Pool(name="c", memory_mb=4096, worker_type="process"),), True, False),
        ((node("n", docker=True),), None, True),
    ],
)
def test_kind_of_the_place_suits_the_attempt(member, containers, suits):
    """An image needs containers, a process needs processes, and unknown suits both."""
    answer = route(ASK, cluster(*member), current_pool=None, containers=containers)
    assert isinstance(answer, Route) is suits


@pytest.mark.parametrize(
    ("request_", "more", "text"),
    [
        (
            GPU,
            {"more_gpu_memory_than_mb": 24576},
            "no known node has 1 GPU with more than 24576 MB; "
            "the largest is 24576 MB on b (pool gpu-24gb); "
            "add a node or declare a pool with `heteroflow pool tag`",
        ),
        (
            Resources(memory_mb=99999),
            {},
            "no known node has 99999 MB of memory; the largest has 16384 MB: c (pool cpu); "
            "add a node or declare a pool with `heteroflow pool tag`",
        ),
        (
            Resources(memory_mb=16384, gpu_count=1, gpu_memory_mb=8192),
            {},
            "no known node has both 1 GPU with at least 8192 MB and 16384 MB of memory; "
            "of those with such GPUs the largest has 8192 MB of memory: b (pool gpu-24gb); "
            "add a node or declare a pool with `heteroflow pool tag`",
        ),
        (
            Resources(gpu_count=4),
            {},
            "no known node has 4 GPUs; the most is 2, on a (pool gpu-8gb); "
            "add a node or declare a pool with `heteroflow pool tag`",
        ),
        (
            Resources(memory_mb=16384),
            {"avoid_nodes": ["c"]},
            "every place that fits is avoided: c (pool cpu); add a node",
        ),
    ],
)
def test_missing_place_is_explained_with_the_largest_that_exists(request_, more, text):
    """What is missing, what there is, what to do."""
    known = cluster(
        node("a", "gpu-8gb", 4096, 8192, 8192),
        node("b", "gpu-24gb", 8192, 24576),
        node("c", "cpu", 16384),
    )
    assert why_not(request_, known, **more) == text


def test_missing_gpu_is_explained_where_no_node_has_one():
    """No largest to name."""
    assert "no known node has 1 GPU; none has a GPU" in why_not(GPU, cluster(node("a")))


def test_nothing_known_is_said():
    """Neither a node nor a declared pool."""
    assert "no live node and no declared pool" in why_not(ASK, Cluster())


@pytest.mark.parametrize(
    ("known", "more", "text"),
    [
        (cluster(node("n")), {"current_pool": "p", "current_node": "n"}, "same node, it fits"),
        (
            cluster(node("n")),
            {"current_pool": "p"},
            "another node of the same pool: memory 4096 MB",
        ),
        (cluster(node("n")), {}, "the smallest that fits: memory 4096 MB"),
        (
            cluster(Pool(name="c", memory_mb=4096)),
            {},
            "the smallest that fits, no live node yet, declared: memory 4096 MB",
        ),
        (
            cluster(Pool(name="c", gpu_count=1)),
            {"current_pool": "c"},
            "same pool, no live node yet, declared: memory not declared",
        ),
    ],
)
def test_route_tells_why(known, more, text):
    """A phrase for brackets in the log line."""
    answer = route(ASK, known, **{"current_pool": None, **more})
    assert answer.reason == text


def test_largest_memory_counts_places_that_fit_otherwise():
    """A larger node without the GPU, or one that is away, is not meant."""
    known = cluster(
        node("a", "p", 4096, 8192),
        node("b", "p", 65536),
        node("c", "p", 32768, 8192, live=False),
        Pool(name="vague", gpu_memory_mb=8192),
    )
    assert largest_memory_mb(GPU, known) == 4096
    assert largest_memory_mb(ASK, known) == 65536
    assert largest_memory_mb(ASK, Cluster()) is None


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("a", {})], set()),
        ([("a", {"live": False})], {"a"}),
        ([("a", {"cordoned": True})], {"a"}),
        ([("a", {"cordoned": True}), ("a", {"live": False})], {"a"}),
        ([("a", {"cordoned": True}), ("a", {})], set()),
        ([("a", {"live": False}), ("b", {})], {"a"}),
        ([], set()),
    ],
    ids=[
        "one that takes runs",
        "not live",
        "cordoned",
        "one cordoned, one not live",
        "near miss: one of two takes runs",
        "of two pools one",
        "no node is known",
    ],
)
def test_pool_without_a_node_that_takes_runs_is_named(
    nodes: list[tuple[str, dict[str, Any]]], expected: set[str]
) -> None:
    known = tuple(
        Node(name=f"node-{number}", pool=pool, memory_mb=1024, **values)
        for number, (pool, values) in enumerate(nodes)
    )
    pools = tuple(Pool(name=name) for name in "abc")
    assert Cluster(nodes=known, pools=pools).pools_without_takers == expected


@pytest.mark.parametrize(
    ("placement", "names"),
    [
        pytest.param({"waits_for": "big", "prefer": None}, {"big"}, id="waits"),
        pytest.param({"prefer": "big", "avoid": ["small"]}, {"big"}, id="prefers"),
        pytest.param({"avoid": ["small"]}, set(), id="avoids-only"),
        pytest.param({"waits_for": 3, "prefer": ["big"]}, set(), id="odd-values"),
        pytest.param(None, set(), id="none"),
        pytest.param("big", set(), id="text"),
    ],
)
def test_attempt_awaits_the_nodes_that_its_placement_names(placement, names):
    assert awaited_nodes(placement) == names
