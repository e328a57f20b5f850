"""The console script `heteroflow`.

Each module of a command has `register(app)` and imports Prefect, which takes a second or two, only
inside of its command: `--help` and the commands that need no server answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from prefect_heteroflow.cli import attempts, breakers, diagnose, nodes, pools, retries, submit

app = typer.Typer(
    name="heteroflow",
    help="Look at nodes, pools and attempts of prefect-heteroflow, and submit plain jobs.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    # A traceback with all local variables would print environment values.
    pretty_exceptions_enable=False,
)

for _commands in (submit, retries, attempts, nodes, pools, breakers, diagnose):
    _commands.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("prefect-heteroflow"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Look at nodes, pools and attempts of prefect-heteroflow, and submit plain jobs."""
