"""What follows a failed attempt of a task run, and what the task run may have of its flow run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from prefect_heteroflow.core.attempts import Attempt
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.failures import OUTER_MEMORY_LIMIT, Diagnosis, FailureGroup
from prefect_heteroflow.core.policy import (
    Decision,
    Ending,
    Retry,
    RetryPolicy,
    Stop,
)
from prefect_heteroflow.core.resources import Cluster, Node, Resources
from prefect_heteroflow.core.task_places import has_text, is_at_home, places_beside, roomier
from prefect_heteroflow.core.task_retries import is_cramped
from prefect_heteroflow.task_runner.attempts_elsewhere import (
    RemoteAttempts,
    TaskOutcome,
    no_remote,
)
from prefect_heteroflow.task_runner.granted_retries import GrantedRetries
from prefect_heteroflow.task_runner.local_attempts import LocalAttempts
from prefect_heteroflow.task_runner.lost_results import Producers


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where attempts of one runner can run."""

    home: Node
    """What the flow run itself may use, under the name of its node."""
    room: Node
    """What of it can be promised to tasks: all but what the flow's own process uses."""
    local: LocalAttempts
    remote: RemoteAttempts | None
    producers: Producers
    """Task runs that can run again when their results are lost."""
    read_cluster: Callable[[], Cluster]
    """All nodes and pools that are known; asked only when home is too small."""
    say_once: Callable[[str, str], None]
    """Log a warning for a task, once: its name and the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """A failed attempt, with what the decision about it depends on."""

    outcome: TaskOutcome
    diagnosis: Diagnosis
    resources: Resources
    rows: Sequence[Attempt]


class NextAttempt:
    """Decides what follows the failed attempts of one task run.

    Args:
        retries: Those that it is granted.
        policy: How it is retried.
        places: Where attempts can run.
        promised_mb: Memory that it asks for, MiB; 0 for none.
    """

    def __init__(
        self, retries: GrantedRetries, policy: RetryPolicy, places: Places, *, promised_mb: int
    ) -> None:
        self._retries = retries
        self._policy = policy
        self._places = places
        self.reserved_mb = promised_mb
        """What it asked for, or was shown to need, MiB."""
        self.home = places.home
        """What it may have of the flow run; less after it was shown that so much is not there."""

    def cluster(self) -> Cluster:
        """The nodes for attempts that do not fit home; blocks while the API is asked."""
        return places_beside(self.home, self._places.read_cluster())

    def decide(
        self,
        outcome: TaskOutcome,
        diagnosis: Diagnosis,
        *,
        resources: Resources,
        rows: Sequence[Attempt],
        is_beside: bool,
    ) -> Decision:
        """What follows; `home` and `reserved_mb` are then those of the next attempt.

        Args:
            outcome: How the attempt ended.
            diagnosis: Why.
            resources: What it had.
            rows: The attempts before it.
            is_beside: It was a run of its own.
        """
        failed = _Failed(outcome=outcome, diagnosis=diagnosis, resources=resources, rows=rows)
        if is_beside:
            return self._within(self.cluster(), failed)
        had_mb = resources.memory_mb
        if diagnosis.rule == OUTER_MEMORY_LIMIT and had_mb < self._places.home.memory_mb:
            return self._out_of_the_crowd(failed)
        escalates = diagnosis.failure.group is FailureGroup.ESCALATE
        if escalates and self._places.room.memory_mb > had_mb:
            self.home = self._places.room  # what it grows to is promised
        decision = self._within(Cluster(nodes=(self.home,)), failed)
        if not escalates or not is_cramped(decision, resources, self._policy):
            return decision
        decision = roomier(decision, self._within(self.cluster(), failed))
        if not isinstance(decision, Retry):
            return decision
        if is_at_home(decision.place, decision.resources, self.home):
            return decision
        if self._places.remote is None:
            reason = f"{decision.reason}. {no_remote(decision.place.pool)}"
            return Stop(ending=Ending.PERMANENT_FAILURE, reason=reason)
        return self._as_own_run(decision)

    def _out_of_the_crowd(self, failed: _Failed) -> Decision:
        """After a kill for what others used: a run of its own, else the same again at home."""
        at_home = self._within(Cluster(nodes=(self._places.home,)), failed, same_size=True)
        if not isinstance(at_home, Retry):
            return at_home
        had_mb = failed.resources.memory_mb
        self.reserved_mb = max(self.reserved_mb, had_mb)
        if self._places.remote is None:
            return at_home
        known = self._places.read_cluster()
        # It grows there: in a run of its own the engine's process shares its limit.
        beside = self._within(known, failed)
        if not isinstance(beside, Retry) or beside.place.waits_for or not known.nodes:
            return at_home
        self.home = replace(self._places.home, memory_mb=had_mb - 1)  # so much was not there
        return self._as_own_run(beside)

    def _as_own_run(self, decision: Retry) -> Retry:
        has = has_text(self._places.home, self._places.room)
        return replace(decision, reason=f"{decision.reason}, as a run of its own: {has}")

    def _within(self, cluster: Cluster, failed: _Failed, *, same_size: bool = False) -> Decision:
        outcome = failed.outcome
        return decide(
            failed.diagnosis,
            policy=self._retries.policy_of_next(of_body=is_of_body(outcome)),
            resources=failed.resources,
            pool=outcome.pool or self._places.home.pool,
            node=outcome.node,
            history=failed.rows,
            cluster=cluster,
            jitter_fraction=random.random(),
            never_started=outcome.started is None,
            gpu_memory_mb=outcome.gpu_memory_mb,
            own_retries=self._retries.own(),
            same_size=same_size,
        )


def is_of_body(outcome: TaskOutcome) -> bool:
    """An exception of the body, in which the task's own `retries` have their say."""
    return outcome.kind in ("raised", "timed_out")
