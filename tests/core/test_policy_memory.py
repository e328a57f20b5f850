"""Growth of host memory and `/dev/shm`: from what the last attempt had, up to a cap."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.policy import Ending, Place, RetryStrategy
from prefect_heteroflow.core.resources import Cluster, Pool, Resources
from tests.core.policy_cases import (
    NEW,
    SAME,
    cluster,
    failed,
    node,
    policy,
    retry,
    stop,
    what_follows,
)

OOM = FailureClass.CPU_OUT_OF_MEMORY
BIG = cluster(node("node-1", "p", 65536))


def test_memory_doubles_until_the_limit_and_then_stops():
    """2048, 4096, 8192, 16384, and the stop names the cap, not the budget."""
    had, series = Resources(), []
    for number in range(1, 4):
        history = [failed(n, OOM) for n in range(1, number)]
        had = retry(what_follows(OOM, BIG, resources=had, history=history)).resources
        series.append(had.memory_mb)
    assert series == [4096, 8192, 16384]
    end = stop(what_follows(OOM, BIG, resources=had, history=[failed(n, OOM) for n in (1, 2, 3)]))
    assert end.ending is Ending.PERMANENT_FAILURE
    assert "had 16384 MB and oom_memory_limit is 16384 MB; raise oom_memory_limit" in end.reason


def test_last_step_is_clipped_to_the_limit():
    """6000 -> 10000 with a limit of 10000, not 12000."""
    answer = retry(
        what_follows(
            OOM, BIG, resources=Resources(memory_mb=6000), policy=policy(oom_memory_limit=10000)
        )
    )
    assert answer.resources.memory_mb == 10000


def test_memory_above_a_limit_that_was_lowered_never_shrinks():
    """A limit below what the attempt had is a stop."""
    end = stop(what_follows(OOM, BIG, policy=policy(oom_memory_limit=2048)))
    assert end.ending is Ending.PERMANENT_FAILURE


@pytest.mark.parametrize(
    "other", [f for f in FailureClass if f.group.value in ("transient", "node", "group", "unknown")]
)
def test_memory_is_sticky_through_every_other_cause(other):
    """A lost node neither grows nor resets what an OOM has grown."""
    grown = Resources(memory_mb=8192, shm_mb=256, gpu_count=1, gpu_memory_mb=8193)
    known = cluster(node("node-1", "p", 65536, 24576), node("node-2", "p", 65536, 24576))
    for verdict in (None, "retry"):
        decision = retry(what_follows(other, known, resources=grown, verdict=verdict))
        assert decision.resources == grown


def test_reason_tells_cause_change_place_and_delay():
    """One line with all its figures."""
    answer = retry(what_follows(OOM, BIG, history=[failed(1, FailureClass.NETWORK_TIMEOUT)]))
    assert answer.reason == (
        "CpuOutOfMemory (a-rule): memory 4096 -> 8192 MB on node-1 (same node, it fits), "
        "retry 2 of 3 in 60 s"
    )


def test_nowhere_large_enough_gets_one_last_run_on_the_largest():
    """Twice 4096 fits nowhere, but 6000 is more than before."""
    known = cluster(node("node-1", "p", 4096), node("node-9", "q", 6000), node("node-8", "q", 5000))
    answer = retry(what_follows(OOM, known))
    assert answer.place == Place(pool="q", node="node-9")
    assert answer.resources.memory_mb == 6000
    assert "no node has more, so a last run" in answer.reason
    end = stop(
        what_follows(OOM, known, resources=answer.resources, pool="q", node="node-9", history=[])
    )
    assert "the largest has 6000 MB: node-9 (pool q)" in end.reason


def test_last_run_stays_on_the_node_if_it_is_the_largest():
    """The same node with all that it has."""
    answer = retry(what_follows(OOM, cluster(node("node-1", "p", 6000))))
    assert answer.place == Place(pool="p", node="node-1")
    assert answer.resources.memory_mb == 6000


def test_last_run_does_not_go_where_the_gpus_do_not_fit():
    """The largest node counts only if the rest of the request fits it."""
    known = cluster(node("node-1", "p", 4096, 8192), node("node-9", "q", 6000))
    stop(what_follows(OOM, known, resources=Resources(memory_mb=4096, gpu_count=1)))


def test_same_node_gets_a_last_run_with_all_that_it_has():
    """`retry_same_node` clips to the node's memory, and stops when the attempt had all of it."""
    known = cluster(node("node-1", "p", 6000), node("node-2", "p", 65536))
    answer = retry(what_follows(OOM, known, policy=policy(SAME)))
    assert answer.resources.memory_mb == 6000
    assert answer.place == Place(pool="p", node="node-1", avoid_nodes=("node-2",))
    end = stop(what_follows(OOM, known, policy=policy(SAME), resources=Resources(memory_mb=6000)))
    assert "node-1 has 6000 MB" in end.reason
    assert "use retry_new_node" in end.reason


def test_same_node_takes_the_doubled_value_if_it_has_just_that():
    """Not clipped, so not called a last run."""
    answer = retry(what_follows(OOM, cluster(node("node-1", "p", 8192)), policy=policy(SAME)))
    assert answer.resources.memory_mb == 8192
    assert "last run" not in answer.reason


@pytest.mark.parametrize("known", [Cluster(), cluster(Pool(name="p")), cluster(node("x", "q"))])
def test_unknown_pool_is_given_a_try(known):
    """Nothing speaks against the place, so the attempt stays with more memory."""
    answer = retry(what_follows(OOM, known, pool="p", node=None))
    assert answer.place == Place(pool="p")
    assert answer.resources.memory_mb == 8192


