"""`heteroflow nodes`: what every node has, whether it lives, and what keeps it out of use."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_client, api_errors
from prefect_heteroflow.core.valid_text import on_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect.client.orchestration import PrefectClient
    from rich.console import RenderableType
    from rich.text import Text

    from prefect_heteroflow.core.resources import Gpu
    from prefect_heteroflow.orchestration.node_values import NodeRecord
    from prefect_heteroflow.orchestration.nodes import Registry
    from prefect_heteroflow.settings import HeteroflowSettings

_warned: set[str] = set()

nodes_app = typer.Typer(
    help="Show the nodes, keep one out of use, or forget it.", no_args_is_help=False
)
node_app = typer.Typer(
    help="Show the nodes, keep one out of use, use it again, or forget it.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add `nodes` (which is `node ls`) and `node`, each with `cordon`, `uncordon` and `forget`."""
    app.add_typer(nodes_app, name="nodes")
    app.add_typer(node_app, name="node")


@nodes_app.callback(invoke_without_command=True)
@api_errors()
def nodes(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")
    ] = False,
) -> None:
    """Show every node: pool, memory, GPUs, when it was last heard of, cordon, last error."""
    if context.invoked_subcommand is None:
        _show_nodes(as_json=as_json)


@node_app.command("ls")
@api_errors()
def node_ls(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")
    ] = False,
) -> None:
    """Show every node, as `heteroflow nodes` does."""
    _show_nodes(as_json=as_json)


def _show_nodes(*, as_json: bool) -> None:
    registry = load_registry()
    if as_json:
        typer.echo(json.dumps({"nodes": [_node_report(it) for it in registry.nodes]}))
        return
    if not registry.nodes:
        typer.echo(
            "No node has been published yet. Start a worker on each machine:"
            " prefect worker start --pool POOL --type heteroflow"
        )
        return
    from prefect_heteroflow.cli.fitting_table import show
    from prefect_heteroflow.orchestration.clock import utc_now

    show(*nodes_parts(registry.nodes, now=utc_now()))


@node_app.command("cordon")
@nodes_app.command("cordon")
@api_errors()
def cordon(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Shown to whoever looks at the node.")] = "by hand",
) -> None:
    """Keep a node out of use: nothing is routed to it, and its worker takes no new run."""
    reason = on_one_line(reason)
    asyncio.run(_cordon(name, reason))
    typer.echo(f"Node {name} is cordoned: {reason}")


@node_app.command("uncordon")
@nodes_app.command("uncordon")
@api_errors()
def uncordon(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.", show_default=False)],
) -> None:
    """Let a node and all its GPUs be used again."""
    if asyncio.run(_uncordon(name)):
        typer.echo(f"Node {name} is in use again.")
    else:
        typer.echo(f"Node {name} was not cordoned.")


@node_app.command("forget")
@nodes_app.command("forget")
@api_errors()
def forget(
    names: Annotated[
        list[str], typer.Argument(metavar="NODE...", help="The nodes.", show_default=False)
    ],
) -> None:
    """Remove nodes that do not come back, with their cordons. Their workers must have stopped."""
    for name, was_cordoned in asyncio.run(_forget(names)).items():
        cordon = ", and so is its cordon" if was_cordoned else ""
        typer.echo(f"Node {name} is forgotten{cordon}.")


async def _forget(names: Sequence[str]) -> dict[str, bool]:
    from prefect_heteroflow.attempts.forgetting import NotForgotten, forget_nodes
    from prefect_heteroflow.orchestration.clock import utc_now

    liveness = liveness_seconds()
    async with api_client() as client:
        try:
            return await forget_nodes(client, names, now=utc_now(), liveness_seconds=liveness)
        except NotForgotten as error:
            raise CommandError(str(error), exit_code=EXIT_REFUSED) from error


async def _cordon(name: str, reason: str) -> None:
    from prefect_heteroflow.orchestration.clock import utc_now
    from prefect_heteroflow.orchestration.nodes import cordon_node

    async with api_client() as client:
        await _require_known(client, name)
        await cordon_node(client, name, reason=reason, at=utc_now())


async def _uncordon(name: str) -> bool:
    from prefect_heteroflow.orchestration.nodes import uncordon_node

    async with api_client() as client:
        # A node that is not published any more can still be cordoned.
        if await uncordon_node(client, name):
            return True
        await _require_known(client, name)
        return False


async def _require_known(client: PrefectClient, name: str) -> None:
    from prefect_heteroflow.orchestration.nodes import read_registry

    registry = await read_registry(client, liveness_seconds=0)
    known = [record.node.name for record in registry.nodes]
    if name not in known:
        there = f"There are: {', '.join(known)}." if known else "There is none yet."
        raise CommandError(f"There is no node {name!r}. {there}", exit_code=EXIT_REFUSED)


def load_registry() -> Registry:
    """All nodes and pools; values that cannot be used are told on standard error."""
    registry = asyncio.run(_read(liveness_seconds()))
    for problem in registry.problems:
        typer.secho(f"Warning: {problem}", fg="yellow", err=True)
    return registry


