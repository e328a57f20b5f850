"""Why an attempt failed, from everything that was observed about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefect_heteroflow.core.exception_rules import diagnose_exception
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.log_lines import split_lines
from prefect_heteroflow.core.root_cause import Chosen, choose
from prefect_heteroflow.core.rules import Role
from prefect_heteroflow.core.status_rules import (
    from_exit_status,
    from_kubernetes,
    from_requests,
    from_witnesses,
    succeeded,
)
from prefect_heteroflow.core.user_rules import UserRule, apply_user_rules

__all__ = ["diagnose"]


def diagnose(
    evidence: Evidence,
    *,
    user_rules: Sequence[UserRule] = (),
    retry_exceptions: bool | Sequence[str] = False,
    trusts_messages: bool = True,
) -> Diagnosis | None:
    """The cause of the failure that `evidence` shows, or `None` where nothing failed.

    The order: what we asked for ourselves (cancel, deadline), the user's own rules, witnesses
    that cannot be mistaken (engine, kernel, driver, Kubernetes), the exception, the output, the
    exit status. Exit code 0 without a witness is a success, whatever the output says.

    Args:
        evidence: What was observed; `None` in a field means "not observed".
        user_rules: `retry_on` and `stop_on` of the user, parsed; the first that matches decides.
        retry_exceptions: Whether an application exception counts as retryable: never, always,
            or for these type names (dotted or bare, base types and causes included).
        trusts_messages: Whether what an exception says proves a transient failure, whatever its
            type is. Of a task's body it does not: an application's own error may quote anything.
    """
    asked = from_requests(evidence)
    if asked is not None:
        return asked
    if succeeded(evidence):
        return None
    found = apply_user_rules(_built_in(evidence, trusts_messages), evidence, user_rules)
    return _with_exception_verdict(found, evidence, retry_exceptions)


def _built_in(evidence: Evidence, trusts_messages: bool) -> Diagnosis:
    witnessed = from_witnesses(evidence)
    if witnessed is not None:
        return witnessed
    text = _text(evidence)
    chosen = choose(text, evidence)
    if evidence.kubernetes_reason is not None:
        found = from_kubernetes(evidence, chosen)
        if found is not None:
            return found
    if evidence.exception is not None:
        return diagnose_exception(evidence.exception, chosen, trusts_messages=trusts_messages)
    if chosen is not None and not _outranked_by_signal(chosen, evidence):
        return chosen.diagnosis()
    return from_exit_status(evidence, chosen)


def _outranked_by_signal(chosen: Chosen, evidence: Evidence) -> bool:
    """An ordinary exception in the output does not end a process by SIGKILL or SIGTERM."""
    killed = evidence.exit_code in (137, 143) or evidence.signal in (9, 15)
    return killed and chosen.survived and chosen.match.rule.role is not Role.PLATFORM


def _text(evidence: Evidence) -> list[str]:
    texts = (
        evidence.log,
        evidence.engine_error,
        evidence.kubernetes_message,
        evidence.state_message,
    )
    parts = [text for text in texts if text]
    return split_lines("\n".join(parts)) if parts else []


def _with_exception_verdict(
    found: Diagnosis, evidence: Evidence, retry_exceptions: bool | Sequence[str]
) -> Diagnosis:
    if found.verdict is not None or found.failure is not FailureClass.APPLICATION_ERROR:
        return found
    if retry_exceptions is False:
        return found
    if retry_exceptions is True:
        return replace(found, verdict="retry")
    if evidence.exception is None:
        return found
    wanted = set(retry_exceptions)
    for info in (evidence.exception, *evidence.exception.causes):
        for name in info.type_names:
            bare = name.rpartition(".")[2]
            if name in wanted or bare in wanted:
                reason = f"{found.reason} `{bare}` is in `retry_exceptions`."
                return replace(found, verdict="retry", reason=reason)
    return found
