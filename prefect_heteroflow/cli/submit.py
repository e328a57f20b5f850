"""`heteroflow submit`: run an image and a command, and retry them where they fit."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_heteroflow.cli.api_errors import api_client, api_errors

if TYPE_CHECKING:
    from prefect_heteroflow.cli.submission import JobRequest, Submitted
    from prefect_heteroflow.cli.watching import View

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("submit")(submit)


@api_errors()
def submit(
    command: Annotated[str, typer.Option(help="Command to run, as one text.", show_default=False)],
    image: Annotated[
        str | None,
        typer.Option(help="Container image. Required unless the pool runs plain processes."),
    ] = None,
    memory_mb: Annotated[
        str | None,
        typer.Option(metavar="MB", help="Memory limit of the first attempt in MB (MiB)."),
    ] = None,
    gpu_count: Annotated[str | None, typer.Option(metavar="NUMBER", help="Number of GPUs.")] = None,
    gpu_memory_mb: Annotated[
        str | None, typer.Option(metavar="MB", help="Least memory of each GPU in MB (MiB).")
    ] = None,
    shm_mb: Annotated[
        str | None, typer.Option(metavar="MB", help="Size of /dev/shm in MB (MiB).")
    ] = None,
    retry_strategy: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY", help="Where to retry: retry_new_node, retry_same_node or no_retry."
        ),
    ] = None,
    max_retries: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="Retries after the first attempt; -1 never gives up, 0 is off."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Environment variable; may be repeated. It is stored with the run and can be"
            " read there: no place for secrets.",
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="Work pool. Default: the pool of the deployment.")
    ] = None,
    deployment: Annotated[
        str, typer.Option(help="Deployment to run, as FLOW/NAME.")
    ] = "container-job/container-job",
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the attempts and the log until the run has ended.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts on standard output.")
    ] = False,
) -> None:
    """Submit an image and a command as a run that is retried where it will succeed.

    Bad values are refused before anything is created, with exit code 2. With `--watch` the exit
    code is 0 if the run completed and 1 if it did not.
    """
    from prefect_heteroflow.cli.submission import JobRequest

    # Text as it was typed: one parser judges all values, and says all that is wrong at once.
    given = {
        "memory_mb": memory_mb,
        "gpu_count": gpu_count,
        "gpu_memory_mb": gpu_memory_mb,
        "shm_mb": shm_mb,
        "retry_strategy": retry_strategy,
        "max_retries": max_retries,
    }
    submitted = _create(
        JobRequest(
            command=command,
            image=image,
            values={key: value for key, value in given.items() if value is not None},
            env=env or (),
            pool=pool,
            deployment=deployment,
            name=name,
        )
    )
    for doubt in submitted.doubts:
        typer.secho(f"Warning: {doubt}", fg="yellow", err=True)
    url = _url(submitted)
    if not as_json:
        _tell(submitted, deployment, url)
    view = _watch(submitted, as_json=as_json) if watch else None
    if as_json:
        typer.echo(json.dumps(_report(submitted, deployment, url, view)))
    if view is not None and not view.completed:
        raise typer.Exit(1)


def _create(request: JobRequest) -> Submitted:
    from prefect_heteroflow.cli.submission import check_request, submit_job

    checked = check_request(request)

    async def create() -> Submitted:
        async with api_client() as client:
            return await submit_job(client, checked)

    return asyncio.run(create())


@contextmanager
def _interrupts_at_once() -> Iterator[None]:
    """Ctrl-C ends what runs, whatever it is about to do.

    `asyncio.run` only cancels its task on the first Ctrl-C, and a request that is about to end can
    swallow that. It leaves a handler alone that is not Python's own.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _watch(submitted: Submitted, *, as_json: bool) -> View:
    from prefect_heteroflow.cli.watching import watch_run

    run = submitted.flow_run
    try:
        with _interrupts_at_once():
            return asyncio.run(watch_run(run.id, output_on_stderr=as_json))
    except KeyboardInterrupt:
        typer.echo(
            f"\nStopped watching; the run goes on. See it with `heteroflow retries {run.id}`, end"
            f" it with `prefect flow-run cancel {run.id}`.",
            err=True,
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _url(submitted: Submitted) -> str | None:
    from prefect.utilities.urls import url_for

    return url_for("flow-run", obj_id=submitted.flow_run.id)


def _tell(submitted: Submitted, deployment: str, url: str | None) -> None:
    run = submitted.flow_run
    if submitted.registered:
        typer.echo(f"Created the deployment {deployment} for pool {submitted.pool}.")
    typer.echo(f"Submitted {run.name} to pool {submitted.pool}: {run.id}")
    if url:
        typer.echo(url)


def _report(
    submitted: Submitted, deployment: str, url: str | None, view: View | None
) -> dict[str, Any]:
    from prefect_heteroflow.core.attempts import retries_report

    run = submitted.flow_run
    report: dict[str, Any] = {
        "task_id": str(run.id),
        "name": run.name,
        "deployment": deployment,
        "pool": submitted.pool,
        "url": url,
    }
    if view is None:
        return report
    ended = {"state": view.state, "message": view.message}
    return {**report, **ended, **retries_report(str(run.id), view.attempts)}
