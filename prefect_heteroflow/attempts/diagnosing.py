"""From the end of an attempt to the reason of its failure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from prefect.client.schemas.objects import State, StateType

from prefect_heteroflow import environment
from prefect_heteroflow.attempts.backend import AttemptEnd
from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.user_rules import UserRule, apply_user_rules, is_by_user_rule

TIMED_OUT = "TimedOut"
"""Name of the state of a flow that ran longer than its `timeout_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRules:
    """What the user says about failures, over the built-in rules."""

    user_rules: tuple[UserRule, ...] = ()
    retry_exceptions: bool | tuple[str, ...] = False

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        """Why it failed; never nothing, for an attempt that is known to have failed."""
        found = diagnose(
            evidence, user_rules=self.user_rules, retry_exceptions=self.retry_exceptions
        )
        if found is not None:
            return found
        return Diagnosis(
            failure=FailureClass.UNKNOWN_ERROR,
            rule="no-final-state",
            reason=(
                f"The process ended with exit code {evidence.exit_code}, but the run never"
                " reported a final state."
            ),
            confidence=0.3,
        )


def diagnose_end(
    end: AttemptEnd,
    report: environment.EngineReport | None,
    *,
    state: State | None,
    log: str,
    resources: Resources,
    gpu_memory_mb: int | None,
    rules: DiagnosisRules,
) -> Diagnosis:
    """Why an attempt failed.

    The engine entry's own diagnosis counts first: it saw the exception as an object. Only a kill
    for memory that the container engine saw counts for more, and whatever ended a process in which
    Prefect was about to try the flow again after that exception.

    Args:
        end: How the main process ended.
        report: What the engine entry left, if anything.
        state: The state that Prefect holds.
        log: What the scanner kept of the output.
        resources: What the attempt had.
        gpu_memory_mb: Memory of its GPU, MiB.
        rules: The user's own rules.
    """
    is_final = state is not None and state.type in (StateType.FAILED, StateType.CRASHED)
    is_out_of_time = is_final and state is not None and state.name == TIMED_OUT
    if report is not None and report.diagnosis is not None and not end.killed_for_memory:
        waits = state is not None and state.type is StateType.SCHEDULED
        if not waits and (is_final or report.signal is None):
            found = report.diagnosis
            if not report.aborted or is_by_user_rule(found):
                return found
            # It heard the flow's own process; this is the output of all.
            return apply_user_rules(found, Evidence(log=log), rules.user_rules)
    signal_number = end.signal
    if signal_number is None and report is not None:
        signal_number = report.signal
    diagnosis = rules.diagnose(
        Evidence(
            phase="lost" if end.lost else "run",
            exit_code=end.exit_code,
            signal=signal_number,
            oom_killed=end.oom_killed,
            oom_kill_count=end.oom_kill_count,
            memory_limit_mb=resources.memory_mb,
            peak_memory_mb=end.peak_memory_mb,
            engine_error=end.engine_error,
            state_message=state.message if state is not None and is_final else None,
            log=log,
            cancel_requested=False,
            deadline_exceeded=is_out_of_time or None,
            gpu_total_mb=gpu_memory_mb,
        )
    )
    if end.lost_because is not None and diagnosis.failure is FailureClass.NODE_LOST:
        return dataclasses.replace(diagnosis, reason=end.lost_because)
    return diagnosis
