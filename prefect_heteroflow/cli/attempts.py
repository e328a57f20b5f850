"""`heteroflow attempts FLOW_RUN`: the attempts of a flow run's tasks, as a table or as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_heteroflow.cli.api_errors import CommandError, api_client, api_errors

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

    from prefect_heteroflow.core.task_attempts import TaskAttempt

STATES = ("scheduled", "running", "completed", "failed", "cancelled")


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("attempts")(attempts)


@api_errors()
def attempts(
    flow_run: Annotated[
        str,
        typer.Argument(
            metavar="FLOW_RUN",
            help="Id of a flow run, or its name: the newest run of that name.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="Only tasks or task runs of this name."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="S", help=f"Only attempts that are {', '.join(STATES)}."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")
    ] = False,
) -> None:
    """Show the attempts of a flow run's tasks: where, how they ended, and why."""
    if state is not None and state.lower() not in STATES:
        raise CommandError(f"--state is {state!r}; allowed is one of {', '.join(STATES)}.")
    found, rows, hint = asyncio.run(_load(flow_run, task))
    if state is not None:
        rows = [row for row in rows if row.row.status.value == state.lower()]
    # Imported late, as everything that needs Prefect: `--help` shall be quick.
    from prefect_heteroflow.core.task_attempts import attempts_report

    if as_json:
        typer.echo(json.dumps(attempts_report(str(found.id), rows)))
        return
    title = f"{found.name} ({found.id}): {found.state_name or 'no state yet'}"
    if not rows:
        typer.echo(f"{title}\nNo attempts of tasks to show.{hint}")
        return
    _print_table(title, rows)


async def _load(flow_run: str, task: str | None) -> tuple[FlowRun, list[TaskAttempt], str]:
    """The run, the attempts of its tasks, and where others are if it has none at all."""
    from prefect_heteroflow.cli.retries import find_run
    from prefect_heteroflow.orchestration.history import read_attempts
    from prefect_heteroflow.orchestration.task_attempts import read_task_attempts
    from prefect_heteroflow.orchestration.transitions import task_id_of

    async with api_client() as client:
        found = await find_run(client, flow_run)
        rows = await read_task_attempts(client, found.id, task=task)
        has_own = not rows and task is None and await read_attempts(client, task_id_of(found))
        hint = f" `heteroflow retries {found.id}` shows those of the run itself." if has_own else ""
        return found, rows, hint


def _print_table(title: str, rows: Sequence[TaskAttempt]) -> None:
    from rich.text import Text

    from prefect_heteroflow.cli.attempt_table import task_attempt_parts
    from prefect_heteroflow.cli.fitting_table import show

    show(Text(title, style="bold"), *task_attempt_parts(rows))
