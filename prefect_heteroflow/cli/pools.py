"""`heteroflow pool tag|untag|ls`: what a work pool's nodes have, declared by hand."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_client, api_errors
from prefect_heteroflow.cli.nodes import liveness_seconds, load_registry

if TYPE_CHECKING:
    from rich.text import Text

    from prefect_heteroflow.cli.fitting_table import FittingTable
    from prefect_heteroflow.core.resources import Pool
    from prefect_heteroflow.orchestration.nodes import Registry

pool_app = typer.Typer(help="Declare and show what the nodes of work pools have.")

PoolName = Annotated[
    str, typer.Argument(metavar="POOL", help="Name of a work pool.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the group `pool` to the app."""
    app.add_typer(pool_app, name="pool", no_args_is_help=True)


def _positive(text: str) -> int:
    return _whole_number(text, least=1)


def _not_negative(text: str) -> int:
    return _whole_number(text, least=0)


def _whole_number(text: str, *, least: int) -> int:
    # The command line library's own message does not name the value.
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise typer.BadParameter(f"{text} is not allowed; give a whole number from {least} on.")
    return number


@pool_app.command("tag")
@api_errors()
def tag(
    name: PoolName,
    gpu_memory_mb: Annotated[
        int | None,
        typer.Option(help="Memory of each GPU in MB (MiB).", parser=_positive, metavar="N"),
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(help="Memory of each node in MB (MiB).", parser=_positive, metavar="N"),
    ] = None,
    gpu_count: Annotated[
        int | None, typer.Option(help="GPUs of each node.", parser=_not_negative, metavar="N")
    ] = None,
) -> None:
    """Declare what the nodes of a pool have, for routing before any of them is live.

    What is not given stays as it was declared before. The pool's description shows it.
    """
    from prefect_heteroflow.core.routing import OUR_WORKER_TYPES

    pool, worker_type = asyncio.run(_tag(name, memory_mb, gpu_memory_mb, gpu_count))
    typer.echo(f"Tagged work pool {name}: {declared_text(pool)}.")
    if worker_type not in OUR_WORKER_TYPES:
        warning = (
            f"Warning: {name} is of type {worker_type!r}, which no worker of ours serves. Runs that"
            " are moved there have no limits of ours, and no further retries."
        )
        typer.secho(warning, fg="yellow", err=True)


@pool_app.command("untag")
@api_errors()
def untag(name: PoolName) -> None:
    """Take back what was declared of a pool."""
    removed = asyncio.run(_untag(name))
    typer.echo(
        f"Work pool {name} is not tagged any more."
        if removed
        else f"Work pool {name} was not tagged."
    )


@pool_app.command("ls")
@api_errors()
def list_pools(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of a table.")
    ] = False,
) -> None:
    """Show every work pool with what is declared of it and its nodes."""
    registry = load_registry()
    if as_json:
        typer.echo(json.dumps({"pools": _pools_report(registry)}))
        return
    if not registry.pools:
        typer.echo(
            "There is no work pool yet. Create one: prefect work-pool create POOL --type heteroflow"
        )
        return
    from prefect_heteroflow.cli.fitting_table import show

    show(pools_table(registry))


async def _tag(
    name: str, memory_mb: int | None, gpu_memory_mb: int | None, gpu_count: int | None
) -> tuple[Pool, str]:
    """What is declared now, and the type of the pool."""
    from prefect_heteroflow.orchestration.pool_tags import PoolNotFound, tag_pool

    if memory_mb is None and gpu_memory_mb is None and gpu_count is None:
        raise CommandError(
            "Nothing to declare: give --gpu-memory-mb, --memory-mb or --gpu-count.",
            exit_code=EXIT_REFUSED,
        )
    liveness = liveness_seconds()
    async with api_client() as client:
        try:
            pool = await tag_pool(
                client,
                name,
                memory_mb=memory_mb,
                gpu_memory_mb=gpu_memory_mb,
                gpu_count=gpu_count,
                liveness_seconds=liveness,
            )
        except PoolNotFound as error:
            raise CommandError(str(error), exit_code=EXIT_REFUSED) from error
        return pool, (await client.read_work_pool(name)).type


async def _untag(name: str) -> bool:
    from prefect_heteroflow.orchestration.pool_tags import PoolNotFound, untag_pool

    liveness = liveness_seconds()
    async with api_client() as client:
        try:
            return await untag_pool(client, name, liveness_seconds=liveness)
        except PoolNotFound as error:
            raise CommandError(str(error), exit_code=EXIT_REFUSED) from error


def declared_text(pool: Pool) -> str:
    """What is declared of a pool, for a person; empty if nothing is."""
    parts = []
    if pool.gpu_memory_mb is not None:
        parts.append(f"{pool.gpu_memory_mb} MB GPU memory")
    if pool.gpu_count is not None:
        parts.append(f"{pool.gpu_count} GPU{'' if pool.gpu_count == 1 else 's'} a node")
    if pool.memory_mb is not None:
        parts.append(f"{pool.memory_mb} MB memory")
    return ", ".join(parts)


def pools_table(registry: Registry) -> FittingTable:
    """The work pools as a table for a terminal."""
    from rich.text import Text

    from prefect_heteroflow.cli.fitting_table import Column, FittingTable

    pools = registry.pools
    return FittingTable(
        columns=[
            Column(head="pool", cells=[_pool_text(pool) for pool in pools]),
            Column(head="type", cells=[Text(it.worker_type or "") for it in pools], leave_out=1),
            Column(
                head="tagged with",
                cells=[Text(declared_text(pool)) for pool in pools],
                wraps=True,
                leave_out=2,
            ),
            Column(head="nodes", cells=[_nodes_text(registry, pool.name) for pool in pools]),
        ]
    )


def _pool_text(pool: Pool) -> Text:
    from rich.text import Text

    from prefect_heteroflow.core.routing import OUR_WORKER_TYPES

    # Not left to the column `type`, which a narrow terminal has no room for.
    is_ours = pool.worker_type in OUR_WORKER_TYPES
    return Text.assemble(
        pool.name,
        ("\n(paused)", "yellow") if pool.paused else "",
        "" if is_ours else ("\n(no worker of ours)", "yellow"),
    )


def _nodes_text(registry: Registry, pool: str) -> Text:
    """The pool's nodes, one a line: a list would be broken within a name."""
    from rich.text import Text

    live, other = _node_names(registry, pool)
    return Text("\n").join(
        [*map(Text, live), *(Text.assemble(name, (" (not live)", "red")) for name in other)]
    )


def _node_names(registry: Registry, pool: str) -> tuple[list[str], list[str]]:
    """(live, other) nodes of a pool."""
    nodes = [record.node for record in registry.nodes if record.node.pool == pool]
    return [it.name for it in nodes if it.live], [it.name for it in nodes if not it.live]


def _pools_report(registry: Registry) -> list[dict[str, Any]]:
    report = []
    for pool in registry.pools:
        live, other = _node_names(registry, pool.name)
        report.append(
            {
                "name": pool.name,
                "type": pool.worker_type,
                "paused": pool.paused,
                "memory_mb": pool.memory_mb,
                "gpu_memory_mb": pool.gpu_memory_mb,
                "gpu_count": pool.gpu_count,
                "live_nodes": live,
                "other_nodes": other,
            }
        )
    return report
