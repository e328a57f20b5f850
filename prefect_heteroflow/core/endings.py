"""What a person reads about an attempt that has ended: as a message, and beside other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_heteroflow.core.failures import Diagnosis

if TYPE_CHECKING:
    from prefect_heteroflow.core.attempts import Attempt


def message_with_line(reason: str, diagnosis: Diagnosis) -> str:
    """The reason of a decision, followed by the line that shows why, unless it says so already."""
    line = diagnosis.line
    if not line or line in reason:
        return reason
    return f"{reason}. It shows in: {line}"


def what_followed(row: Attempt) -> str | None:
    """The decision without what the row says elsewhere: class, rule and reason.

    A decision stands alone in a log and on a state, so it holds all of them.
    """
    text = row.decision
    if not text:
        return None
    reason = (row.reason or "").rstrip(". ")
    for said in ("Stopped: ", f"{row.failure} ({row.rule}): ", f"{reason}; "):
        text = text.removeprefix(said)
    return text
