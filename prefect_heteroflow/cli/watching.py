"""The display of a run's attempts and its output while it is going on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from prefect_heteroflow.cli.api_errors import api_client
from prefect_heteroflow.cli.attempt_table import STATUS_STYLE, attempt_parts, attempt_table
from prefect_heteroflow.cli.run_log import RunLog, line_text
from prefect_heteroflow.orchestration.history import read_attempts

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

    from prefect_heteroflow.core.attempts import Attempt

POLL_SECONDS = 1.0
# Prefect's log handler sends what it has every 2 s, so lines of a run come after its end.
LAST_LINES_SECONDS = 3.0


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


async def watch_run(run_id: UUID, *, output_on_stderr: bool = False) -> View:
    """Show the run's attempts and its log until it has ended, and give its last view.

    On a terminal the attempts are a table that changes in place, with the lines of the log above
    it; else there is one line for each change. At the end come the state and all attempts. Only
    the log goes to standard output.

    Args:
        run_id: The front run.
        output_on_stderr: The log goes to standard error too: somebody else needs standard output.
    """
    progress = Console(stderr=True)
    on_terminal = progress.is_terminal and (output_on_stderr or Console().is_terminal)
    async with api_client() as client:
        task = _WatchedTask(client, run_id)
        if on_terminal:
            view = await _watch_live(task, progress)
        else:
            output = progress if output_on_stderr else Console()
            view = await _watch_lines(task, progress, output)
    for part in final_parts(view):
        progress.print(part)
    return view


class _WatchedTask:
    """A run and its log."""

    def __init__(self, client: PrefectClient, run_id: UUID) -> None:
        self._client = client
        self._run_id = run_id
        self._log = RunLog()
        self._ended_at: float | None = None
        self.is_over = False
        """The run has ended, and its last lines have come as far as can be told."""

    async def look(self) -> tuple[View, list[str]]:
        """The run as it is now, and the lines that its log has got since the last look."""
        view = await read_view(self._client, self._run_id)
        others = {UUID(row.flow_run_id) for row in view.attempts if row.flow_run_id}
        run_ids = {self._run_id, *others}
        lines = await self._log.new_lines(self._client, run_ids)
        if view.final:
            if lines or self._ended_at is None:
                self._ended_at = time.monotonic()
            elif time.monotonic() - self._ended_at >= LAST_LINES_SECONDS:
                lines = await self._log.new_lines(self._client, run_ids, from_start=True)
                self.is_over = True
        return view, [line_text(line) for line in lines]


async def _watch_live(task: _WatchedTask, console: Console) -> View:
    started = time.monotonic()
    # `transient`: the end is printed whole, also where it is taller than the terminal.
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        while True:
            view, lines = await task.look()
            live.update(render(view, time.monotonic() - started))
            _print_lines(live.console, lines)
            if task.is_over:
                return view
            await asyncio.sleep(POLL_SECONDS)


async def _watch_lines(task: _WatchedTask, progress: Console, output: Console) -> View:
    seen: View | None = None
    while True:
        view, lines = await task.look()
        _print_lines(progress, changes(seen, view))
        _print_lines(output, lines)
        if task.is_over:
            return view
        seen = view
        await asyncio.sleep(POLL_SECONDS)


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


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
    if view.attempts:
        parts.append(attempt_table(view.attempts))
    return Group(*parts)


def final_parts(view: View) -> list[RenderableType]:
    """How it ended, and all attempts with their reasons."""
    told = Text.assemble((view.state, _style(view)), f": {view.message}" if view.message else "")
    return [told, *(attempt_parts(view.attempts) if view.attempts else ())]


def changes(before: View | None, after: View) -> Iterator[str]:
    """One line for each attempt that is new or stands differently, then one for a new state.

    Reasons and decisions are not told: they are lines of the log, and stand below the end.
    """
    known = {row.attempt: row.status for row in before.attempts} if before else {}
    for row in after.attempts:
        if known.get(row.attempt) is not row.status:
            yield _attempt_line(row)
    if (before is None or before.state != after.state) and not after.final:
        yield after.state


def _attempt_line(row: Attempt) -> str:
    place = f" on {row.node}" if row.node else ""
    memory = f" with {row.memory_mb} MB" if row.memory_mb is not None else ""
    failure = f" - {row.failure}" if row.failure else ""
    return f"attempt {row.attempt}{place}{memory}: {row.status.value}{failure}"


def _style(view: View) -> str:
    if not view.final:
        return f"bold {STATUS_STYLE['running']}"
    return "bold green" if view.completed else "bold red"
