"""What stands on a run that has ended, or that waits for its next attempt."""

from __future__ import annotations

from prefect_heteroflow.core.failures import Diagnosis


def message_with_line(reason: str, diagnosis: Diagnosis) -> str:
    """The reason of a decision, followed by the line that shows why, unless it says so already."""
    line = diagnosis.line
    if not line or line in reason:
        return reason
    return f"{reason}. It shows in: {line}"
