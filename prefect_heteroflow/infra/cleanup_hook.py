"""The user's own cleanup: a command or a dotted function, in a process of its own, bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from prefect_heteroflow.core.cleanup import hook_command
from prefect_heteroflow.core.log_lines import without_codes
from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.core.valid_text import on_one_line
from prefect_heteroflow.infra.leftovers import end_leftovers

MAX_OUTPUT_CHARACTERS = 200
TAIL_BYTES = 4096
CANCEL_POLL_SECONDS = 0.2
HOOK_CANCELLED = False, "the cleanup hook was ended: the run was cancelled"
HOOK_MARK = "HETEROFLOW_CLEANUP"
"""Variable in the environment of a hook and of all that it starts."""


def never() -> bool:
    """Nobody can cancel it."""
    return False


def run_hook(
    hook: str,
    *,
    folder: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
    is_cancelled: Callable[[], bool] = never,
) -> tuple[bool, str]:
    """Run a hook to its end, or end it after `timeout_seconds` with all that it started.

    Args:
        hook: What to run, see `core.cleanup.hook_command`.
        folder: Its working folder.
        environment: Its whole environment.
        timeout_seconds: How long it may take.
        is_cancelled: Asked now and then: it is ended as soon as nothing is to be retried any more.

    Returns:
        Whether it succeeded, and a few words on how it ended.
    """
    try:
        command = hook_command(hook, python=sys.executable)
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
        except (OSError, ValueError) as error:  # words or variables that no process can have
            return False, f"the cleanup hook could not be started ({error})"
        try:
            status = _wait(process, timeout_seconds, is_cancelled)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return HOOK_CANCELLED if is_cancelled() else hook_timed_out(timeout_seconds)
        finally:
            end_leftovers(mark, grace_seconds=0)
        output.seek(max(0, output.tell() - TAIL_BYTES))
        return hook_ended(status, output.read(TAIL_BYTES))


def _wait(
    process: subprocess.Popen[bytes], timeout_seconds: float, is_cancelled: Callable[[], bool]
) -> int:
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return process.wait(max(0.0, min(CANCEL_POLL_SECONDS, left)))
        except subprocess.TimeoutExpired:
            if left <= 0 or is_cancelled():
                raise


def hook_ended(status: int, said: bytes) -> tuple[bool, str]:
    """Whether a hook that ended with this status succeeded, and a few words on it.

    Args:
        status: Its exit status.
        said: The end of its output; the last line is shown where it failed.
    """
    if status == 0:
        return True, "the cleanup hook succeeded"
    text = without_codes(said.decode("utf-8", "replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = f": {on_one_line(mask_secrets(lines[-1]))[:MAX_OUTPUT_CHARACTERS]}" if lines else ""
    return False, f"the cleanup hook ended with status {status}{last}"


def hook_timed_out(timeout_seconds: float) -> tuple[bool, str]:
    """What is said of a hook that was ended for its time."""
    return False, f"the cleanup hook was ended after {timeout_seconds:g} s"
