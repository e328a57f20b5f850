"""The user's own cleanup: a command or a dotted function, in a process of its own, bounded."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.infra.leftovers import end_leftovers

MAX_OUTPUT_CHARACTERS = 200
HOOK_MARK = "HETEROFLOW_CLEANUP"
"""Variable in the environment of a hook and of all that it starts."""

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[.:](?P<name>[A-Za-z_]\w*)")
_CALL = "import importlib, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()"


def hook_command(hook: str) -> list[str]:
    """The words of the process that runs a hook.

    A text of the form `package.module.function` or `package.module:function` is a function
    without arguments; everything else is a command, without a shell.

    Raises:
        ValueError: It is blank, or a quote is not closed.
    """
    if found := _FUNCTION.fullmatch(hook.strip()):
        return [sys.executable, "-c", _CALL, found["module"], found["name"]]
    try:
        words = shlex.split(hook)
    except ValueError as error:
        raise ValueError(f"cleanup hook {hook!r}: {error}. Close the quote.") from error
    if not words:
        raise ValueError(
            f"cleanup hook {hook!r} is blank: give a command or package.module.function."
        )
    return words


def run_hook(
    hook: str, *, folder: Path, environment: Mapping[str, str], timeout_seconds: float
) -> tuple[bool, str]:
    """Run a hook to its end, or end it after `timeout_seconds` with all that it started.

    Args:
        hook: What to run, see `hook_command`.
        folder: Its working folder.
        environment: Its whole environment.
        timeout_seconds: How long it may take.

    Returns:
        Whether it succeeded, and a few words on how it ended.
    """
    try:
        command = hook_command(hook)
    except ValueError as error:
        return False, str(error)
    mark = {HOOK_MARK: uuid4().hex}
    # A file, not a pipe: a grandchild that keeps it open must not keep us waiting.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, **mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return False, f"the cleanup hook could not be started ({error})"
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False, f"the cleanup hook was ended after {timeout_seconds:g} s"
        finally:
            end_leftovers(mark, grace_seconds=0)
        if status == 0:
            return True, "the cleanup hook succeeded"
        output.seek(max(0, output.tell() - 4096))
        said = output.read(4096).decode("utf-8", "replace").strip().splitlines()
    last = f": {mask_secrets(said[-1])[:MAX_OUTPUT_CHARACTERS]}" if said else ""
    return False, f"the cleanup hook ended with status {status}{last}"
