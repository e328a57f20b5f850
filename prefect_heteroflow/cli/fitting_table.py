"""A table that keeps its names whole: where it is too wide, cells wrap and columns are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

# More than any row needs: measured with it, a table is as wide as it would like to be.
_UNBOUNDED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column with the cells of all rows."""

    head: str
    cells: Sequence[Text]
    justify: Literal["left", "right"] = "left"
    wraps: bool = False
    """Its cells may take several lines, broken between words: not for names."""
    leave_out: int | None = None
    """Where there is no room: 1 goes first; `None` stays in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingTable:
    """A renderable with as many of the columns as fit into the width that there is."""

    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=_UNBOUNDED)
        for columns in self._choices():
            table = _drawn(columns)
            if Measurement.get(console, unbounded, table).minimum <= options.max_width:
                break
        yield table
        shown = {column.head for column in columns}
        if left_out := [it.head for it in self.columns if it.head not in shown]:
            yield Text(f"No room for: {', '.join(left_out)}.", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        sizes = [Measurement.get(console, options, _drawn(it)) for it in self._choices()]
        return Measurement(sizes[-1].minimum, sizes[0].maximum)

    def _choices(self) -> Iterator[list[Column]]:
        """All columns, then one less each time."""
        columns = list(self.columns)
        yield columns
        for dropped in sorted(
            (column for column in self.columns if column.leave_out is not None),
            key=lambda column: column.leave_out or 0,
        ):
            columns = [column for column in columns if column is not dropped]
            yield columns


def _drawn(columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(
            column.head,
            justify=column.justify,
            no_wrap=not column.wraps,
            # Without it rich shortens all columns alike where it has to shorten any.
            min_width=None if column.wraps else _widest(column),
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def _widest(column: Column) -> int:
    lines = [column.head, *(line for cell in column.cells for line in cell.plain.splitlines())]
    return max(map(cell_len, lines))


def show(*parts: RenderableType) -> None:
    """Print on standard output; a table is wider than the terminal only where a name needs it.

    What is no terminal gets every row on one line, for `grep` and the like, without blanks at the
    end: the longest line of a table would pad all others to its length.
    """
    console = Console()
    for part in parts:
        wished = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), part)
        least = wished.minimum if isinstance(part, FittingTable) else 0
        if not console.is_terminal:
            least = wished.maximum
        wide = Console(width=max(console.width, least))
        if console.is_terminal:
            wide.print(part, crop=False)
            continue
        with wide.capture() as captured:
            wide.print(part, crop=False)
        wide.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
