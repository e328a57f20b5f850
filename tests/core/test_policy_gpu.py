"""Routes after a GPU out-of-memory error."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_heteroflow.core.failures import FailureClass, MemoryFigures
from prefect_heteroflow.core.policy import Decision, Ending, Place
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool, Resources
from tests.core.policy_cases import GIB, SAME, cluster, node, policy, retry, stop, what_follows

OOM = FailureClass.GPU_OUT_OF_MEMORY
LADDER = cluster(
    node("node-1", "gpu-8gb", 16384, 8192),
    node("node-2", "gpu-24gb", 16384, 24576),
    node("node-3", "gpu-80gb", 16384, 81920),
)
CROWDED = MemoryFigures(
    requested_bytes=GIB, own_bytes=GIB, foreign_bytes=6 * GIB, total_bytes=8 * GIB
)


def after_gpu_oom(known: Cluster, **more: Any) -> Decision:
    values: dict[str, Any] = {
        "pool": "gpu-8gb",
        "resources": Resources(memory_mb=4096, gpu_count=1),
    }
    return what_follows(OOM, known, **{**values, **more})


def needs(gib: float) -> MemoryFigures:
    return MemoryFigures(requested_bytes=int(gib * GIB) - GIB, own_bytes=GIB)


def test_without_figures_the_next_larger_class_is_chosen():
    """8 GB -> 24 GB, not 80 GB."""
    answer = retry(after_gpu_oom(LADDER))
    assert answer.place == Place(pool="gpu-24gb", node="node-2")
    assert answer.resources.gpu_memory_mb == 8193
    assert answer.resources.memory_mb == 4096


def test_figures_lead_straight_to_the_class_that_holds_the_need():
    """30 GiB needed: 8 GB -> 80 GB in one step, and the reason says the figure."""
    answer = retry(after_gpu_oom(LADDER, figures=needs(30)))
    assert answer.place == Place(pool="gpu-80gb", node="node-3")
    assert answer.resources.gpu_memory_mb == 30720
    assert "had 8192 MB of GPU memory, needed 30720 MB: next on node-3" in answer.reason


def test_need_below_what_it_had_still_goes_to_a_larger_one():
    """Fragmentation: it asked for less than the card holds, and the card was not enough."""
    answer = retry(after_gpu_oom(LADDER, figures=needs(6)))
    assert answer.place.node == "node-2"


def test_need_that_no_gpu_holds_stops_and_names_the_largest():
    """The message says what is needed, what there is, and what to do."""
    end = stop(after_gpu_oom(LADDER, figures=needs(100)))
    assert end.ending is Ending.PERMANENT_FAILURE
    assert end.reason == (
        "GpuOutOfMemory (a-rule): had 8192 MB of GPU memory, needed 102400 MB; no known node has "
        "1 GPU with at least 102400 MB; the largest is 81920 MB on node-3 (pool gpu-80gb); "
        "add a node or declare a pool with `heteroflow pool tag`"
    )


def test_largest_class_stops_with_the_floor_that_it_had():
    """On the largest GPU of all."""
    end = stop(after_gpu_oom(LADDER, pool="gpu-80gb", node="node-3"))
    assert "no known node has 1 GPU with more than 81920 MB" in end.reason


def test_smallest_larger_gpu_wins_over_a_larger_one_in_the_same_pool():
    """The size comes before the nearness: an 80 GB card is not taken because it is near."""
    known = cluster(
        node("node-1", "gpu-8gb", 16384, 8192),
        node("node-4", "gpu-8gb", 16384, 81920),
        node("node-2", "gpu-24gb", 16384, 24576),
    )
    assert retry(after_gpu_oom(known)).place.node == "node-2"


def test_declared_pool_without_a_live_node_is_a_target():
    """Autoscaled from zero: any node of the pool."""
    known = Cluster(nodes=LADDER.nodes[:1], pools=(Pool(name="cloud", gpu_memory_mb=40960),))
    assert retry(after_gpu_oom(known)).place == Place(pool="cloud", node=None)


def test_gpu_count_is_kept_and_at_least_one():
    """A job that saw a GPU without asking for one asks for one from now on."""
    assert retry(after_gpu_oom(LADDER, resources=Resources())).resources.gpu_count == 1
    two = cluster(node("node-1", "gpu-8gb", 16384, 8192, 8192), node("n", "q", 16384, 24576, 24576))
    answer = retry(after_gpu_oom(two, resources=Resources(gpu_count=2)))
    assert answer.resources.gpu_count == 2
    assert answer.place.node == "n"


def test_later_retry_does_not_fall_back_to_the_small_class():
    """The GPU memory that was asked for stays, also when the node is lost."""
    grown = retry(after_gpu_oom(LADDER)).resources
    known = cluster(*LADDER.nodes)
    answer = retry(
        what_follows(FailureClass.NODE_LOST, known, pool="gpu-24gb", node="node-2", resources=grown)
    )
    assert answer.place.node == "node-3"


def test_cuda_figure_of_the_same_card_is_no_larger_class():
    """CUDA says 24210 MB where NVML says 24576 MB: a second such node is not larger."""
    known = cluster(node("node-1", "p", 16384, 24576), node("node-2", "p", 16384, 24576))
    stop(after_gpu_oom(known, pool="p", gpu_memory_mb=24210))


def test_figures_tell_which_gpu_of_a_mixed_node_it_had():
    """The text says that the card had 24 GB; the node's own 24 GB card does not help."""
    known = cluster(node("node-1", "p", 16384, 8192, 24576), node("node-2", "q", 16384, 81920))
    figures = MemoryFigures(total_bytes=int(23.7 * GIB))
    assert retry(after_gpu_oom(known, pool="p", figures=figures)).place.node == "node-2"
    assert retry(after_gpu_oom(known, pool="p")).place.node == "node-1"


