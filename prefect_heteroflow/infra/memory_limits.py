"""A memory limit for the processes of one attempt, by the best means that this machine has.

Best first: cgroup v2 (where a cgroup with the memory controller is ours to divide), cgroup v1 (as
root), and a watcher that samples the resident memory of the process tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from prefect_heteroflow.infra.cgroup_v1 import create_v1_limit
from prefect_heteroflow.infra.cgroup_v2 import create_v2_limit
from prefect_heteroflow.infra.cgroups import MemoryLimitUnavailable
from prefect_heteroflow.infra.memory_watcher import ResidentMemoryWatcher

__all__ = ["MemoryLimit", "MemoryLimitUnavailable", "create_memory_limit"]


class MemoryLimit(Protocol):
    """The memory limit of one attempt, over its processes and all their descendants.

    Life: `create_memory_limit`, start `wrap(command)`, `enter(pid)`, wait for the process, read
    the counters, `close`. Counters can still be read after `close`. All methods block for a few
    seconds at most (`kill_all` and `close` up to 10): call those two in a thread.
    """

    @property
    def kind(self) -> str:
        """`cgroup v2`, `cgroup v1` or `resident memory watcher`."""

    @property
    def memory_mb(self) -> int:
        """The limit, MiB; swap is not granted on top of it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Why each better kind is not in force, and what this one cannot do here; for a log."""

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command to start instead, whose process is under the limit before it runs.

        The process id and the exit status are those of `command` itself (it is `exec`ed); exit
        status 126 with a line on standard error says that the limit could not be joined.
        """

    def enter(self, pid: int) -> None:
        """Put a running process under the limit. Call it after starting `wrap(command)` too.

        A process that is already gone is no error.
        """

    def pids(self) -> list[int]:
        """The living processes under the limit."""

    def oom_kill_count(self) -> int | None:
        """Processes of the attempt that were killed for memory; `None` if nobody counts them."""

    def limit_reached(self) -> bool | None:
        """Memory use came up to the limit at least once.

        No proof of a kill: page cache fills a cgroup up to its limit too. With a main process
        that ended by SIGKILL and an unknown `oom_kill_count` it is the best witness there is.
        """

    def peak_memory_mb(self) -> int | None:
        """Highest memory use seen, MiB, rounded up; cgroups count page cache in."""

    def outer_limit_mb(self) -> int | None:
        """The least memory limit around this one, MiB, which others share; `None` for none.

        Where it binds first, the kernel kills too, and counts that as a kill of this attempt.
        """

    def kill_all(self) -> bool:
        """SIGKILL every process of the attempt, daemons that left its session included.

        Returns:
            False if some process still lives after 10 seconds.
        """

    def close(self) -> None:
        """Kill what is left, take the limit away and remove its cgroup. Safe to call twice."""


def create_memory_limit(
    name: str, memory_mb: int, *, prefer: Literal["auto", "cgroup", "watcher"] = "auto"
) -> MemoryLimit:
    """A memory limit by the best means available; `notes` says why it is no better one.

    Args:
        name: Names the attempt on this machine (`<run id>-<attempt>`). Processes that a dead
            worker left under the same name are killed: one attempt never runs twice at once.
        memory_mb: The limit in MiB, at least 1.
        prefer: `auto` takes the first of cgroup v2, cgroup v1, watcher; `cgroup` refuses the
            watcher; `watcher` takes no cgroup.

    Raises:
        ValueError: `memory_mb` below 1, or an unknown `prefer`.
        MemoryLimitUnavailable: With `cgroup`, when neither version can be used; says why.
    """
    if memory_mb < 1:
        raise ValueError(f"memory_mb is {memory_mb}; a memory limit is at least 1 MB.")
    if prefer not in ("auto", "cgroup", "watcher"):
        raise ValueError(f"prefer is {prefer!r}; allowed are auto, cgroup and watcher.")
    if prefer == "watcher":
        return ResidentMemoryWatcher(name, memory_mb, notes=("the watcher was asked for",))
    notes: list[str] = []
    makers: tuple[tuple[str, Callable[..., MemoryLimit]], ...] = (
        ("cgroup v2", create_v2_limit),
        ("cgroup v1", create_v1_limit),
    )
    for kind, create in makers:
        try:
            return create(name, memory_mb, notes=tuple(notes))
        except MemoryLimitUnavailable as reason:
            notes.append(f"no {kind}: {reason}")
    if prefer == "cgroup":
        raise MemoryLimitUnavailable("; ".join(notes))
    return ResidentMemoryWatcher(name, memory_mb, notes=tuple(notes))
