"""Job variables of a planned attempt that a person has edited while it waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_edits(
    planned: Mapping[str, Any], *, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """The planned variables, and what a person has changed of the run's own since then.

    Args:
        planned: Those of the attempt that waits.
        before: The run's own when it was planned.
        now: The run's own now. The planned ones may have been put there meanwhile.
    """
    if "placement" in planned and now.get("placement") == planned["placement"]:
        # It has the time of its planning in it: these are the planned ones.
        before = planned
    kept = {name: value for name, value in planned.items() if name in now or name not in before}
    edited = {
        name: value for name, value in now.items() if name not in before or before[name] != value
    }
    return {**kept, **edited}
