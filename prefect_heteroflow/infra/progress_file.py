"""The file in which an attempt says how far it is."""

from __future__ import annotations

import os
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
    with os.fdopen(descriptor, "rb") as file:
        if not path.is_file():
            return None
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - READ_BYTES))
        return parse_progress(file.read(READ_BYTES).decode("utf-8", "replace"))
