"""`heteroflow retries RUN`: every attempt of a run, as a table or as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from prefect_heteroflow.cli.api_errors import CommandError, api_client, api_errors
from prefect_heteroflow.cli.nodes import liveness_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

    from prefect_heteroflow.core.attempts import Attempt


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("retries")(retries)


@api_errors()
def retries(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Id of a flow run, or its name: the newest run of that name.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")
    ] = False,
) -> None:
    """Show every attempt of a run: where, with what, why it failed, what was decided."""
    found, attempts, waiting, notes = asyncio.run(_load(run))
    # Imported late, as everything that needs Prefect: `--help` shall be quick.
    from prefect_heteroflow.core.attempts import retries_report
    from prefect_heteroflow.orchestration.transitions import task_id_of

    if as_json:
        typer.echo(json.dumps(retries_report(str(task_id_of(found)), attempts)))
        return
    from rich.text import Text

    from prefect_heteroflow.cli.attempt_table import attempt_parts
    from prefect_heteroflow.cli.fitting_table import show

    title = f"{found.name} ({found.id}): {found.state_name or 'no state yet'}"
    if not attempts:
        typer.echo("\n".join((title, *notes)))
        return
    told = [] if waiting is None else [*_waiting_lines(waiting, found, attempts), *notes]
    show(Text(title, style="bold"), *attempt_parts(attempts), *map(Text, told))


async def _load(run: str) -> tuple[FlowRun, list[Attempt], FlowRun | None, list[str]]:
    """The run, its attempts, the run that waits (see `_waiting_run`), and why nobody takes it."""
    from prefect_heteroflow.cli.untaken import obstacles, why_untaken
    from prefect_heteroflow.orchestration.clock import utc_now
    from prefect_heteroflow.orchestration.history import read_attempts
    from prefect_heteroflow.orchestration.nodes import read_registry
    from prefect_heteroflow.orchestration.task_attempts import read_task_attempts
    from prefect_heteroflow.orchestration.transitions import task_id_of

    liveness = liveness_seconds()
    async with api_client() as client:
        found = await find_run(client, run)
        attempts = await read_attempts(client, task_id_of(found))
        waiting = await _waiting_run(client, found, attempts)
        if attempts and waiting is None:
            return found, attempts, None, []
        registry = await read_registry(client, liveness_seconds=liveness)
        now = utc_now()  # now that the server has told its time
        if waiting is not None and attempts:
            return found, attempts, waiting, obstacles(waiting, registry, now=now)
        notes = why_untaken(found, registry, now=now)
        if await read_task_attempts(client, found.id):
            notes.append(f"`heteroflow attempts {found.id}` shows the attempts of its tasks.")
        return found, attempts, waiting, notes


async def _waiting_run(
    client: PrefectClient, found: FlowRun, attempts: Sequence[Attempt]
) -> FlowRun | None:
    """The run in a state whose message says what the last attempt waits for, if there is one."""
    from prefect.exceptions import ObjectNotFound

    from prefect_heteroflow.core.attempts import AttemptStatus
    from prefect_heteroflow.orchestration.transitions import task_id_of

    if _waits(found):
        return found
    if not attempts or attempts[-1].status is not AttemptStatus.SCHEDULED:
        return None
    # An attempt on another pool has a run of its own; until that exists, the front run waits.
    waiting_id = UUID(attempts[-1].flow_run_id or str(task_id_of(found)))
    if waiting_id == found.id:
        return None
    try:
        run = await client.read_flow_run(waiting_id)
    except ObjectNotFound:
        return None
    return run if _waits(run) else None


def _waits(run: FlowRun) -> bool:
    return run.state_name in ("AwaitingApproval", "AwaitingRetry")


def _waiting_lines(waiting: FlowRun, found: FlowRun, attempts: Sequence[Attempt]) -> Iterator[str]:
    """What the run waits for, unless a decision above says it, and how a person lets it go on."""
    from prefect_heteroflow.orchestration.approval import is_held

    message = None if waiting.state is None else waiting.state.message
    if message and message not in [row.decision for row in attempts]:
        name = "" if waiting.id == found.id else f"{waiting.name} ({waiting.id}): "
        yield f"{name}{waiting.state_name}: {message}"
    if is_held(waiting):
        yield f"To let it go on: heteroflow breaker approve {waiting.id}"


async def find_run(client: PrefectClient, run: str) -> FlowRun:
    """The flow run with this id, or the newest with this name.

    Raises:
        CommandError: There is no such run.
    """
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.exceptions import ObjectNotFound

    try:
        run_id = UUID(run)
    except ValueError:
        named = await client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[run])),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=1,
        )
        if not named:
            raise CommandError(f"There is no flow run with the name or id {run!r}.") from None
        return named[0]
    try:
        return await client.read_flow_run(run_id)
    except ObjectNotFound:
        raise CommandError(f"There is no flow run with id {run}.") from None
