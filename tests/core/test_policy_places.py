"""Where the retries go that change nothing: the same place, or another node."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.failures import FailureClass as C
from prefect_heteroflow.core.policy import Place
from prefect_heteroflow.core.resources import Cluster, Pool, Resources
from tests.core.policy_cases import SAME, cluster, failed, node, policy, retry, what_follows

THREE = cluster(node("node-1"), node("node-2"), node("node-3"))


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(cluster(node("node-2")), id="gone"),
        pytest.param(cluster(node("node-1", live=False)), id="not live"),
        pytest.param(cluster(node("node-1", cordoned=True)), id="cordoned"),
    ],
)
def test_same_place_is_the_pool_when_the_node_is_gone(known):
    """Nobody waits for a node that will not take it."""
    assert retry(what_follows(C.NETWORK_TIMEOUT, known)).place == Place(pool="p")


@pytest.mark.parametrize("node_name", ["node-1", None])
def test_same_place_is_kept_when_nothing_is_known(node_name):
    """An empty cluster speaks against nothing."""
    answer = retry(what_follows(C.NETWORK_TIMEOUT, Cluster(), node=node_name))
    assert answer.place == Place(pool="p", node=node_name)


def test_same_node_strategy_keeps_the_other_nodes_of_the_pool_off():
    """`retry_same_node` waits for its node, also while that is away."""
    known = cluster(node("node-1", live=False), node("node-2"), node("node-9", "q"))
    answer = retry(what_follows(C.NODE_LOST, known, policy=policy(SAME)))
    assert answer.place == Place(pool="p", node="node-1", avoid_nodes=("node-2",))
    assert "same node, once it is back" in answer.reason


def test_lost_node_is_avoided():
    """Another node of the pool before another pool."""
    known = cluster(node("node-9", "a", 2048), node("node-1"), node("node-2"))
    answer = retry(what_follows(C.NODE_LOST, known, resources=Resources()))
    assert answer.place == Place(pool="p", node="node-2", avoid_nodes=("node-1",))


def test_nodes_that_failed_before_come_last():
    """node-1 and node-2 crashed already: node-3, and not back to the first."""
    answer = retry(
        what_follows(
            C.PROCESS_CRASHED, THREE, node="node-2", history=[failed(1, C.GPU_HARDWARE_ERROR)]
        )
    )
    assert answer.place == Place(pool="p", node="node-3", avoid_nodes=("node-1", "node-2"))


def test_node_that_failed_before_is_better_than_the_one_that_just_failed():
    """Only two nodes: back to the first one."""
    known = cluster(node("node-1"), node("node-2"))
    history = [failed(1, C.PREEMPTED)]
    answer = retry(what_follows(C.PREEMPTED, known, node="node-2", history=history))
    assert answer.place == Place(pool="p", node="node-1", avoid_nodes=("node-2",))


def test_failures_that_blame_no_node_do_not_make_it_suspect():
    """A network timeout on node-2 says nothing about node-2."""
    history = [failed(1, C.NETWORK_TIMEOUT, node="node-2")]
    answer = retry(what_follows(C.NODE_LOST, THREE, history=history))
    assert answer.place.node == "node-2"


def test_no_other_node_is_said():
    """It stays, and the reason says why."""
    answer = retry(what_follows(C.UNKNOWN_ERROR, cluster(node("node-1"), node("small", "q", 512))))
    assert answer.place == Place(pool="p", node="node-1")
    assert "there is no other node that fits" in answer.reason


def test_other_node_of_an_unknown_pool_is_any_of_its_nodes():
    """Pools of other worker types have no published nodes."""
    answer = retry(what_follows(C.NODE_LOST, cluster(Pool(name="p"))))
    assert answer.place == Place(pool="p")


def test_any_gpu_moves_to_one_as_large_as_before_if_it_can():
    """A run from a 24 GB node does not land on an 8 GB one because it asked for any GPU."""
    any_gpu = Resources(memory_mb=1024, gpu_count=1)
    lost, small, large = (
        node("node-1", "p", 4096, 24576),
        node("node-2", "p", 4096, 8192),
        node("node-3", "q", 4096, 81920),
    )
    answer = retry(what_follows(C.NODE_LOST, cluster(lost, small, large), resources=any_gpu))
    assert answer.place.node == "node-3"
    assert answer.resources == any_gpu
    answer = retry(what_follows(C.NODE_LOST, cluster(lost, small), resources=any_gpu))
    assert answer.place.node == "node-2"


def test_node_of_the_same_name_in_another_pool_is_not_the_one_that_failed():
    """It was moved there: the old place is gone."""
    answer = retry(what_follows(C.NETWORK_TIMEOUT, cluster(node("node-1", "q"))))
    assert answer.place == Place(pool="p")


def test_attempt_lost_with_a_worker_whose_node_went_to_another_pool_may_follow_it():
    """Nothing else takes runs; the machine itself did nothing wrong."""
    moved = node("node-1", "q", former_pools=("p",))
    answer = retry(what_follows(C.NODE_LOST, cluster(moved)))
    assert (answer.place.pool, answer.place.node) == ("q", "node-1")
    answer = retry(what_follows(C.NODE_LOST, cluster(moved, node("node-2"))))
    assert (answer.place.pool, answer.place.node) == ("p", "node-2")


def test_same_node_strategy_waits_for_a_node_that_went_to_another_pool():
    moved = node("node-1", "q", former_pools=("p",))
    answer = retry(what_follows(C.NODE_LOST, cluster(moved), policy=policy(SAME)))
    assert answer.place == Place(pool="p", node="node-1")
    assert "same node, once it is back" in answer.reason


def test_gang_is_started_again_in_the_same_place():
    """The peers are elsewhere; this place did nothing wrong."""
    answer = retry(what_follows(C.DISTRIBUTED_PEER_LOST, THREE))
    assert answer.place == Place(pool="p", node="node-1")
