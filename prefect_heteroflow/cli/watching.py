"""The display of a run's attempts while it is going on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from prefect_heteroflow.cli.api_errors import api_client
from prefect_heteroflow.cli.attempt_table import STATUS_STYLE, attempt_table
from prefect_heteroflow.orchestration.history import read_attempts

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.core.attempts import Attempt

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is seen of a run at one moment."""

    name: str
    state: str
    """Name of the state, for example `Escalated`."""
    message: str | None = None
    final: bool = False
    completed: bool = False
    attempts: tuple[Attempt, ...] = ()


async def watch_run(run_id: UUID, console: Console | None = None) -> View:
    """Show the run's attempts until it has ended, and give its last view.

    On a terminal it is a table that changes in place, else one line for each change. It goes to
    standard error, so that standard output stays free for `--json`.
    """
    console = console or Console(stderr=True)
    async with api_client() as client:
        if console.is_terminal:
            return await _watch_live(client, run_id, console)
        return await _watch_lines(client, run_id, console)


async def _watch_live(client: PrefectClient, run_id: UUID, console: Console) -> View:
    started = time.monotonic()
    view = await read_view(client, run_id)
    # `transient`: the last table is printed whole, also where it is taller than the terminal.
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        while not view.final:
            live.update(render(view, time.monotonic() - started))
            await asyncio.sleep(POLL_SECONDS)
            view = await read_view(client, run_id)
    console.print(render(view, time.monotonic() - started))
    return view


async def _watch_lines(client: PrefectClient, run_id: UUID, console: Console) -> View:
    seen: View | None = None
    while True:
        view = await read_view(client, run_id)
        for line in changes(seen, view):
            console.print(Text(line), soft_wrap=True)
        if view.final:
            return view
        seen = view
        await asyncio.sleep(POLL_SECONDS)


async def read_view(client: PrefectClient, run_id: UUID) -> View:
    """The run as it is now. Two requests."""
    # The run first: when it is seen as ended, its last row is already written.
    run = await client.read_flow_run(run_id)
    attempts = await read_attempts(client, run_id)
    state = run.state
    return View(
        name=run.name,
        state=run.state_name or "Pending",
        message=state.message if state else None,
        final=bool(state and state.is_final()),
        completed=bool(state and state.is_completed()),
        attempts=tuple(attempts),
    )


def render(view: View, elapsed_seconds: float) -> RenderableType:
    """The view as a table of attempts below a line with the state and the time since the start."""
    minutes, seconds = divmod(int(elapsed_seconds), 60)
    line = Text.assemble((view.state, _style(view)), f"  {view.name}  {minutes}:{seconds:02d}")
    parts: list[RenderableType] = [line if view.final else Spinner("dots", text=line)]
    if view.message:
        parts.append(Text(view.message, style="dim"))
    if view.attempts:
        parts.append(attempt_table(view.attempts))
    return Group(*parts)


def changes(before: View | None, after: View) -> Iterator[str]:
    """One line for each attempt that is new or stands differently, then one for a new state."""
    known = {row.attempt: row for row in before.attempts} if before else {}
    for row in after.attempts:
        old = known.get(row.attempt)
        if old is None or (old.status, old.decision) != (row.status, row.decision):
            yield _attempt_line(row)
    if before is None or (before.state, before.message) != (after.state, after.message):
        yield f"{after.state}: {after.message}" if after.message else after.state


def _attempt_line(row: Attempt) -> str:
    place = f" on {row.node}" if row.node else ""
    memory = f" with {row.memory_mb} MB" if row.memory_mb is not None else ""
    line = f"attempt {row.attempt}{place}{memory}: {row.status.value}"
    told = [text for text in (row.failure, row.reason, row.decision) if text]
    return f"{line} - {'; '.join(told)}" if told else line


def _style(view: View) -> str:
    if not view.final:
        return f"bold {STATUS_STYLE['running']}"
    return "bold green" if view.completed else "bold red"
