"""Whether a run was lost, done twice or ended wrongly. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.kinds import CANCELLED, Kind

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_OPEN_ROWS = ("running", "scheduled")
_ENDS = {"Completed": "completed", "Cancelled": "cancelled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of one run at the end."""

    run_id: str
    kind: Kind
    states: Sequence[tuple[str, str]]
    """Type and name of each state of the front run, oldest first."""
    rows: Sequence[Mapping[str, Any]]
    """The attempt history."""
    marks: Sequence[Mapping[str, Any]]
    """What its attempts noted, oldest first."""
    attempt_runs: Mapping[str, Sequence[tuple[str, str]]]
    """The states of each of its attempt runs, by name."""


def violations(seen: Seen) -> list[str]:
    """One sentence for each promise that was broken; empty for a run that is right."""
    return [*_state_violations(seen), *_row_violations(seen), *_mark_violations(seen)]


def _state_violations(seen: Seen) -> list[str]:
    found = []
    final = [name for kind, name in seen.states if kind in FINAL]
    if not final:
        last = seen.states[-1][1] if seen.states else "nothing"
        found.append(f"It has not ended; its state is {last}.")
    elif len(final) > 1:
        found.append(f"It ended {len(final)} times: {', '.join(final)}.")
    if final and final[-1] != seen.kind.ends_as:
        found.append(f"It ended as {final[-1]}, expected {seen.kind.ends_as}.")
    if final and seen.states[-1][0] not in FINAL:
        found.append(f"It went on after its end, to {seen.states[-1][1]}.")
    for name, states in seen.attempt_runs.items():
        ends = [state for kind, state in states if kind in FINAL]
        if len(ends) != 1:
            found.append(f"Attempt run {name} ended {len(ends)} times: {', '.join(ends)}.")
    return found


def _row_violations(seen: Seen) -> list[str]:
    found = []
    numbers = [row["attempt"] for row in seen.rows]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"Its rows are numbered {numbers}.")
    is_open = [row["attempt"] for row in seen.rows[:-1] if row["status"] in _OPEN_ROWS]
    if is_open:
        found.append(f"Rows {is_open} are open although attempts follow.")
    # A run that is cancelled before a worker has taken it has no attempt.
    untaken = not seen.rows and not seen.marks and seen.kind.ends_as == CANCELLED
    if untaken or not any(kind in FINAL for kind, _ in seen.states):
        return found
    expected = _ENDS.get(seen.kind.ends_as, "failed")
    # One that was planned, and not needed because the one before it came to its end after all.
    rows = [row for row in seen.rows if not (row["status"] == "cancelled" and row["never_started"])]
    last = rows[-1]["status"] if rows else "missing"
    if last != expected:
        found.append(f"Its last row is {last}, expected {expected}.")
    if len(seen.rows) < seen.kind.fewest_attempts:
        found.append(
            f"It has {len(seen.rows)} rows, expected at least {seen.kind.fewest_attempts}."
        )
    return found


def _mark_violations(seen: Seen) -> list[str]:
    found = []
    starts = [mark for mark in seen.marks if mark["event"] == "start"]
    found += [
        f"Attempt {start['attempt']} ran while another attempt was running."
        for start in starts
        if not start["alone"]
    ]
    for attempt, count in Counter(start["attempt"] for start in starts).items():
        if count > 1:
            found.append(f"Attempt {attempt} was started {count} times.")
    rows = {row["attempt"] for row in seen.rows}
    without = sorted({start["attempt"] for start in starts} - rows)
    if without:
        found.append(f"Attempts {without} ran and have no row.")
    planned = [mark for mark in seen.marks if mark["event"] == "planned"]
    if seen.kind.does == "transient" and len(planned) > seen.kind.number:
        found.append(f"It failed as planned {len(planned)} times, expected {seen.kind.number}.")
    return found