async def _read(liveness: float) -> Registry:
    from prefect_heteroflow.orchestration.nodes import read_registry

    async with api_client() as client:
        return await read_registry(client, liveness_seconds=liveness)


def liveness_seconds() -> float:
    """The setting `node_liveness_seconds`.

    Raises:
        CommandError: Some setting of the package cannot be read; names it.
    """
    return read_settings().node_liveness_seconds


def read_settings() -> HeteroflowSettings:
    """The package's settings; a command warns once of those that do not exist.

    Raises:
        CommandError: Some setting of the package, or the file of all, cannot be read; names it.
    """
    from pydantic import ValidationError
    from pydantic_settings.exceptions import SettingsError

    from prefect_heteroflow.settings import HeteroflowSettings, settings_problem

    try:
        settings = HeteroflowSettings()
    except ValidationError as error:
        raise CommandError(settings_problem(error), exit_code=EXIT_REFUSED) from error
    except SettingsError as error:  # a `prefect.toml` that is no TOML, for example
        raise CommandError(f"{error}.", exit_code=EXIT_REFUSED) from error
    _warn_of_unknown_settings()
    return settings


def _warn_of_unknown_settings() -> None:
    from prefect_heteroflow.setting_names import unknown_settings

    for problem in unknown_settings():
        if problem not in _warned:
            _warned.add(problem)  # commands read the settings more than once
            typer.secho(f"Warning: {problem}", fg="yellow", err=True)


def nodes_parts(records: Sequence[NodeRecord], *, now: datetime) -> list[RenderableType]:
    """The nodes as a table for a terminal, and below it why one is cordoned and its last error."""
    from rich.text import Text

    from prefect_heteroflow.cli.fitting_table import Column, FittingTable

    nodes = [record.node for record in records]
    table = FittingTable(
        columns=[
            Column(head="node", cells=[Text(node.name) for node in nodes]),
            Column(head="pool", cells=[Text(node.pool) for node in nodes]),
            Column(
                head="memory",
                cells=[Text(str(node.memory_mb)) for node in nodes],
                justify="right",
                leave_out=2,
            ),
            Column(
                head="GPUs",
                cells=[Text(gpus_text(node.gpus)) for node in nodes],
                wraps=True,
                leave_out=1,
            ),
            Column(head="state", cells=[_state(record, now) for record in records], wraps=True),
        ]
    )
    told = [
        Text(f" {node.name}: {text}")
        for record, node in zip(records, nodes, strict=True)
        for text in (
            _cordon_text(record, now),
            node.last_error and f"last error: {node.last_error}",
        )
        if text
    ]
    return [table, *told, Text("Sizes in MB (MiB).", style="dim")]


def _state(record: NodeRecord, now: datetime) -> Text:
    from rich.text import Text

    age = age_text((now - record.heartbeat_at).total_seconds())
    dead = "stopped" if record.stopped else "not live"
    word = ("live", "green") if record.node.live else (dead, "red")
    cordoned = (", ", ("cordoned", "yellow")) if record.node.cordoned else ()
    return Text.assemble(word, *cordoned, f", {age}")


def gpus_text(gpus: Sequence[Gpu]) -> str:
    """GPUs with their memory in MiB, equal ones counted: `2 x 24576 NVIDIA A10`."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = str(gpu.memory_mb) if gpu.memory_mb else "unknown memory"
        sick = " (out of use)" if gpu.healthy is False else ""
        text = f"{memory} {gpu.name}".strip() + sick
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} x {text}" for text, count in counts.items()) or "none"


def age_text(seconds: float) -> str:
    """An age for a person, rounded down: `3 s ago`, `5 min ago`, `2 h ago`, `4 d ago`."""
    seconds = max(seconds, 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 1:.0f} s ago"


def _cordon_text(record: NodeRecord, now: datetime) -> str:
    """Why and since when: `fan broken, 5 min ago`; a GPU's reason with the start of its uuid."""
    cordon = record.cordon
    if cordon is None:
        return ""
    reasons = [] if cordon.reason is None else [cordon.reason]
    reasons += [f"{uuid[:12]}: {reason}" for uuid, reason in cordon.gpus.items()]
    age = [] if cordon.at is None else [age_text((now - cordon.at).total_seconds())]
    text = ", ".join(["; ".join(reasons), *age])
    return f"cordoned: {text}" if reasons else ""


def _node_report(record: NodeRecord) -> dict[str, Any]:
    node = record.node
    return {
        "name": node.name,
        "pool": node.pool,
        "memory_mb": node.memory_mb,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory_mb": gpu.memory_mb,
                "free_mb": gpu.free_mb,
                "healthy": gpu.healthy,
            }
            for gpu in node.gpus
        ],
        "live": node.live,
        "stopped": record.stopped,
        "last_seen": record.heartbeat_at.isoformat(),
        "cordoned": node.cordoned,
        "cordon_reason": node.cordon_reason,
        "cordoned_gpus": {} if record.cordon is None else dict(record.cordon.gpus),
        "cordoned_at": None
        if record.cordon is None or record.cordon.at is None
        else record.cordon.at.isoformat(),
        "last_error": node.last_error,
        "docker": node.docker,
        "host": record.holder.host,
        "worker_instance_id": record.holder.instance_id,
    }
