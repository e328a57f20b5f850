"""One evidence object per line in, one diagnosis per line out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, get_args

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, Phase
from prefect_heteroflow.core.user_rules import UserRule

_PHASES = get_args(Phase)


class _Writer(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


def answer_lines(
    lines: Iterable[bytes], out: _Writer, *, user_rules: Sequence[UserRule] = ()
) -> None:
    """Write one JSON object for each of `lines`, in order, each flushed when it is known.

    A line that is not a JSON object, or whose fields have the wrong type, gets an object with
    `error`; the rest goes on.
    """
    for line in lines:
        out.write(json.dumps(_answer(line, user_rules)) + "\n")
        out.flush()


def diagnosis_fields(found: Diagnosis | None) -> dict[str, Any]:
    """`found` as the fields of a JSON object; all of them null where nothing failed."""
    figures = None if found is None else found.figures
    return {
        "failure": None if found is None else found.failure.value,
        "group": None if found is None else found.failure.group.value,
        "rule": None if found is None else found.rule,
        "line": None if found is None else found.line,
        "reason": None if found is None else found.reason,
        "confidence": 1.0 if found is None else found.confidence,
        "requested_bytes": None if figures is None else figures.requested_bytes,
        "total_bytes": None if figures is None else figures.total_bytes,
        "free_bytes": None if figures is None else figures.free_bytes,
        "own_bytes": None if figures is None else figures.own_bytes,
        "foreign_bytes": None if figures is None else figures.foreign_bytes,
        "gpu_index": None if figures is None else figures.gpu_index,
        "runner_up": None if found is None or not found.runner_up else found.runner_up.value,
        "verdict": None if found is None else found.verdict,
        "passive_matches": [] if found is None else list(found.passive_matches),
    }


def _answer(line: bytes, user_rules: Sequence[UserRule]) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        return {"id": None, "error": f"not a JSON object: {str(error)[:200]}"}
    if not isinstance(value, dict):
        return {"id": None, "error": f"not a JSON object: it is a {type(value).__name__}"}
    try:
        evidence = evidence_from(value)
    except ValueError as error:
        return {"id": value.get("id"), "error": str(error)}
    return {"id": value.get("id"), **diagnosis_fields(diagnose(evidence, user_rules=user_rules))}


def evidence_from(value: dict[str, Any]) -> Evidence:
    """Evidence from the keys `exit_code`, `oom_killed`, `phase` and `log`; others are ignored.

    Raises:
        ValueError: A field has the wrong type.
    """
    exit_code, phase = value.get("exit_code"), value.get("phase")
    oom_killed, log = value.get("oom_killed"), value.get("log")
    if exit_code is not None and (isinstance(exit_code, bool) or not isinstance(exit_code, int)):
        raise ValueError("`exit_code` must be a whole number or null")
    if oom_killed is not None and not isinstance(oom_killed, bool):
        raise ValueError("`oom_killed` must be true, false or null")
    if phase is not None and phase not in _PHASES:
        raise ValueError(f"`phase` must be one of {', '.join(_PHASES)} or null")
    if log is not None and not isinstance(log, str):
        raise ValueError("`log` must be a text or null")
    return Evidence(exit_code=exit_code, oom_killed=oom_killed, phase=phase, log=log)
