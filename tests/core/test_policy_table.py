"""Every cell: failure class x strategy x how the cluster and the budgets stand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import MappingProxyType

import pytest

from prefect_heteroflow.core.actions import ACTION_OF, Action, action_for
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.failures import FailureClass, FailureGroup
from prefect_heteroflow.core.policy import Decision, Retry, RetryStrategy
from prefect_heteroflow.core.resources import Resources
from tests.core.policy_cases import NEW, NO, SAME, cluster, diagnosis, failed, node, policy

C = FailureClass
SMALL = ("p", 4096, 8192)
LARGE = (65536, 24576)

FITS_NODE = cluster(node("node-1", "p", 65536, 8192, 24576))
FITS_OTHER_NODE = cluster(node("node-1", *SMALL), node("node-2", "p", *LARGE))
FITS_OTHER_POOL = cluster(node("node-1", *SMALL), node("node-9", "q", *LARGE))
FITS_NOWHERE = cluster(node("node-1", *SMALL))
FULL = Resources(memory_mb=16384, shm_mb=16384, gpu_count=1)
SPENT = tuple(failed(n, C.TRANSIENT_ERROR) for n in (1, 2, 3)) + tuple(
    failed(n, C.NODE_LOST) for n in (4, 5, 6)
)

# name -> cluster, what the attempt had, GPU that it had, earlier attempts
SITUATIONS = MappingProxyType(
    {
        "fits the node": (FITS_NODE, Resources(memory_mb=4096, gpu_count=1), 8192, ()),
        "fits another node": (FITS_OTHER_NODE, Resources(memory_mb=4096, gpu_count=1), 8192, ()),
        "fits another pool": (FITS_OTHER_POOL, Resources(memory_mb=4096, gpu_count=1), 8192, ()),
        "fits nowhere": (FITS_NOWHERE, Resources(memory_mb=4096, gpu_count=1), 8192, ()),
        "cap reached": (FITS_NODE, FULL, 24576, ()),
        "budget spent": (FITS_NODE, Resources(memory_mb=4096, gpu_count=1), 8192, SPENT),
    }
)

TRANSIENT = (
    C.NETWORK_TIMEOUT,
    C.TRANSIENT_ERROR,
    C.CONTAINER_RUNTIME_ERROR,
    C.DISK_PRESSURE,
    C.DISTRIBUTED_PEER_LOST,
)
NODE = (C.NODE_LOST, C.PREEMPTED, C.GPU_HARDWARE_ERROR, C.PROCESS_CRASHED)
PERMANENT = (
    C.IMAGE_NOT_FOUND,
    C.IMAGE_PULL_BACK_OFF,
    C.PERMISSION_DENIED,
    C.INVALID_CONFIG,
    C.RESOURCE_LIMIT_EXCEEDED,
)
HERE, THERE, ELSEWHERE = "p/node-1", "p/node-2", "q/node-9"
# The columns are the situations, in their order.
EXPECTED: tuple[tuple[tuple[FailureClass, ...], RetryStrategy, tuple[str, ...]], ...] = (
    (
        (C.CPU_OUT_OF_MEMORY,),
        NEW,
        (
            f"{HERE} memory 8192",
            f"{THERE} memory 8192",
            f"{ELSEWHERE} memory 8192",
            "PermanentFailure",
            "PermanentFailure",
            "Failed",
        ),
    ),
    (
        (C.CPU_OUT_OF_MEMORY,),
        SAME,
        (f"{HERE} memory 8192", *["PermanentFailure"] * 4, "Failed"),
    ),
    (
        (C.GPU_OUT_OF_MEMORY,),
        NEW,
        (
            f"{HERE} gpu 8193",
            f"{THERE} gpu 8193",
            f"{ELSEWHERE} gpu 8193",
            "PermanentFailure",
            "PermanentFailure",
            "Failed",
        ),
    ),
    (
        (C.GPU_OUT_OF_MEMORY,),
        SAME,
        (f"{HERE} gpu 8193", *["PermanentFailure"] * 4, "Failed"),
    ),
    (
        (C.SHARED_MEMORY_EXHAUSTED,),
        NEW,
        (*[f"{HERE} shm 128"] * 4, "PermanentFailure", "Failed"),
    ),
    (
        (C.SHARED_MEMORY_EXHAUSTED,),
        SAME,
        (*[f"{HERE} shm 128"] * 4, "PermanentFailure", "Failed"),
    ),
    (TRANSIENT, NEW, (*[HERE] * 5, "Failed")),
    (TRANSIENT, SAME, (*[HERE] * 5, "Failed")),
    (NODE, NEW, (HERE, THERE, ELSEWHERE, HERE, HERE, "Crashed")),
    (NODE, SAME, (*[HERE] * 5, "Crashed")),
    ((C.UNKNOWN_ERROR,), NEW, (HERE, THERE, ELSEWHERE, HERE, HERE, "Failed")),
    ((C.UNKNOWN_ERROR,), SAME, (*[HERE] * 5, "Failed")),
    (PERMANENT, NEW, ("PermanentFailure",) * 6),
    (PERMANENT, SAME, ("PermanentFailure",) * 6),
    (PERMANENT, NO, ("PermanentFailure",) * 6),
    ((C.TASK_CANCELLED,), NEW, ("Cancelled",) * 6),
    ((C.TASK_CANCELLED,), SAME, ("Cancelled",) * 6),
    ((C.TASK_CANCELLED,), NO, ("Cancelled",) * 6),
    ((C.APPLICATION_ERROR,), NEW, ("Failed",) * 6),
    ((C.APPLICATION_ERROR,), SAME, ("Failed",) * 6),
    ((C.APPLICATION_ERROR,), NO, ("Failed",) * 6),
    ((C.CPU_OUT_OF_MEMORY,), NO, ("Failed",) * 6),
    ((C.GPU_OUT_OF_MEMORY,), NO, ("Failed",) * 6),
    ((C.SHARED_MEMORY_EXHAUSTED,), NO, ("Failed",) * 6),
    (TRANSIENT, NO, ("Failed",) * 6),
    (NODE, NO, ("Crashed",) * 6),
    ((C.UNKNOWN_ERROR,), NO, ("Failed",) * 6),
)
CELLS = {
    (failure, strategy, situation): outcome
    for failures, strategy, outcomes in EXPECTED
    for failure in failures
    for situation, outcome in zip(SITUATIONS, outcomes, strict=True)
}


def short(decision: Decision, had: Resources) -> str:
    """`pool/node`, then what changed; or the ending."""
    if not isinstance(decision, Retry):
        return decision.ending.value
    now, place = decision.resources, decision.place
    changes = (
        ("memory", had.memory_mb, now.memory_mb),
        ("shm", had.shm_mb, now.shm_mb),
        ("gpu", had.gpu_memory_mb, now.gpu_memory_mb),
        ("gpus", had.gpu_count, now.gpu_count),
    )
    changed = [f"{name} {after}" for name, before, after in changes if before != after]
    return " ".join([f"{place.pool}/{place.node}", *changed])


def test_table_holds_every_class_under_every_strategy():
    """No class and no strategy is left out, in the code or in this test."""
    assert set(ACTION_OF) == set(product(FailureClass, RetryStrategy))
    assert set(CELLS) == set(product(FailureClass, RetryStrategy, SITUATIONS))


@pytest.mark.parametrize(
    ("failure", "strategy", "situation", "outcome"),
    [
        pytest.param(*cell, outcome, id="-".join((cell[0].value, cell[1].value, cell[2])))
        for cell, outcome in CELLS.items()
    ],
)
def test_cell_of_the_table(
    failure: FailureClass, strategy: RetryStrategy, situation: str, outcome: str
):
    """Design section 2, one cell."""
    known, had, gpu_mb, history = SITUATIONS[situation]
    decision = decide(
        diagnosis(failure),
        policy=policy(strategy),
        resources=had,
        pool="p",
        node="node-1",
        history=history,
        cluster=known,
        jitter_fraction=0.5,
        gpu_memory_mb=gpu_mb,
    )
    assert short(decision, had) == outcome
    assert decision.reason.startswith(f"{failure.value} (a-rule): ")


@pytest.mark.parametrize("failure", [c for c in FailureClass if c is not C.TASK_CANCELLED])
def test_verdict_retry_tries_every_class_again_in_place_but_those_that_escalate(failure):
    """`retry_on` makes a permanent class transient; an out-of-memory one still grows."""
    known, had, gpu_mb, _ = SITUATIONS["fits the node"]
    decision = decide(
        diagnosis(failure, verdict="retry"),
        policy=policy(),
        resources=had,
        pool="p",
        node="node-1",
        history=(),
        cluster=known,
        jitter_fraction=0.0,
        gpu_memory_mb=gpu_mb,
    )
    expected = CELLS[failure, NEW, "fits the node"]
    assert short(decision, had) == (
        expected if failure.group is FailureGroup.ESCALATE else "p/node-1"
    )


@pytest.mark.parametrize("known", [FITS_NODE, FITS_OTHER_NODE, FITS_OTHER_POOL, FITS_NOWHERE])
def test_verdict_stop_stops_every_class(known):
    """`stop_on` comes before the class, except that a cancel stays a cancel."""
    for failure, strategy in product(FailureClass, RetryStrategy):
        decision = decide(
            diagnosis(failure, verdict="stop"),
            policy=policy(strategy, max_retries=-1),
            resources=Resources(),
            pool="p",
            node="node-1",
            history=(),
            cluster=known,
            jitter_fraction=0.0,
        )
        cancelled = failure is C.TASK_CANCELLED
        assert short(decision, Resources()) == ("Cancelled" if cancelled else "PermanentFailure")


def test_cancel_is_never_retried_whatever_a_rule_says():
    """`retry_on` that matches a cancel does nothing."""
    decision = decide(
        diagnosis(C.TASK_CANCELLED, verdict="retry"),
        policy=policy(max_retries=-1),
        resources=Resources(),
        pool="p",
        node="node-1",
        history=(),
        cluster=FITS_NODE,
        jitter_fraction=0.0,
    )
    assert short(decision, Resources()) == "Cancelled"


def test_table_stops_a_cancel_whatever_a_rule_says():
    """The table itself holds it, not only the order of the checks."""
    cancelled = diagnosis(C.TASK_CANCELLED, verdict="retry")
    assert action_for(cancelled, NEW) is Action.STOP


def test_no_action_but_stop_is_without_a_planner():
    """Each action of the table is carried out by a function."""
    from prefect_heteroflow.core import planning

    planners: MappingProxyType[Action, Callable[..., object]] = planning._PLANNERS
    assert set(planners) == set(Action) - {Action.STOP}
