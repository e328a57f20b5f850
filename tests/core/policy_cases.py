"""Small builders for tests of the policy: one failed attempt on `node-1` of pool `p`."""

from __future__ import annotations

from typing import Any

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.failures import Diagnosis, FailureClass, MemoryFigures
from prefect_heteroflow.core.policy import Decision, Retry, RetryPolicy, RetryStrategy, Stop
from prefect_heteroflow.core.resources import Cluster, Gpu, Node, Pool, Resources

GIB = 1024**3
NEW, SAME, NO = RetryStrategy.RETRY_NEW_NODE, RetryStrategy.RETRY_SAME_NODE, RetryStrategy.NO_RETRY


def gpus(*sizes_mb: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(uuid=f"GPU-{at}", name=f"{size} MB", memory_mb=size) for at, size in enumerate(sizes_mb)
    )


def node(name: str, pool: str = "p", memory_mb: int = 4096, *gpu_mb: int, **more: Any) -> Node:
    return Node(name=name, pool=pool, memory_mb=memory_mb, gpus=gpus(*gpu_mb), **more)


def cluster(*members: Node | Pool) -> Cluster:
    return Cluster(
        nodes=tuple(member for member in members if isinstance(member, Node)),
        pools=tuple(member for member in members if isinstance(member, Pool)),
    )


def diagnosis(
    failure: FailureClass,
    *,
    verdict: Any = None,
    figures: MemoryFigures | None = None,
) -> Diagnosis:
    return Diagnosis(
        failure=failure, rule="a-rule", reason="Because of this.", verdict=verdict, figures=figures
    )


def failed(number: int, failure: FailureClass, **more: Any) -> Attempt:
    values: dict[str, Any] = {
        "pool": "p",
        "node": "node-1",
        "status": AttemptStatus.FAILED,
        "flow_run_id": "run",
    }
    return Attempt(attempt=number, failure=failure.value, **{**values, **more})


def policy(strategy: RetryStrategy = NEW, **more: Any) -> RetryPolicy:
    return RetryPolicy(retry_strategy=strategy, **more)


def what_follows(failure: FailureClass, known: Cluster, **more: Any) -> Decision:
    """`decide` for an attempt with 4096 MB on `node-1` of pool `p`, first attempt, no jitter."""
    seen = diagnosis(failure, verdict=more.pop("verdict", None), figures=more.pop("figures", None))
    values: dict[str, Any] = {
        "policy": policy(),
        "resources": Resources(memory_mb=4096),
        "pool": "p",
        "node": "node-1",
        "history": (),
        "cluster": known,
        "jitter_fraction": 0.0,
    }
    return decide(seen, **{**values, **more})


def retry(decision: Decision) -> Retry:
    assert isinstance(decision, Retry), decision
    return decision


def stop(decision: Decision) -> Stop:
    assert isinstance(decision, Stop), decision
    return decision