def test_gpu_filled_by_a_foreign_process_moves_to_an_equal_one():
    """Alone it would have fitted: another node of the pool is enough, and the failed is avoided."""
    known = cluster(*LADDER.nodes, node("node-4", "gpu-8gb", 16384, 8192))
    answer = retry(after_gpu_oom(known, figures=CROWDED))
    assert answer.place == Place(pool="gpu-8gb", node="node-4", avoid_nodes=("node-1",))
    assert answer.resources.gpu_memory_mb == 8192
    assert "other processes held 6144 MB of the GPU" in answer.reason


def test_gpu_filled_by_a_foreign_process_moves_to_a_larger_one_if_there_is_no_equal():
    """No second 8 GB node."""
    assert retry(after_gpu_oom(LADDER, figures=CROWDED)).place.node == "node-2"


def test_gpu_filled_by_a_foreign_process_waits_if_there_is_nothing_else():
    """The same node after the ordinary delay: nothing grew."""
    known = cluster(LADDER.nodes[0])
    answer = retry(after_gpu_oom(known, figures=CROWDED, policy=policy(escalation_delay=0)))
    assert answer.place == Place(pool="gpu-8gb", node="node-1")
    assert answer.delay_seconds == 30


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param(
            MemoryFigures(
                requested_bytes=GIB, own_bytes=GIB, foreign_bytes=GIB, total_bytes=8 * GIB
            ),
            id="only a gibibyte",
        ),
        pytest.param(
            MemoryFigures(
                requested_bytes=4 * GIB,
                own_bytes=4 * GIB,
                foreign_bytes=2 * GIB,
                total_bytes=8 * GIB,
            ),
            id="needs all of it",
        ),
        pytest.param(
            MemoryFigures(foreign_bytes=6 * GIB, total_bytes=8 * GIB), id="own use unknown"
        ),
    ],
)
def test_near_misses_of_a_foreign_process_need_a_larger_gpu(figures):
    """Not shown by the numbers: strictly larger."""
    known = cluster(*LADDER.nodes, node("node-4", "gpu-8gb", 16384, 8192))
    assert retry(after_gpu_oom(known, figures=figures)).place.node == "node-2"


def test_same_node_takes_its_own_larger_gpu_or_stops():
    """`retry_same_node`: another GPU of the node, and no other node."""
    mixed = cluster(node("node-1", "gpu-8gb", 16384, 8192, 24576), LADDER.nodes[2])
    answer = retry(after_gpu_oom(mixed, policy=policy(SAME)))
    assert answer.place == Place(pool="gpu-8gb", node="node-1")
    assert answer.resources.gpu_memory_mb == 8193
    end = stop(after_gpu_oom(LADDER, policy=policy(SAME)))
    assert "node-1 has no larger GPU" in end.reason


def test_same_node_does_not_count_a_sick_gpu():
    """A GPU that NVML calls unhealthy is none."""
    own = Node(
        name="node-1",
        pool="gpu-8gb",
        memory_mb=16384,
        gpus=(
            Gpu(uuid="a", name="a", memory_mb=8192),
            Gpu(uuid="b", name="b", memory_mb=24576, healthy=False),
        ),
    )
    stop(after_gpu_oom(cluster(own), policy=policy(SAME)))


def test_same_node_waits_out_a_foreign_process():
    """The neighbour may be gone by then."""
    answer = retry(after_gpu_oom(LADDER, policy=policy(SAME), figures=CROWDED))
    assert answer.place.node == "node-1"


@pytest.mark.parametrize("strategy", ["retry_new_node", "retry_same_node"])
def test_empty_cluster_means_unknown_and_stays(strategy):
    """The nodes could not be read: the same place with the same request, to be asked again."""
    had = Resources(memory_mb=4096, gpu_count=1, gpu_memory_mb=8192)
    answer = retry(after_gpu_oom(Cluster(), policy=policy(strategy), resources=had))
    assert (answer.place.pool, answer.place.node) == ("gpu-8gb", "node-1")
    assert answer.resources == had


def test_unknown_size_of_its_gpu_moves_to_another_node():
    """Nothing tells how large it was: another node may have a larger one, the same has not."""
    known = cluster(node("node-1", "p", 16384), node("node-2", "p", 16384, 8192))
    answer = retry(after_gpu_oom(known, pool="p"))
    assert answer.place == Place(pool="p", node="node-2", avoid_nodes=("node-1",))


def test_attempt_stays_off_pools_of_the_other_kind():
    """An image cannot run in a pool of processes."""
    known = Cluster(
        nodes=LADDER.nodes,
        pools=(
            Pool(name="gpu-24gb", worker_type="heteroflow-process"),
            Pool(name="gpu-80gb", worker_type="heteroflow"),
        ),
    )
    assert retry(after_gpu_oom(known, containers=True)).place.pool == "gpu-80gb"
    assert retry(after_gpu_oom(known, containers=False)).place.pool == "gpu-24gb"


def test_run_waits_for_a_larger_gpu_whose_node_is_away():
    known = cluster(
        node("node-1", "gpu-8gb", 65536, 8192),
        node("node-2", "large", 65536, 24576, live=False),
    )
    answer = retry(after_gpu_oom(known))
    assert answer.place.pool == "large"
    assert "node-2 would fit and is not live" in answer.reason
