"""What the running attempt has, for code that sizes its batches by it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from prefect_heteroflow import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAttempt:
    """The attempt that this process is. Sizes are MiB."""

    task_id: str
    """Id of the front run: the run that the user submitted."""
    attempt: int
    """1 for the first."""
    node: str
    memory_mb: int
    """Memory limit of this attempt."""
    gpu_memory_mb: int | None
    """Total memory of the smallest GPU of this attempt; `None` without a GPU."""
    previous_failure: str | None
    """Failure class of the attempt before, for example `GpuOutOfMemory`."""
    scratch: Path | None = None
    """Folder of its own. In a process it lasts until the run has ended, and so is there for the
    next attempt on the same node; in a container it goes with the container. `None` where a
    container has a read-only root."""


def current_attempt() -> CurrentAttempt | None:
    """The attempt that this process runs as, or `None` outside of one.

    Example:
        ```python
        attempt = current_attempt()
        batch_size = 64 if attempt is None or attempt.attempt == 1 else 32
        ```
    """
    task_id = os.environ.get(environment.TASK_ID)
    if task_id is None:
        return None
    gpu_memory_mb = os.environ.get(environment.GPU_MEMORY_MB)
    scratch = os.environ.get(environment.SCRATCH)
    return CurrentAttempt(
        task_id=task_id,
        attempt=int(os.environ.get(environment.ATTEMPT, "1")),
        node=os.environ.get(environment.NODE, ""),
        memory_mb=int(os.environ.get(environment.MEMORY_MB, "0")),
        gpu_memory_mb=None if gpu_memory_mb is None else int(gpu_memory_mb),
        previous_failure=os.environ.get(environment.PREVIOUS_FAILURE) or None,
        scratch=None if scratch is None else Path(scratch),
    )
