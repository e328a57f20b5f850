"""`heteroflow breaker`: what circuit breakers hold back, and a person's word about it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_client, api_errors
from prefect_heteroflow.cli.nodes import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect.client.schemas.objects import FlowRun
    from rich.table import Table

    from prefect_heteroflow.orchestration.breaker_values import BreakerRecord

breaker_app = typer.Typer(
    help="Show circuit breakers and the runs that they hold; approve or reset.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add `breaker ls`, `breaker reset` and `breaker approve` to the app."""
    app.add_typer(breaker_app, name="breaker")


@breaker_app.command("ls")
@api_errors()
def show(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")
    ] = False,
) -> None:
    """Show every breaker, and the runs that wait for approval."""
    breakers, held = asyncio.run(_read())
    if as_json:
        report = {
            "breakers": [_breaker_report(it) for it in breakers],
            "awaiting_approval": [_held_report(run) for run in held],
        }
        typer.echo(json.dumps(report))
        return
    if not breakers and not held:
        typer.echo("No circuit breaker has counted anything yet, and no run waits for approval.")
        return
    from rich.console import Console

    console = Console()
    if breakers:
        console.print(_breakers_table(breakers))
    if held:
        console.print(_held_table(held))
    else:
        typer.echo("No run waits for approval.")


@breaker_app.command("reset")
@api_errors()
def reset(
    key: Annotated[str, typer.Argument(help="The breaker, as `ls` names it.", show_default=False)],
) -> None:
    """Close a breaker; the runs that only it holds go on."""
    released = asyncio.run(_reset(key))
    typer.echo(f"Breaker {key} is closed. Runs that go on: {len(released)}.")
    for run in released:
        typer.echo(f"  {run.name} ({run.id})")


@breaker_app.command("approve")
@api_errors()
def approve(
    run: Annotated[str, typer.Argument(help="Id or name of a held run.", show_default=False)],
) -> None:
    """Let one held run go on, as Resume in the UI does."""
    approved = asyncio.run(_approve(run))
    typer.echo(f"Run {approved.name} ({approved.id}) is approved and goes on.")


async def _read() -> tuple[Sequence[BreakerRecord], Sequence[FlowRun]]:
    from prefect_heteroflow.orchestration.approval import read_held
    from prefect_heteroflow.orchestration.breaker_store import read_breakers

    async with api_client() as client:
        return await read_breakers(client), await read_held(client)


async def _reset(key: str) -> list[FlowRun]:
    from prefect_heteroflow.attempts.held import release_held
    from prefect_heteroflow.core import breaker
    from prefect_heteroflow.orchestration.breaker_store import change_breaker, read_breakers
    from prefect_heteroflow.orchestration.clock import utc_now

    now = utc_now()
    policy = read_settings().breaker_policy
    closed = breaker.reset("Reset by a person.")
    async with api_client() as client:
        known = [record.key for record in await read_breakers(client)]
        if key not in known:
            there = f"There are: {', '.join(known)}." if known else "There is none yet."
            raise CommandError(f"There is no breaker {key!r}. {there}", exit_code=EXIT_REFUSED)
        await change_breaker(client, key, lambda _: (closed, None), now=now)
        return await release_held(client, policy=policy, now=now)


async def _approve(run: str) -> FlowRun:
    from prefect_heteroflow.orchestration.approval import approve_run, read_held

    async with api_client() as client:
        held = await read_held(client)
        found = [it for it in held if run in (str(it.id), it.name)]
        if not found:
            there = ", ".join(f"{it.name} ({it.id})" for it in held) or "none"
            raise CommandError(
                f"The run {run!r} does not wait for approval. Waiting: {there}.",
                exit_code=EXIT_REFUSED,
            )
        if len(found) > 1:
            ids = ", ".join(str(it.id) for it in found)
            raise CommandError(
                f"Several runs are named {run!r}; name one by its id: {ids}.",
                exit_code=EXIT_REFUSED,
            )
        if not await approve_run(client, found[0]):
            raise CommandError(f"The run {run!r} does not wait any more.", exit_code=EXIT_REFUSED)
        return found[0]


def _breaker_report(record: BreakerRecord) -> dict[str, Any]:
    breaker = record.breaker
    return {
        "key": record.key,
        "status": breaker.status.value,
        "restarts": len(breaker.restarts),
        "opened_at": breaker.opened_at,
        "trial": None if breaker.trial is None else breaker.trial.holder,
        "reason": breaker.reason,
        "changed": record.updated.isoformat(),
    }


def _held_report(run: FlowRun) -> dict[str, Any]:
    from prefect_heteroflow.orchestration.approval import hold_of

    hold = hold_of(run)
    return {
        "id": str(run.id),
        "name": run.name,
        "keys": [] if hold is None else list(hold.keys),
        "since": None if run.state is None else run.state.timestamp.isoformat(),
        "message": None if run.state is None else run.state.message,
    }


_COLOURS = {"closed": "green", "open": "red", "half-open": "yellow"}


def _breakers_table(records: Sequence[BreakerRecord]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for heading in ("Breaker", "Status", "Restarts", "Trial", "Reason"):
        table.add_column(heading, overflow="fold")
    for record in records:
        report = _breaker_report(record)
        colour = _COLOURS[report["status"]]
        table.add_row(
            escape(record.key),
            f"[{colour}]{report['status']}[/{colour}]",
            str(report["restarts"]),
            escape(report["trial"] or ""),
            escape(report["reason"]),
        )
    return table


def _held_table(runs: Sequence[FlowRun]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Awaiting approval")
    for heading in ("Run", "Id", "Held by"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        report = _held_report(run)
        table.add_row(escape(run.name), report["id"], escape(", ".join(report["keys"])))
    return table
