"""`heteroflow breaker`: what circuit breakers hold back, and a person's word about it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_client, api_errors
from prefect_heteroflow.cli.nodes import age_text, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun
    from rich.console import RenderableType

    from prefect_heteroflow.core.breaker import Breaker
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
def ls(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")
    ] = False,
) -> None:
    """Show every breaker, and the runs that wait for approval."""
    breakers, held, names = asyncio.run(_read())
    if as_json:
        report = {
            "breakers": [{**_breaker_report(it), "about": names.get(it.key)} for it in breakers],
            "awaiting_approval": [_held_report(run, breakers) for run in held],
        }
        typer.echo(json.dumps(report))
        return
    if not breakers and not held:
        typer.echo("No circuit breaker has counted anything yet, and no run waits for approval.")
        return
    from prefect_heteroflow.cli.fitting_table import show
    from prefect_heteroflow.orchestration.clock import utc_now

    now = utc_now()
    parts = _breaker_parts(breakers, names, now) if breakers else []
    show(*parts, *_held_parts(held, breakers, now))


@breaker_app.command("reset")
@api_errors()
def reset(
    name: Annotated[
        str,
        typer.Argument(
            metavar="BREAKER",
            help="The breaker, as `ls` names it; or FLOW/DEPLOYMENT: all breakers of it.",
            show_default=False,
        ),
    ],
) -> None:
    """Close a breaker, or all of a deployment; the runs that only they hold go on."""
    keys, released = asyncio.run(_reset(name))
    for key in keys:
        typer.echo(f"Breaker {key} is closed.")
    typer.echo(f"Runs that go on: {len(released)}.")
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


async def _read() -> tuple[Sequence[BreakerRecord], Sequence[FlowRun], dict[str, str]]:
    from prefect_heteroflow.orchestration.approval import read_held
    from prefect_heteroflow.orchestration.breaker_store import read_breakers

    async with api_client() as client:
        # The runs first: else one whose breaker opens in between would seem to be held by nothing.
        held = await read_held(client)
        breakers = await read_breakers(client)
        names = {
            record.key: f"deployment {name}"
            for record in breakers
            if (name := await _deployment_name(client, record.key)) is not None
        }
        return breakers, held, names


async def _deployment_name(client: PrefectClient, key: str) -> str | None:
    """`FLOW/NAME` of the deployment of a key; `None` for a node, or if it is gone."""
    from uuid import UUID

    from prefect.exceptions import ObjectNotFound

    kind, _, rest = key.partition(":")
    if kind != "deployment":
        return None
    try:
        deployment = await client.read_deployment(UUID(rest.partition(":")[0]))
        flow = await client.read_flow(deployment.flow_id)
    except (ObjectNotFound, ValueError):
        return None
    return f"{flow.name}/{deployment.name}"


async def _keys_of(client: PrefectClient, name: str, known: Sequence[str]) -> list[str]:
    """The breakers that a person names by key, or by the name of their deployment."""
    from prefect.exceptions import ObjectNotFound

    if name in known:
        return [name]
    if name.count("/") != 1:
        return []
    try:
        deployment = await client.read_deployment_by_name(name)
    except ObjectNotFound:
        return []
    return [key for key in known if key.startswith(f"deployment:{deployment.id}:")]


async def _reset(name: str) -> tuple[list[str], list[FlowRun]]:
    from prefect_heteroflow.attempts.held import release_held
    from prefect_heteroflow.core import breaker
    from prefect_heteroflow.orchestration.breaker_store import change_breaker, read_breakers
    from prefect_heteroflow.orchestration.clock import utc_now

    policy = read_settings().breaker_policy
    if policy.max_restarts == breaker.UNLIMITED:  # off here; the other breakers stay as they are
        policy = dataclasses.replace(policy, max_restarts=breaker.MAX_RESTARTS)
    closed = breaker.reset("Reset by a person.")
    async with api_client() as client:
        known = [record.key for record in await read_breakers(client)]
        keys = await _keys_of(client, name, known)
        if not keys:
            there = f"There are: {', '.join(known)}." if known else "There is none yet."
            raise CommandError(f"There is no breaker {name!r}. {there}", exit_code=EXIT_REFUSED)
        now = utc_now()  # now that the server has told its time
        for key in keys:
            await change_breaker(client, key, lambda _: (closed, None), now=now)
        return keys, await release_held(client, policy=policy, now=now)


async def _approve(run: str) -> FlowRun:
    from prefect_heteroflow.orchestration.approval import approve_run, read_held
    from prefect_heteroflow.orchestration.held_fronts import held_as

    async with api_client() as client:
        held = await read_held(client)
        found = await held_as(client, held, run)
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
        "restarts": len(breaker.restarts) if _is_closed(breaker) else None,
        "opened_at": breaker.opened_at,
        "trial": None if breaker.trial is None else breaker.trial.holder,
        "reason": breaker.reason,
        "changed": record.updated.isoformat(),
    }


def _is_closed(breaker: Breaker) -> bool:
    """Only then it counts: one that opens drops its count, and says in its reason what it was."""
    from prefect_heteroflow.core.breaker import BreakerStatus

    return breaker.status is BreakerStatus.CLOSED


def _held_report(run: FlowRun, breakers: Sequence[BreakerRecord]) -> dict[str, Any]:
    """The run with all breakers that it must pass (`keys`), and those that hold it (`held_by`)."""
    from prefect_heteroflow.orchestration.approval import hold_of

    hold = hold_of(run)
    keys = [] if hold is None else list(hold.keys)
    not_closed = {record.key for record in breakers if not _is_closed(record.breaker)}
    return {
        "id": str(run.id),
        "name": run.name,
        "keys": keys,
        "held_by": [key for key in keys if key in not_closed],
        "since": None if run.state is None else run.state.timestamp.isoformat(),
        "message": None if run.state is None else run.state.message,
    }


_HELD_BY_NONE = "all its breakers are closed; it goes on by itself shortly"
_COLOURS = {"closed": "green", "open": "red", "half-open": "yellow"}


def _breaker_parts(
    records: Sequence[BreakerRecord], names: Mapping[str, str], now: datetime
) -> list[RenderableType]:
    """The breakers as a table, and below it what each is about and why it stands so."""
    from rich.text import Text

    from prefect_heteroflow.cli.fitting_table import Column, FittingTable

    reports = [_breaker_report(record) for record in records]
    table = FittingTable(
        columns=[
            Column(head="breaker", cells=[Text(it["key"]) for it in reports]),
            Column(
                head="state",
                cells=[Text(it["status"], style=_COLOURS[it["status"]]) for it in reports],
            ),
            Column(
                head="restarts",
                cells=[
                    Text("-" if it["restarts"] is None else str(it["restarts"])) for it in reports
                ],
                justify="right",
                leave_out=1,
            ),
            Column(
                head="changed",
                cells=[Text(age_text((now - it.updated).total_seconds())) for it in records],
                leave_out=2,
            ),
        ]
    )
    told = [
        Text(f" {report['key']}: {text}")
        for report in reports
        for text in (
            names.get(report["key"]),
            report["reason"],
            report["trial"] and f"its trial is attempt {report['trial']}",
        )
        if text
    ]
    return [table, *told]


def _held_parts(
    runs: Sequence[FlowRun], breakers: Sequence[BreakerRecord], now: datetime
) -> list[RenderableType]:
    """The runs that wait as a table, and below it what holds each at the moment."""
    from rich.text import Text

    from prefect_heteroflow.cli.fitting_table import Column, FittingTable

    if not runs:
        return [Text("No run waits for approval.")]
    reports = [_held_report(run, breakers) for run in runs]
    ages = [
        "" if run.state is None else age_text((now - run.state.timestamp).total_seconds())
        for run in runs
    ]
    table = FittingTable(
        columns=[
            Column(head="waiting run", cells=[Text(it["name"]) for it in reports]),
            Column(head="id", cells=[Text(it["id"]) for it in reports]),
            Column(head="since", cells=[Text(age) for age in ages], leave_out=1),
        ]
    )
    told = [
        Text(f" {it['name']}: {text}")
        for it in reports
        for text in ([f"held by {key}" for key in it["held_by"]] or [_HELD_BY_NONE])
    ]
    return [table, *told]
