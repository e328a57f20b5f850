"""`heteroflow diagnose` and `heteroflow rules`: why a log failed, and what the engine knows.

Only the settings of `diagnose` import Prefect: the stream protocol (`--jsonl`) answers at once, and
its answers depend on its input and `--rules` alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from prefect_heteroflow.cli.api_errors import EXIT_REFUSED, CommandError, api_errors

if TYPE_CHECKING:
    from collections.abc import Iterable
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
        Path | None,
        typer.Option(
            help="YAML file with `retry_on` and `stop_on`. Its rules come before those of the"
            " settings."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Read one evidence object per line, write one diagnosis per line. The settings do"
            " not count here.",
        ),
    ] = False,
) -> None:
    """Say why a job failed, from its log, as a worker with the settings of this folder would.

    Of the settings count `stop_on`, `retry_on`, `retry_exceptions` and `rules_file`, and no server
    is needed.

    Exit status 0 whatever was found; 2 where the log, an option or a setting cannot be used.
    """
    from prefect_heteroflow.cli.diagnosis_stream import answer_lines, diagnosis_fields
    from prefect_heteroflow.core.classify import diagnose
    from prefect_heteroflow.core.failures import Evidence

    user_rules = () if rules is None else _rules_of_file(rules)
    if jsonl:
        if file != "-":
            with _opened(file) as stream:
                answer_lines(stream, sys.stdout, user_rules=user_rules)
        else:
            answer_lines(sys.stdin.buffer, sys.stdout, user_rules=user_rules)
        return
    if phase not in (None, "start", "run", "lost"):
        raise CommandError(
            f"--phase {phase} is not known. Use start, run or lost.", exit_code=EXIT_REFUSED
        )
    settings_rules, retry_exceptions = _rules_of_settings()
    evidence = Evidence(
        phase=cast("Phase | None", phase),
        exit_code=exit_code,
        oom_killed=True if oom_killed else None,
        log=_evidence_text(file),
    )
    found = diagnose(
        evidence, user_rules=(*user_rules, *settings_rules), retry_exceptions=retry_exceptions
    )
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


def _rules_of_file(path: Path) -> tuple[UserRule, ...]:
    from prefect_heteroflow.user_rules_file import load_user_rules

    try:
        return load_user_rules(path)
    except ValueError as error:
        raise CommandError(str(error), exit_code=EXIT_REFUSED) from None


def _rules_of_settings() -> tuple[tuple[UserRule, ...], bool | tuple[str, ...]]:
    """The user's rules as a run has them that says nothing of its own, and `retry_exceptions`.

    Raises:
        CommandError: A setting cannot be used; names it.
    """
    from prefect_heteroflow.cli.nodes import read_settings
    from prefect_heteroflow.core.job_values import parse_job_values
    from prefect_heteroflow.core.user_rules import combine_user_rules
    from prefect_heteroflow.user_rules_file import load_user_rules

    settings = read_settings()
    names = ("retry_on", "stop_on", "retry_exceptions")
    values = parse_job_values({name: getattr(settings, name) for name in names})
    try:
        of_file = () if settings.rules_file is None else load_user_rules(settings.rules_file)
        rules = combine_user_rules(values.retry_on, values.stop_on, of_file)
    except ValueError as error:
        message = f"The settings cannot be used. {error}"
        raise CommandError(message, exit_code=EXIT_REFUSED) from None
    return rules, values.retry_exceptions


def _opened(file: str) -> IO[bytes]:
    try:
        return open(file, "rb")
    except OSError as error:
        raise CommandError(
            f"The log {file} cannot be read: {error.strerror}. Give the path of a file, or `-`.",
            exit_code=EXIT_REFUSED,
        ) from None


def _evidence_text(file: str) -> str:
    from prefect_heteroflow.core.scanner import FailureScanner
    from prefect_heteroflow.fast_literals import fast_finder

    scanner = FailureScanner(fast_finder())
    if file == "-":
        _feed(scanner.feed, sys.stdin.buffer)
    else:
        with _opened(file) as stream:
            _feed(scanner.feed, stream)
    return scanner.evidence_text()


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