def test_own_node_that_fits_but_is_cordoned_is_waited_for():
    """A node that a person took out for an hour is no reason to end the run for good."""
    known = cluster(node("node-1", "p", 65536, cordoned=True))
    answer = retry(what_follows(OOM, known))
    assert answer.place == Place(pool="p", node="node-1")
    assert "once it is free again" in answer.reason


def test_shm_doubles_from_the_engines_default_up_to_the_memory_limit():
    """64, 128, 200 with memory_mb 200, then a stop that says what to raise."""
    had, series = Resources(memory_mb=200), []
    for _ in range(2):
        had = retry(
            what_follows(FailureClass.SHARED_MEMORY_EXHAUSTED, BIG, resources=had)
        ).resources
        series.append(had.shm_mb)
    assert series == [128, 200]
    end = stop(what_follows(FailureClass.SHARED_MEMORY_EXHAUSTED, BIG, resources=had))
    assert "raise memory_mb" in end.reason


def test_run_waits_for_a_larger_node_that_is_away():
    """A worker that is being restarted is no reason to end the run for good."""
    known = cluster(node("node-1", "p", 4096), node("node-2", "big", 65536, live=False))
    answer = retry(what_follows(OOM, known))
    place = Place(pool="big", waits_for="node-2")
    assert (answer.place, answer.resources.memory_mb) == (place, 8192)
    assert "node-2 would fit and is not live" in answer.reason


def test_run_does_not_wait_for_a_larger_node_that_is_cordoned():
    """Somebody has said that nothing is to run there."""
    known = cluster(node("node-1", "p", 4096), node("node-2", "big", 65536, cordoned=True))
    assert "node-2 (pool big) would fit but is cordoned" in stop(what_follows(OOM, known)).reason


def test_last_run_with_what_is_there_comes_before_waiting_for_what_is_away():
    known = cluster(node("node-1", "p", 6000), node("node-2", "big", 65536, live=False))
    answer = retry(what_follows(OOM, known))
    assert (answer.place.node, answer.resources.memory_mb) == ("node-1", 6000)


def test_memory_does_not_grow_onto_a_node_that_said_goodbye():
    """Nobody knows whether it ever comes back."""
    away = node("node-2", "big", 65536, live=False, stopped=True)
    end = stop(what_follows(OOM, cluster(node("node-1", "p", 4096), away)))
    assert "node-2 (pool big) would fit but is not live" in end.reason


def test_attempt_does_not_wait_for_its_own_node_that_said_goodbye():
    own = node("node-1", "p", 65536, live=False, stopped=True)
    answer = retry(what_follows(OOM, cluster(own, node("node-2", "p", 6000))))
    assert (answer.place.node, answer.resources.memory_mb) == ("node-2", 6000)


@pytest.mark.parametrize("stopped", [True, False])
def test_last_run_is_the_last(stopped):
    """No wait for a node that is away follows it, whatever is said of that node by then."""
    small = node("node-1", "p", 6000)
    away = node("node-2", "p", 65536, live=False, stopped=stopped)
    first = retry(what_follows(OOM, cluster(small, away)))
    assert "no node that takes runs now has more, so a last run" in first.reason
    end = stop(
        what_follows(
            OOM,
            cluster(small, node("node-2", "p", 65536, live=False)),
            resources=first.resources,
            history=[failed(1, OOM, memory_mb=4096)],
        )
    )
    assert end.ending is Ending.PERMANENT_FAILURE
    assert "the attempt had 6000 MB, all that was to be had, as its last run" in end.reason


def test_larger_node_that_has_come_up_since_takes_what_was_to_be_a_last_run():
    history = [failed(1, OOM, memory_mb=4096)]
    known = cluster(node("node-1", "p", 6000), node("node-2", "p", 65536))
    answer = retry(what_follows(OOM, known, resources=Resources(memory_mb=6000), history=history))
    assert (answer.place.node, answer.resources.memory_mb) == ("node-2", 12000)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [failed(1, OOM, memory_mb=3000)],
        [failed(1, FailureClass.NETWORK_TIMEOUT, memory_mb=4096)],
        [failed(1, OOM, memory_mb=6000)],
    ],
    ids=["the first attempt", "it had doubled", "it had not grown for memory", "it had not grown"],
)
def test_attempt_with_all_that_there_is_waits_if_it_was_no_last_run(history):
    known = cluster(node("node-1", "p", 6000), node("node-2", "p", 65536, live=False))
    answer = retry(what_follows(OOM, known, resources=Resources(memory_mb=6000), history=history))
    assert answer.place == Place(pool="p", waits_for="node-2")


@pytest.mark.parametrize("strategy", [NEW, SAME], ids=["new node", "same node"])
def test_attempt_does_not_grow_where_more_would_not_help(strategy: RetryStrategy) -> None:
    answer = retry(what_follows(OOM, BIG, same_size=True, policy=policy(strategy)))
    assert answer.resources.memory_mb == 4096
    assert answer.place.node == "node-1"
    assert "again on node-1 (same node)" in answer.reason


def test_attempt_for_which_more_would_not_help_uses_up_its_retries() -> None:
    end = stop(
        what_follows(
            OOM, BIG, same_size=True, policy=policy(max_retries=1), history=[failed(1, OOM)]
        )
    )
    assert end.ending is Ending.FAILED
