"""What a task may have of its flow run, and where it goes after a kill for what others used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prefect_heteroflow.core.failures import OUTER_MEMORY_LIMIT, Diagnosis, FailureClass
from prefect_heteroflow.core.policy import Retry, RetryPolicy
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.task_places import is_at_home, room_for_bodies
from prefect_heteroflow.task_runner.attempts_elsewhere import TaskOutcome
from prefect_heteroflow.task_runner.granted_retries import GrantedRetries
from prefect_heteroflow.task_runner.next_attempt import NextAttempt, Places
from tests.core.policy_cases import cluster

HOME = Node(name="vm", pool="cpu", memory_mb=600)
VM = Node(name="vm", pool="cpu", memory_mb=24105)


def next_attempt(known: Cluster, *, promised_mb: int) -> NextAttempt:
    unused: Any = object()
    places = Places(
        home=HOME,
        room=room_for_bodies(HOME, 170),
        local=unused,
        remote=unused,
        producers=unused,
        read_cluster=lambda: known,
        say_once=unused,
    )
    task: Any = SimpleNamespace(retries=0, retry_delay_seconds=None)
    retries = GrantedRetries(task, RetryPolicy())
    return NextAttempt(retries, RetryPolicy(), places, promised_mb=promised_mb)


def retry_after(rule: str, coming: NextAttempt, memory_mb: int) -> Retry:
    decision = coming.decide(
        TaskOutcome(kind="died", pool="cpu", node="vm", started="2026-11-30T00:00:00Z"),
        Diagnosis(failure=FailureClass.CPU_OUT_OF_MEMORY, rule=rule, reason="Too little."),
        resources=Resources(memory_mb=memory_mb),
        rows=[],
        is_beside=False,
    )
    assert isinstance(decision, Retry), decision
    return decision


def test_task_that_was_killed_for_what_others_use_leaves_home_though_home_is_larger() -> None:
    coming = next_attempt(cluster(VM), promised_mb=200)
    decision = retry_after(OUTER_MEMORY_LIMIT, coming, 200)
    assert (decision.resources.memory_mb, decision.place.node) == (400, "vm")
    assert not is_at_home(decision.place, decision.resources, coming.home)
    assert "as a run of its own: this flow run has 600 MB of memory" in decision.reason


def test_task_that_was_killed_for_what_others_use_stays_with_its_size_where_no_node_is_known() -> (
    None
):
    coming = next_attempt(Cluster(), promised_mb=0)
    decision = retry_after(OUTER_MEMORY_LIMIT, coming, 400)
    assert decision.resources.memory_mb == 400
    assert is_at_home(decision.place, decision.resources, coming.home)
    assert coming.reserved_mb == 400


def test_task_that_had_all_of_its_flow_run_grows_after_a_kill_for_what_others_use() -> None:
    coming = next_attempt(cluster(VM), promised_mb=0)
    assert retry_after(OUTER_MEMORY_LIMIT, coming, 600).resources.memory_mb == 1200


def test_task_grows_at_home_to_what_can_be_promised_there() -> None:
    """Not to 600 MB, of which the flow's process uses 170: it would wait for them for ever."""
    decision = retry_after("cgroup-oom-kill", next_attempt(Cluster(), promised_mb=300), 300)
    assert decision.resources.memory_mb == 430


def test_task_begins_at_home_though_the_flows_process_uses_a_part_of_what_it_asks_for() -> None:
    """A run of its own costs a slot of a worker, for which it may wait; it may need less, too."""
    assert next_attempt(Cluster(), promised_mb=590).home == HOME
