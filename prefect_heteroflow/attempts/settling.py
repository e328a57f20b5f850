"""What follows from the end of an attempt: why it failed, what is decided, and who does it."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State

from prefect_heteroflow.attempts.backend import AttemptEnd, AttemptNotStarted
from prefect_heteroflow.attempts.diagnosing import DiagnosisRules, diagnose_end
from prefect_heteroflow.attempts.ending import AttemptEnding
from prefect_heteroflow.attempts.gpu_faults import cordon_after_attempt
from prefect_heteroflow.attempts.next_attempt import NextAttempt
from prefect_heteroflow.attempts.outcome import Outcome, is_past, outcome_of, went_on
from prefect_heteroflow.attempts.overtaken import SHORTEST_SILENCE
from prefect_heteroflow.attempts.preparing import rules_of
from prefect_heteroflow.attempts.run_again import close
from prefect_heteroflow.core.attempts import Attempt, current_series, exit_status
from prefect_heteroflow.core.contact import has_gone_on_without
from prefect_heteroflow.core.decide import decide, without_deployment
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass, FailureGroup
from prefect_heteroflow.core.job_values import JobValues
from prefect_heteroflow.core.policy import Decision, Ending, Retry, Stop
from prefect_heteroflow.core.progress import Progress, stuck_reason
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.environment import EngineReport
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts
from prefect_heteroflow.orchestration.insisting import insist
from prefect_heteroflow.orchestration.loose_ends import close_runs_of_attempt
from prefect_heteroflow.orchestration.progress_artifacts import (
    read_progress_artifact,
    write_progress,
)

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

T = TypeVar("T")


@dataclass(kw_only=True)
class AttemptSettling:
    """Settles one attempt. Each public method may be called once."""

    worker: RetryingWorker
    flow_run: FlowRun
    task_id: UUID
    history: tuple[Attempt, ...]
    row: Attempt
    values: JobValues
    resources: Resources
    gpu_memory_mb: int | None
    """Memory of its smallest GPU, MiB."""
    is_plain_job: bool
    gpu_uuids: tuple[str, ...]
    """The GPUs that it was given."""
    job: str | None
    """See `restarts.job_digest`."""
    containers: bool | None
    """Whether it needs a container."""
    scanner: FailureScanner
    logger: logging.LoggerAdapter[Any]
    was_cancelled: Callable[[], bool]
    run_again: str | None = None
    """Why it was ended, if that was because its run is started again."""
    ended_by_hand: State | None = None
    """The end of its run because of which it was ended, if a person has set one."""
    progress: Progress | None = None
    """How far it came, where a file tells."""
    _decided: tuple[Diagnosis, Decision] | None = field(default=None, init=False)
    _state_id: UUID | None = field(default=None, init=False)
    """Of the state in which the attempt ended, once that was read."""
    _read_at: datetime = field(default_factory=utc_now, init=False)
    """When it was last known that nobody has gone on."""

    async def ended(self, end: AttemptEnd, report: EngineReport | None) -> NextAttempt | None:
        """Act on an end, and again for as long as the API does not answer: no end is lost.

        Returns:
            The attempt that this worker goes on with at once, if there is one.
        """
        return await self._insist(partial(self._settle, end, report))

    async def not_started(self, error: AttemptNotStarted) -> NextAttempt | None:
        """Act on what kept the attempt from starting."""
        if self.was_cancelled():
            await self._insist(self.ending().cancelled)
            return None
        if error.failure is not None:
            return await self.refused(error.failure, "not-started", error.engine_error)
        self.logger.error("The attempt could not be started: %s", error.engine_error)
        evidence = Evidence(phase="start", engine_error=error.engine_error)
        diagnosis = self._rules().diagnose(evidence)
        return await self._insist(partial(self._conclude, diagnosis, never_started=True))

    async def refused(self, failure: FailureClass, rule: str, text: str) -> NextAttempt | None:
        """Act on a run that must not start as it is."""
        self.logger.error("%s", text)
        diagnosis = Diagnosis(failure=failure, rule=rule, reason=text)
        return await self._insist(partial(self._conclude, diagnosis, never_started=True))

    def ending(self) -> AttemptEnding:
        """The one that writes down and acts."""
        return AttemptEnding(
            worker=self.worker,
            flow_run=self.flow_run,
            task_id=self.task_id,
            history=self.history,
            row=self.row,
            resources=self.resources,
            policy=self.values.policy,
            is_plain_job=self.is_plain_job,
            job=self.job,
            was_cancelled=self.was_cancelled,
            has_gone_on=self._has_gone_on,
        )

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T | None:
        return await insist(step, self.logger, f"the end of attempt {self.row.attempt}")

    async def _settle(self, end: AttemptEnd, report: EngineReport | None) -> NextAttempt | None:
        run = await self._read_run()
        if self._decided is not None:
            return await self._act_on_decision()
        self._state_id = None if run.state is None else run.state.id
        if self.run_again is not None and not self.was_cancelled():
            await close(self.worker, run.id, self.task_id, self.row, self.run_again)
            return None
        if not end.lost and await self._was_given_up(run):
            return None
        by_hand = self.ended_by_hand
        if by_hand is not None and by_hand.id == self._state_id:
            why = f"Ended: its run was set to {by_hand.name} while it ran."
            await self._close_runs_within(why)
            await self.ending().ended_by_hand(why)
            return None
        outcome = outcome_of(
            end=end,
            state=run.state,
            is_plain_job=self.is_plain_job,
            cancel_requested=self.was_cancelled(),
            was_terminated=report is not None and report.signal is not None,
        )
        self.row = dataclasses.replace(
            self.row,
            ended=self.row.ended or utc_now().isoformat(),
            exit_code=exit_status(end.exit_code, end.signal),
            peak_memory_mb=end.peak_memory_mb,
        )
        ending = self.ending()
        if outcome is Outcome.CANCELLED:
            await ending.cancelled()
        elif outcome is Outcome.COMPLETED:
            await ending.completed()
            if self.progress is not None or any(row.progress for row in self.history):
                await write_progress(self.worker.client, self.task_id, 100.0, succeeded=True)
        elif outcome is Outcome.LEFT_TO_PREFECT:
            await ending.left_to_prefect()
        elif outcome is Outcome.ENDED_IN_PAUSE and run.deployment_id is not None:
            await ending.ended_in_pause()
        elif outcome is Outcome.ENDED_BY_ITSELF:
            await ending.ended_by_itself(_storable(self._diagnose(end, report)))
        else:
            return await self._conclude(self._diagnose(end, report))
        return None

    async def _was_given_up(self, run: FlowRun) -> bool:
        """Others have moved the task on while this worker was cut off: its end does not count.

        Unless the flow has reported it and nobody has started another attempt.
        """
        if not self._may_have_been_given_up():
            return False
        rows = await read_attempts(self.worker.client, self.task_id)
        own = next((row for row in rows if row.attempt == self.row.attempt), None)
        if own is None or own.failure != FailureClass.NODE_LOST.value:
            return False
        said_by_flow = run.state is not None and run.state.is_final() and not self.is_plain_job
        if said_by_flow and not has_gone_on_without(self.row.attempt, rows):
            return False
        self.logger.warning(
            "Attempt %d has ended, but it had been given up as lost while its worker was not heard"
            " of: its end does not count.",
            self.row.attempt,
        )
        return True

    def _may_have_been_given_up(self) -> bool:
        """Nobody does so sooner; short attempts save the request."""
        started = self.row.started
        return (
            started is not None and utc_now() - datetime.fromisoformat(started) >= SHORTEST_SILENCE
        )

    def _diagnose(self, end: AttemptEnd, report: EngineReport | None) -> Diagnosis:
        return diagnose_end(
            end,
            report,
            state=self.flow_run.state,
            log=self.scanner.evidence_text(),
            resources=self.resources,
            gpu_memory_mb=self.gpu_memory_mb,
            rules=self._rules(),
        )

    def _rules(self) -> DiagnosisRules:
        return DiagnosisRules(
            user_rules=rules_of(self.worker, self.values),
            retry_exceptions=self.values.retry_exceptions,
        )

    async def _conclude(
        self, diagnosis: Diagnosis, *, never_started: bool = False
    ) -> NextAttempt | None:
        """Decide what follows, write it down, and do it."""
        if self._decided is not None:
            await self._read_run()
            return await self._act_on_decision()
        diagnosis = _storable(diagnosis)
        await self._cordon(diagnosis)
        await self._note_progress()
        if not never_started:
            await self._close_runs_within(
                f"Attempt {self.row.attempt} of the flow run ended: {diagnosis.reason}"
            )
        decision = await self._decide(diagnosis, never_started=never_started)
        decision = self._unless_stuck(diagnosis, decision)
        if self.flow_run.deployment_id is None:
            decision = without_deployment(decision, diagnosis)
        self.row = dataclasses.replace(
            self.row, ended=utc_now().isoformat(), never_started=never_started
        )
        self._decided = (diagnosis, decision)
        return await self.ending().decided(diagnosis, decision)

    async def _close_runs_within(self, why: str) -> None:
        if self.is_plain_job:
            return
        closed = await close_runs_of_attempt(self.worker.client, self.flow_run.id, why)
        if closed:
            self.logger.info("%d runs within the flow run ended with the attempt.", closed)

    async def _cordon(self, diagnosis: Diagnosis) -> None:
        """Take a GPU or node with a fault out of use, before the next place is looked for."""
        if self.row.node is None:
            return
        advice = await cordon_after_attempt(
            self.worker.client, self.row.node, diagnosis, self.gpu_uuids
        )
        if advice is None:
            return
        self.logger.warning("Node %s: %s", self.row.node, advice.reason)
        await self.worker.read_cluster(fresh=True)

    async def _note_progress(self) -> None:
        """Where it came to, by its file or else by the progress artifact that it made."""
        found = self.progress or await read_progress_artifact(self.worker.client, self.flow_run.id)
        if found is None:
            return
        self.row = dataclasses.replace(self.row, progress=found.point)
        if found.percent is not None:
            await write_progress(self.worker.client, self.task_id, found.percent)

    def _unless_stuck(self, diagnosis: Diagnosis, decision: Decision) -> Decision:
        if isinstance(decision, Stop):
            return decision
        points = [row.progress for row in current_series(self.history)]
        limit = self.worker.heteroflow_settings.no_progress_limit
        reason = stuck_reason([*points, self.row.progress], limit)
        if reason is None:
            return decision
        text = f"{diagnosis.failure.value} ({diagnosis.rule}): {diagnosis.reason} {reason}"
        return Stop(ending=Ending.PERMANENT_FAILURE, reason=text)

    async def _act_on_decision(self) -> NextAttempt | None:
        """Again: an outage came between the decision and what follows from it."""
        assert self._decided is not None
        diagnosis, decision = self._decided
        if self._others_went_on(decision):
            return None
        return await self.ending().decided(diagnosis, decision)

    async def _read_run(self) -> FlowRun:
        self.flow_run = await self.worker.client.read_flow_run(self.flow_run.id)
        self._read_at = utc_now()
        return self.flow_run

    async def _has_gone_on(self, decision: Decision) -> bool:
        """Whether others have done what was decided; asks only if there was time for it.

        This worker may have been paused (SIGSTOP, a suspended machine) between two steps.
        """
        if utc_now() - self._read_at < SHORTEST_SILENCE:
            return False
        await self._read_run()
        gone_on = self._others_went_on(decision)
        if gone_on:
            self.logger.warning("Others have gone on with the run: nothing is done about its end.")
        return gone_on

    def _others_went_on(self, decision: Decision) -> bool:
        state, is_retry = self.flow_run.state, isinstance(decision, Retry)
        if self._state_id is None:
            return went_on(state, since=self.row.ended, is_retry=is_retry)
        return state is not None and state.id != self._state_id and is_past(state, is_retry)

    async def _decide(self, diagnosis: Diagnosis, *, never_started: bool) -> Decision:
        for fresh in (False, True):
            decision = decide(
                diagnosis,
                policy=self.values.policy,
                resources=self.resources,
                pool=self.row.pool or self.worker.node.pool,
                node=self.row.node,
                history=current_series(self.history),
                cluster=await self.worker.read_cluster(fresh=fresh),
                jitter_fraction=random.random(),
                never_started=never_started,
                gpu_memory_mb=self.gpu_memory_mb,
                containers=self.containers,
            )
            # "It fits nowhere" must not rest on what was known a moment ago.
            if isinstance(decision, Retry) or diagnosis.failure.group is not FailureGroup.ESCALATE:
                break
        return decision


def _storable(diagnosis: Diagnosis) -> Diagnosis:
    """What it says goes into rows, states and logs; an exception's text may hold anything."""
    return dataclasses.replace(
        diagnosis, reason=storable(diagnosis.reason), line=storable(diagnosis.line or "") or None
    )
