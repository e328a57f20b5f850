"""`heteroflow diagnose` and `heteroflow rules`: why a log failed, and what the engine knows.

Nothing here imports Prefect: the stream protocol (`--jsonl`) answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import IO

    from prefect_heteroflow.core.failures import Diagnosis, Phase
    from prefect_heteroflow.core.user_rules import UserRule

_CHUNK = 1024 * 1024


def register(app: typer.Typer) -> None:
    """Add `diagnose` and `rules` to the app."""
    app.command("diagnose")(diagnose_command)
    app.command("rules")(rules_command)


@api_errors()
def diagnose_command(
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="The log; `-` is standard input.")
    ] = "-",
    exit_code: Annotated[
        int | None, typer.Option(help="Exit code of the process, if known (137, -9, ...).")
    ] = None,
    oom_killed: Annotated[
        bool, typer.Option("--oom-killed", help="The engine said OOMKilled.")
    ] = False,
    phase: Annotated[str | None, typer.Option(help="`start` (never ran), `run` or `lost`.")] = None,
    rules: Annotated[
        Path | None, typer.Option(help="YAML file with `retry_on` and `stop_on`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help="Read one evidence object per line, write one diagnosis per line."
        ),
    ] = False,
) -> None:
    """Say why a job failed, from its log.

    Exit status 0 whatever was found; 2 where the log or an option cannot be used.
    """
    from prefect_heteroflow.cli.diagnosis_stream import answer_lines, diagnosis_fields

    user_rules = _user_rules(rules)
    if jsonl:
        if file != "-":
            with _opened(file) as stream:
                answer_lines(stream, sys.stdout, user_rules=user_rules)
        else:
            answer_lines(sys.stdin.buffer, sys.stdout, user_rules=user_rules)
        return
    found = _diagnose_stream(file, exit_code, oom_killed, phase, user_rules)
    if as_json:
        typer.echo(json.dumps(diagnosis_fields(found)))
        return
    for line in _for_a_person(found):
        typer.echo(line)


def rules_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    failure: Annotated[
        str | None, typer.Option("--class", help="Only rules of this failure class.")
    ] = None,
) -> None:
    """List the rules by which logs are read: id, class, framework, and a sample of each."""
    from prefect_heteroflow.core.failures import FailureClass
    from prefect_heteroflow.core.rules import RULES

    names = [member.value for member in FailureClass]
    if failure is not None and failure not in names:
        typer.echo(
            f"There is no failure class {failure!r}; there are {', '.join(names)}.", err=True
        )
        raise typer.Exit(EXIT_REFUSED)
    rows = [
        {
            "id": rule.id,
            "failure": None if rule.failure is None else rule.failure.value,
            "role": rule.role.value,
            "framework": rule.framework,
            "confidence": rule.confidence,
            "pattern": rule.pattern,
            "sample": rule.sample,
            "near_miss": rule.near_miss,
        }
        for rule in RULES
        if failure is None or (rule.failure is not None and rule.failure.value == failure)
    ]
    if as_json:
        typer.echo(json.dumps({"rules": rows}))
        return
    for row in rows:
        typer.echo(f"{row['id']}  {row['failure'] or row['role']}  ({row['framework']})")
        typer.echo(f"    {str(row['sample']).splitlines()[-1][:110]}")


def _user_rules(path: Path | None) -> Sequence[UserRule]:
    if path is None:
        return ()
    from prefect_heteroflow.user_rules_file import load_user_rules

    try:
        return load_user_rules(path)
    except ValueError as error:
        raise CommandError(str(error), exit_code=EXIT_REFUSED) from None


def _opened(file: str) -> IO[bytes]:
    try:
        return open(file, "rb")
    except OSError as error:
        raise CommandError(
            f"The log {file} cannot be read: {error.strerror}. Give the path of a file, or `-`.",
            exit_code=EXIT_REFUSED,
        ) from None


def _diagnose_stream(
    file: str,
    exit_code: int | None,
    oom_killed: bool,
    phase: str | None,
    user_rules: Sequence[UserRule],
) -> Diagnosis | None:
    from prefect_heteroflow.core.classify import diagnose
    from prefect_heteroflow.core.failures import Evidence
    from prefect_heteroflow.core.scanner import FailureScanner
    from prefect_heteroflow.fast_literals import fast_finder

    if phase not in (None, "start", "run", "lost"):
        raise CommandError(
            f"--phase {phase} is not known. Use start, run or lost.", exit_code=EXIT_REFUSED
        )
    scanner = FailureScanner(fast_finder())
    if file == "-":
        _feed(scanner.feed, sys.stdin.buffer)
    else:
        with _opened(file) as stream:
            _feed(scanner.feed, stream)
    evidence = Evidence(
        phase=cast("Phase | None", phase),
        exit_code=exit_code,
        oom_killed=True if oom_killed else None,
        log=scanner.evidence_text(),
    )
    return diagnose(evidence, user_rules=user_rules)


def _feed(feed: Any, stream: IO[bytes]) -> None:
    try:
        while chunk := stream.read(_CHUNK):
            feed(chunk)
    except OSError as error:
        raise CommandError(
            f"The log cannot be read: {error.strerror}.", exit_code=EXIT_REFUSED
        ) from None


def _for_a_person(found: Diagnosis | None) -> Iterable[str]:
    if found is None:
        yield "Nothing failed: exit code 0, and no witness of a failure."
        return
    yield f"{found.failure.value} ({found.failure.group.value})"
    yield f"  {found.reason}"
    if found.line:
        yield f"  line:       {found.line}"
    yield f"  rule:       {found.rule}"
    yield f"  confidence: {found.confidence:.2f}"
    if found.verdict is not None:
        yield f"  verdict:    {found.verdict}"
    if found.runner_up is not None:
        yield f"  or else:    {found.runner_up.value}"
    for note in found.passive_matches:
        yield f"  passive:    {note}"
