"""What the demo prints: a line for each change while the runs go on, then a table for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from demo.cases import Case, differences

if TYPE_CHECKING:
    from prefect_heteroflow.cli.watching import View

_INTRODUCTION = (
    "\nWhere an attempt failed below, the case is made so. `failed` beside exit code 0 is no"
    " mistake: the attempt told its worker why it failed, and then its process ended by itself."
)
_DEAD_LINKS = (
    "The server ends with the demo, and with it the pages of the runs. `make demo KEEP=1` keeps it"
    " up."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One case, and what came of it."""

    case: Case
    view: View
    url: str
    """Page of the run."""


def progress(before: View | None, after: View) -> Iterator[str]:
    """A short line for each attempt that stands differently."""
    known = {row.attempt: row.status for row in before.attempts} if before else {}
    for row in after.attempts:
        if known.get(row.attempt) != row.status:
            memory = f" with {row.memory_mb} MB" if row.memory_mb is not None else ""
            cause = f": {row.failure}" if row.failure else ""
            yield f"attempt {row.attempt} on {row.node}{memory} {row.status.value}{cause}"


def is_over(view: View) -> bool:
    """The run has ended, and the row of its last attempt is closed."""
    rows = view.attempts
    return view.final and bool(rows) and rows[-1].status.value not in ("running", "scheduled")


def print_report(console: Console, runs: Sequence[Shown], *, kept: bool, seconds: float) -> int:
    """Print how each run went; gives how many did not end as they should.

    Args:
        console: Where to.
        runs: In the order of the tables.
        kept: The server stays up after the demo.
        seconds: What it all took.
    """
    console.print(_INTRODUCTION)
    failures = sum(_print_run(console, run, kept=kept) for run in runs)
    console.print(
        f"\n[bold]{len(runs) - failures} of {len(runs)} runs ended as they should[/bold],"
        f" after {seconds:.0f} s.",
        highlight=False,
    )
    if not kept:
        console.print(_DEAD_LINKS)
    return failures


def _print_run(console: Console, run: Shown, *, kept: bool) -> bool:
    """Title, attempts, end and link; gives whether it did not end as it should."""
    from prefect_heteroflow.cli.attempt_table import attempt_table

    problems = differences(run.case, run.view.state, run.view.attempts)
    console.print(Text(f"\n{run.case.title}", style="bold"))
    console.print(attempt_table(run.view.attempts))
    end = (run.view.state, "red") if problems else (f"{run.view.state}, as intended", "green")
    note = "" if kept else "  (stays up with KEEP=1)"
    # On one line, so that a terminal makes a link of it.
    console.print(Text.assemble(end, f"  {run.url}{note}"), soft_wrap=True)
    for problem in problems:
        console.print(Text(f"Not as it should be: {problem}", style="red"))
    return bool(problems)
