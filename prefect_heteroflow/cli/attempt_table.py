"""The attempts of a run, or of the tasks of a flow run, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefect_heteroflow.cli.fitting_table import Column, FittingTable
from prefect_heteroflow.core.endings import what_followed

if TYPE_CHECKING:
    from prefect_heteroflow.core.attempts import Attempt
    from prefect_heteroflow.core.task_attempts import TaskAttempt

STATUS_STYLE = {
    "scheduled": "yellow",
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "suspended": "yellow",
}
_SIZES = Text("Sizes in MB (MiB).", style="dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    head: str
    value: Callable[[Attempt], object]
    """What the attempt shows there, `None` for nothing."""
    justify: Literal["left", "right"] = "left"
    leave_out: int | None = None


_FIELDS = (
    _Field(head="#", value=lambda row: row.attempt, justify="right"),
    _Field(head="pool", value=lambda row: row.pool, leave_out=5),
    _Field(head="node", value=lambda row: row.node),
    _Field(head="memory", value=lambda row: row.memory_mb, justify="right", leave_out=4),
    _Field(head="peak", value=lambda row: row.peak_memory_mb, justify="right", leave_out=1),
    _Field(head="GPU", value=lambda row: row.gpu_memory_mb, justify="right", leave_out=3),
    _Field(head="status", value=lambda row: row.status.value),
    _Field(head="exit", value=lambda row: row.exit_code, justify="right", leave_out=2),
    _Field(head="failure", value=lambda row: row.failure),
)


def attempt_table(attempts: Sequence[Attempt]) -> RenderableType:
    """One line per attempt (where, with what, how it ended), and below why and what was decided.

    Sizes are in MB (MiB). A column that would be empty is left out; what is left fits into 80
    characters with names of a usual length, and for longer ones further columns give way.
    """
    return Group(*attempt_parts(attempts))


def attempt_parts(attempts: Sequence[Attempt]) -> list[RenderableType]:
    """The same, part by part."""
    fields = [field for field in _FIELDS if any(field.value(row) is not None for row in attempts)]
    parts: list[RenderableType] = [
        FittingTable(columns=[_column(field, attempts) for field in fields])
    ]
    if any(row.reason or row.decision or row.cleanup for row in attempts):
        parts.append(_told(attempts))
    return [*parts, _SIZES]


def _column(field: _Field, attempts: Sequence[Attempt]) -> Column:
    return Column(
        head=field.head,
        cells=[_text(field, row) for row in attempts],
        justify=field.justify,
        leave_out=field.leave_out,
    )


def _told(attempts: Sequence[Attempt]) -> Table:
    """Cleanup, reason and decision of each attempt that has one, after its number."""
    grid = Table.grid(padding=(0, 1, 0, 1))
    for row in attempts:
        if lines := list(_sentences(row)):
            grid.add_row(Text(str(row.attempt), style="bold"), Text("\n".join(lines)))
    return grid


def _sentences(row: Attempt) -> Iterator[str]:
    """What was cleaned up before the attempt, why it failed, and what followed; each if known."""
    if row.cleanup:
        yield row.cleanup
    if row.reason:
        yield f"{row.reason} (rule {row.rule})" if row.rule else row.reason
    if followed := what_followed(row):
        yield f"{'Stopped' if row.ended_task else 'Then'}: {followed}" if row.reason else followed


def _text(field: _Field, row: Attempt) -> Text:
    # `Text` takes brackets as they are; a plain string would be markup.
    value = field.value(row)
    style = STATUS_STYLE.get(row.status.value, "") if field.head == "status" else ""
    return Text("-" if value is None else str(value), style=style)


def task_attempt_parts(attempts: Sequence[TaskAttempt]) -> list[RenderableType]:
    """One line per attempt (where, with what, how it ended), and below why and what followed.

    The error types stand below too: beside the failure classes there is no room for them. Columns
    that would be empty are left out.
    """
    rows = [attempt.row for attempt in attempts]
    columns = [
        Column(head="task run", cells=[Text(attempt.name) for attempt in attempts]),
        Column(head="#", cells=[Text(str(row.attempt)) for row in rows], justify="right"),
        Column(
            head="state",
            cells=[Text(it.status.value, style=STATUS_STYLE[it.status.value]) for it in rows],
        ),
    ]
    if any(row.node for row in rows):
        columns.append(
            Column(head="node", cells=[Text(row.node or "-") for row in rows], leave_out=2)
        )
    if any(row.memory_mb is not None for row in rows):
        memory = ["-" if row.memory_mb is None else str(row.memory_mb) for row in rows]
        columns.append(
            Column(head="memory", cells=[Text(it) for it in memory], justify="right", leave_out=1)
        )
    if any(row.failure for row in rows):
        columns.append(Column(head="failure", cells=[Text(row.failure or "-") for row in rows]))
    told = [
        Text(f" {attempt.name} {attempt.row.attempt}: {text}")
        for attempt in attempts
        for text in _told_of_task(attempt)
    ]
    sizes = [_SIZES] if "memory" in {column.head for column in columns} else []
    return [FittingTable(columns=columns), *told, *sizes]


def _told_of_task(attempt: TaskAttempt) -> Iterator[str]:
    """What is known of the attempt, the error type before the first of it."""
    lines = list(_sentences(attempt.row))
    if attempt.error_type:
        first = f": {lines.pop(0)}" if lines else ""
        yield f"{attempt.error_type}{first}"
    yield from lines
