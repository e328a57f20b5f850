"""The files of one attempt, from the engine entry's side: its context is read, its report left.

What stands in them is for `environment` to say. Copied into containers, as `engine` is: it needs
nothing but Prefect and the standard library.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from prefect.logging.loggers import get_logger

from prefect_heteroflow import environment

_logger = get_logger("heteroflow.engine")


def read_context() -> environment.AttemptContext | None:
    """What the worker told this attempt; `None` if the engine was not started by one of ours."""
    path = os.environ.get(environment.CONTEXT_FILE)
    if path is None:
        return None
    return environment.AttemptContext.from_json(Path(path).read_text(encoding="utf-8"))


def write_report(report: environment.EngineReport) -> bool:
    """Leave the report for the worker; `False` if it asked for none, or the disk takes none."""
    path = os.environ.get(environment.REPORT_FILE)
    if path is None:
        return False
    try:
        Path(path).write_text(environment.report_to_json(report), encoding="utf-8")
    except OSError as error:
        _logger.warning("The report could not be written to %s: %s", path, error)
        return False
    return True


def forget_report() -> None:
    """Another try of the flow's own `retries` begins: what ended the one before is past."""
    path = os.environ.get(environment.REPORT_FILE)
    if path is not None:
        with contextlib.suppress(OSError):
            Path(path).unlink()
