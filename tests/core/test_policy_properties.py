"""What holds for every cluster, request and history, found by search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, FailureGroup, MemoryFigures
from prefect_heteroflow.core.policy import Ending, Retry, RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool, Resources
from prefect_heteroflow.core.routing import Route, fits, route

POOLS = ("p", "q", "r")
NODES = ("node-1", "node-2", "node-3", "node-4")
MEMORY_MB = st.sampled_from([64, 1024, 2048, 3000, 4096, 8192, 10000, 16384, 65536])
GPU_MB = st.sampled_from([8192, 12288, 24576, 40960, 81920])
CAUSES = st.sampled_from(list(FailureClass))

gpus = st.lists(GPU_MB, max_size=3).map(
    lambda sizes: tuple(Gpu(uuid=str(at), name="g", memory_mb=mb) for at, mb in enumerate(sizes))
)
nodes = st.builds(
    Node,
    name=st.sampled_from(NODES),
    pool=st.sampled_from(POOLS),
    memory_mb=MEMORY_MB,
    gpus=gpus,
    live=st.sampled_from([True, True, True, False]),
    cordoned=st.sampled_from([False, False, False, True]),
    docker=st.sampled_from([True, False, None]),
    stopped=st.booleans(),
).map(lambda node: replace(node, stopped=node.stopped and not node.live))
pools = st.builds(
    Pool,
    name=st.sampled_from((*POOLS, "cloud")),
    memory_mb=st.none() | MEMORY_MB,
    gpu_memory_mb=st.none() | GPU_MB,
    gpu_count=st.none() | st.integers(0, 2),
    worker_type=st.sampled_from([None, "heteroflow", "heteroflow-process"]),
    paused=st.sampled_from([False, False, True]),
)
clusters = st.builds(
    Cluster,
    nodes=st.lists(nodes, max_size=4, unique_by=lambda n: n.name).map(tuple),
    pools=st.lists(pools, max_size=3, unique_by=lambda p: p.name).map(tuple),
)
requests = st.builds(
    Resources,
    memory_mb=MEMORY_MB,
    shm_mb=st.none() | st.sampled_from([64, 512, 4096]),
    gpu_count=st.integers(0, 2),
    gpu_memory_mb=st.none() | GPU_MB,
)
routing_options = st.fixed_dictionaries(
    {
        "current_pool": st.none() | st.sampled_from(POOLS),
        "current_node": st.none() | st.sampled_from(NODES),
        "avoid_nodes": st.frozensets(st.sampled_from(NODES), max_size=2),
        "more_gpu_memory_than_mb": st.none() | GPU_MB,
        "more_memory_than_mb": st.none() | MEMORY_MB,
        "containers": st.none() | st.booleans(),
    }
)
history_rows = st.builds(
    Attempt,
    attempt=st.integers(1, 20),
    flow_run_id=st.just("run"),
    status=st.sampled_from(AttemptStatus),
    node=st.none() | st.sampled_from(NODES),
    failure=st.none() | CAUSES.map(lambda cause: cause.value) | st.just("OfALaterVersion"),
    never_started=st.booleans(),
)
amounts = st.none() | st.integers(0, 100 * 1024**3)
figures = st.none() | st.builds(
    MemoryFigures,
    requested_bytes=amounts,
    total_bytes=amounts,
    own_bytes=amounts,
    foreign_bytes=amounts,
)
policies = st.builds(
    RetryPolicy,
    retry_strategy=st.sampled_from(RetryStrategy),
    max_retries=st.integers(-1, 4),
    infrastructure_retries=st.integers(-1, 4),
    retry_delay=st.floats(0, 100),
    escalation_delay=st.none() | st.floats(0, 10),
    oom_memory_limit=MEMORY_MB,
)
situations = st.fixed_dictionaries(
    {
        "policy": policies,
        "resources": requests,
        "pool": st.sampled_from(POOLS),
        "node": st.none() | st.sampled_from(NODES),
        "history": st.lists(history_rows, max_size=8),
        "cluster": clusters,
        "jitter_fraction": st.floats(0, 1),
        "never_started": st.booleans(),
        "gpu_memory_mb": st.none() | GPU_MB,
        "containers": st.none() | st.booleans(),
    }
)
diagnoses = st.builds(
    Diagnosis,
    failure=CAUSES,
    rule=st.just("a-rule"),
    reason=st.just("Because."),
    figures=figures,
    verdict=st.sampled_from([None, None, None, "retry", "stop"]),
)


def shuffled(known: Cluster) -> Cluster:
    return Cluster(nodes=known.nodes[::-1], pools=known.pools[::-1])


def node_named(known: Cluster, name: str | None) -> Node | None:
    return next((node for node in known.nodes if node.name == name), None)


@given(requests, clusters, routing_options)
def test_route_is_a_place_that_fits_and_is_open(
    request: Resources, known: Cluster, options: dict[str, Any]
):
    """Live, not cordoned, not paused, not avoided, of the right kind, large enough."""
    answer = route(request, known, **options)
    assert answer.reason
    if not isinstance(answer, Route):
        return
    paused = {pool.name for pool in known.pools if pool.paused}
    assert answer.pool not in paused
    if answer.node is None:
        assert any(pool.name == answer.pool for pool in known.pools)
        assert not any(node.live and node.pool == answer.pool for node in known.nodes)
        return
    node = node_named(known, answer.node)
    assert node is not None
    assert node.live
    assert not node.cordoned
    assert node.pool == answer.pool
    assert node.name not in options["avoid_nodes"]
    assert fits(request, node)
    if options["containers"] is not None and node.docker is not None:
        assert node.docker is options["containers"]
    if options["more_memory_than_mb"] is not None:
        assert node.memory_mb > options["more_memory_than_mb"]
    if options["more_gpu_memory_than_mb"] is not None and request.gpu_count:
        larger = [g for g in node.gpus if g.memory_mb > options["more_gpu_memory_than_mb"]]
        assert len(larger) >= request.gpu_count


@given(requests, clusters, routing_options)
def test_route_does_not_depend_on_the_order_of_what_is_known(
    request: Resources, known: Cluster, options: dict[str, Any]
):
    """Two workers that read the nodes in another order answer the same."""
    assert route(request, known, **options) == route(request, shuffled(known), **options)


@given(requests, clusters, routing_options)
def test_no_route_means_that_no_open_node_fits(
    request: Resources, known: Cluster, options: dict[str, Any]
):
    """Nothing that would do is overlooked."""
    plain = {**options, "more_gpu_memory_than_mb": None, "more_memory_than_mb": None}
    plain["containers"] = None
    if isinstance(route(request, known, **plain), Route):
        return
    paused = {pool.name for pool in known.pools if pool.paused}
    for node in known.nodes:
        open_ = node.live and not node.cordoned and node.pool not in paused
        assert not (open_ and node.name not in options["avoid_nodes"] and fits(request, node))


@settings(max_examples=400)
@given(diagnoses, situations)
def test_decision_never_shrinks_and_never_passes_the_cap(
    diagnosis: Diagnosis, situation: dict[str, Any]
):
    """Every size grows or stays; memory that grew is at most `oom_memory_limit`."""
    decision = decide(diagnosis, **situation)
    assert decision.reason.startswith(f"{diagnosis.failure.value} (a-rule): ")
    if not isinstance(decision, Retry):
        return
    had, now = situation["resources"], decision.resources
    assert now.memory_mb >= had.memory_mb
    assert (now.shm_mb or 64) >= (had.shm_mb or 64)
    assert now.gpu_count >= had.gpu_count
    assert (now.gpu_memory_mb or 0) >= (had.gpu_memory_mb or 0)
    if now.memory_mb > had.memory_mb:
        assert diagnosis.failure is FailureClass.CPU_OUT_OF_MEMORY
        assert now.memory_mb <= min(2 * had.memory_mb, situation["policy"].oom_memory_limit)
    if now.shm_mb != had.shm_mb:
        assert now.shm_mb is not None
        assert now.shm_mb <= now.memory_mb
    if diagnosis.failure.group is not FailureGroup.ESCALATE:
        assert now == had
    assert decision.place.node not in decision.place.avoid_nodes
    assert decision.delay_seconds >= 0


@settings(max_examples=400)
@given(diagnoses, situations)
def test_decision_goes_only_where_it_fits_when_the_nodes_are_known(
    diagnosis: Diagnosis, situation: dict[str, Any]
):
    """A place that is not the old one is a known one that is open and large enough."""
    decision = decide(diagnosis, **situation)
    if not isinstance(decision, Retry):
        return
    place = decision.place
    moved = (place.pool, place.node) != (situation["pool"], situation["node"])
    if situation["policy"].retry_strategy is RetryStrategy.RETRY_SAME_NODE:
        assert not moved
    node = node_named(situation["cluster"], place.node)
    if moved and place.node is not None:
        assert node is not None
        assert node.pool == place.pool
        assert node.live
        assert not node.cordoned
        assert fits(decision.resources, node)
    elif moved:
        declared = {pool.name for pool in situation["cluster"].pools}
        assert place.pool == situation["pool"] or place.pool in declared
    grew = decision.resources.memory_mb > situation["resources"].memory_mb
    if grew and node is not None and node.pool == place.pool:
        assert node.memory_mb >= decision.resources.memory_mb


@settings(max_examples=400)
@given(figures, situations)
def test_route_after_gpu_oom_is_larger_unless_others_filled_the_gpu(
    numbers: MemoryFigures | None, situation: dict[str, Any]
):
    """With a GPU of known size and no foreign process, only more is asked for."""
    if numbers is not None and numbers.foreign_bytes:
        return
    had = 24576
    diagnosis = Diagnosis(
        failure=FailureClass.GPU_OUT_OF_MEMORY, rule="r", reason="Because.", figures=numbers
    )
    decision = decide(diagnosis, **{**situation, "gpu_memory_mb": had})
    known = situation["cluster"]
    own = [n for n in known.nodes if (n.name, n.pool) == (situation["node"], situation["pool"])]
    pinned = situation["policy"].retry_strategy is RetryStrategy.RETRY_SAME_NODE
    nothing_known = not known.nodes and not known.pools
    if not isinstance(decision, Retry) or nothing_known or (pinned and not own):
        return
    undeclared = all(
        (p.memory_mb, p.gpu_memory_mb, p.gpu_count) == (None,) * 3 for p in known.pools
    )
    if not known.nodes and undeclared:
        return
    assert decision.resources.gpu_memory_mb is not None
    assert decision.resources.gpu_memory_mb > had
    node = node_named(known, decision.place.node)
    # Under retry_same_node the memory stays what the attempt had there, whatever is declared.
    asked = replace(decision.resources, memory_mb=6) if pinned else decision.resources
    assert node is None or fits(asked, node)
    pools = {pool.name for pool in known.pools} | {node.pool for node in known.nodes}
    assert node is not None or decision.place.pool in pools


@given(diagnoses, situations)
def test_decision_does_not_depend_on_the_order_of_its_input(
    diagnosis: Diagnosis, situation: dict[str, Any]
):
    """Nodes, pools and history in another order."""
    other = {
        **situation,
        "cluster": shuffled(situation["cluster"]),
        "history": situation["history"][::-1],
    }
    assert decide(diagnosis, **situation) == decide(diagnosis, **other)


@given(st.lists(diagnoses, min_size=14, max_size=14), situations)
def test_retries_of_one_task_are_bounded(causes: list[Diagnosis], situation: dict[str, Any]):
    """Whatever fails in whatever order: at most 1 + both budgets attempts."""
    policy: RetryPolicy = situation["policy"]
    if policy.max_retries == -1 or policy.infrastructure_retries == -1:
        return
    history: list[Attempt] = []
    now = {**situation, "never_started": False}
    for number, cause in enumerate(causes, start=1):
        decision = decide(cause, **{**now, "history": history})
        if not isinstance(decision, Retry):
            return
        history.append(
            Attempt(
                attempt=number,
                flow_run_id="run",
                status=AttemptStatus.FAILED,
                failure=cause.failure.value,
                node=now["node"],
            )
        )
        assert len(history) <= policy.max_retries + policy.infrastructure_retries
        now["resources"] = decision.resources
        now["pool"], now["node"] = decision.place.pool, decision.place.node


@settings(max_examples=400)
@given(diagnoses, situations)
def test_decision_waits_only_for_a_node_that_would_fit_and_comes_back(
    diagnosis: Diagnosis, situation: dict[str, Any]
):
    """Away or in a paused pool, but neither stopped nor cordoned."""
    decision = decide(diagnosis, **situation)
    if not isinstance(decision, Retry) or decision.place.waits_for is None:
        return
    place, known = decision.place, situation["cluster"]
    awaited = node_named(known, place.waits_for)
    assert place.node is None
    assert awaited is not None
    assert awaited.pool == place.pool
    assert fits(decision.resources, awaited)
    assert not awaited.stopped
    assert not awaited.cordoned
    paused = {pool.name for pool in known.pools if pool.paused}
    assert not awaited.live or awaited.pool in paused


@settings(max_examples=400)
@given(situations, clusters)
def test_after_a_last_run_memory_grows_only_where_all_of_it_fits_now(
    situation: dict[str, Any], later: Cluster
):
    """A run that was called the last is not followed by one that waits, or by another last one."""
    oom = Diagnosis(failure=FailureClass.CPU_OUT_OF_MEMORY, rule="a-rule", reason="Because.")
    first = decide(oom, **{**situation, "history": []})
    if not isinstance(first, Retry) or "so a last run" not in first.reason:
        return
    if situation["policy"].retry_strategy is RetryStrategy.RETRY_SAME_NODE:
        return
    had = situation["resources"].memory_mb
    row = Attempt(
        attempt=1,
        flow_run_id="run",
        status=AttemptStatus.FAILED,
        failure=oom.failure.value,
        memory_mb=had,
    )
    place = first.place
    now = {"resources": first.resources, "pool": place.pool, "node": place.node}
    second = decide(oom, **{**situation, **now, "history": [row], "cluster": later})
    if not isinstance(second, Retry):
        return
    limit = situation["policy"].oom_memory_limit
    assert second.place.waits_for is None
    assert second.resources.memory_mb == min(2 * first.resources.memory_mb, limit)


@given(clusters, st.sampled_from(RetryStrategy), requests)
def test_cancel_ends_as_cancelled_always(
    known: Cluster, strategy: RetryStrategy, request: Resources
):
    """Nothing is retried after a user's cancel."""
    decision = decide(
        Diagnosis(failure=FailureClass.TASK_CANCELLED, rule="r", reason="x", verdict="retry"),
        policy=RetryPolicy(retry_strategy=strategy, max_retries=-1),
        resources=request,
        pool="p",
        node="node-1",
        history=(),
        cluster=known,
        jitter_fraction=0.0,
    )
    assert not isinstance(decision, Retry)
    assert decision.ending is Ending.CANCELLED
