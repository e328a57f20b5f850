"""What the attempts of all runs noted, and which of them run at the moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Mark = Mapping[str, Any]


class Marks:
    """The folder into which `job.py` writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, run_id: str) -> list[Mark]:
        """The notes of a run's attempts, oldest first."""
        path = self._folder / run_id
        if not path.exists():
            return []
        # A line that is just being written has no end yet.
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def running(self, run_id: str) -> Mark | None:
        """The last start, if no end follows it: it runs, or it was killed."""
        moves = [mark for mark in self.of(run_id) if mark["event"] in ("start", "end")]
        return moves[-1] if moves and moves[-1]["event"] == "start" else None

    def next_start(self, run_id: str, after: float) -> float | None:
        """Time of the first start after a moment."""
        times = (mark["time"] for mark in self.of(run_id) if mark["event"] == "start")
        return min((time for time in times if time > after), default=None)
