"""The attempts of a task as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from prefect_heteroflow.core.attempts import Attempt

STATUS_STYLE = {
    "scheduled": "yellow",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "suspended": "yellow",
}
UNKNOWN = "-"


def attempt_table(attempts: Iterable[Attempt], *, title: str | None = None) -> Table:
    """One line per attempt: where, with what, how it ended and what was decided."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for name in ("#", "memory MB", "peak MB", "GPU MB", "exit"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("node", "status", "failure"):
        table.add_column(name, no_wrap=True)
    table.add_column("why, and what was decided", overflow="fold", ratio=1)
    for row in attempts:
        table.add_row(
            str(row.attempt),
            _number(row.memory_mb),
            _number(row.peak_memory_mb),
            _number(row.gpu_memory_mb),
            _number(row.exit_code),
            Text(_place(row)),
            Text(row.status.value, style=STATUS_STYLE.get(row.status.value, "")),
            row.failure or UNKNOWN,
            # `Text` takes brackets in a log line as they are; a plain string would be markup.
            Text("\n".join(filter(None, (row.reason, row.decision))) or UNKNOWN),
        )
    return table


def _place(row: Attempt) -> str:
    return "\n".join(filter(None, (row.node, row.pool and f"({row.pool})"))) or UNKNOWN


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
