"""The attempts of a task as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Group, RenderableType
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    head: str
    cell: Callable[[Attempt], object]
    """What the attempt shows there, `None` for nothing."""
    justify: Literal["left", "right"] = "left"


_COLUMNS = (
    _Column(head="#", cell=lambda row: row.attempt, justify="right"),
    _Column(head="pool", cell=lambda row: row.pool),
    _Column(head="node", cell=lambda row: row.node),
    _Column(head="memory", cell=lambda row: row.memory_mb, justify="right"),
    _Column(head="peak", cell=lambda row: row.peak_memory_mb, justify="right"),
    _Column(head="GPU", cell=lambda row: row.gpu_memory_mb, justify="right"),
    _Column(head="status", cell=lambda row: row.status.value),
    _Column(head="exit", cell=lambda row: row.exit_code, justify="right"),
    _Column(head="failure", cell=lambda row: row.failure),
)


def attempt_table(attempts: Sequence[Attempt], *, title: str | None = None) -> RenderableType:
    """One line per attempt (where, with what, how it ended), and below why and what was decided.

    Sizes are in MB (MiB). A column that would be empty is left out; what is left fits into 80
    characters with names of a usual length.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    columns = [
        column for column in _COLUMNS if any(column.cell(row) is not None for row in attempts)
    ]
    for column in columns:
        table.add_column(column.head, justify=column.justify, no_wrap=True)
    for row in attempts:
        table.add_row(*(_text(column, row) for column in columns))
    parts: list[RenderableType] = [table]
    if title:
        parts.insert(0, Text(title, style="bold"))
    if any(row.reason or row.decision for row in attempts):
        parts.append(_told(attempts))
    return Group(*parts, Text("Sizes in MB (MiB).", style="dim"))


def _told(attempts: Sequence[Attempt]) -> Table:
    """Reason and decision of each attempt that has one, with its number before them."""
    grid = Table.grid(padding=(0, 1, 0, 1))
    for row in attempts:
        lines = [text for text in (row.reason, row.decision) if text]
        if lines:
            grid.add_row(Text(str(row.attempt), style="bold"), Text("\n".join(lines)))
    return grid


def _text(column: _Column, row: Attempt) -> Text:
    # `Text` takes brackets as they are; a plain string would be markup.
    value = column.cell(row)
    style = STATUS_STYLE.get(row.status.value, "") if column.head == "status" else ""
    return Text("-" if value is None else str(value), style=style)
