"""The file in which an attempt says how far it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from prefect_heteroflow.core.progress import Progress, parse_progress

READ_BYTES = 4096
"""The last line counts, so only the end of a long file is read."""


def read_progress_file(path: Path) -> Progress | None:
    """What the file says; `None` if it is missing, empty, or no plain file."""
    try:
        # A FIFO or a device that the attempt made must not block the worker.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        start = max(0, status.st_size - READ_BYTES)
        text = os.pread(descriptor, READ_BYTES, start).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    return parse_progress(text)
