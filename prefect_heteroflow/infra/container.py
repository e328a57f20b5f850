"""Reads evidence out of containers, and writes the engine entry into them."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_heteroflow.core.log_lines import missing_end
from prefect_heteroflow.core.units import bytes_to_mb_ceil

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

FOLDER = "/.heteroflow"
"""Folder of ours in each container: the engine entry, its context and its report."""
CONTEXT_PATH = f"{FOLDER}/context.json"
REPORT_PATH = f"{FOLDER}/report/report.json"
SCRATCH_PATH = f"{FOLDER}/scratch"
ENTRY_COMMAND = (
    f"python -c \"import sys; sys.path.insert(0, '{FOLDER}');"
    ' from prefect_heteroflow.engine import main; main()"'
)
PREFECT_COMMAND = "python -m prefect.engine"
"""Prefect's own engine as the main process, where ours cannot be written into the container."""
# Not needed inside a container: what only workers and people use.
_LEFT_OUT = {
    "attempts",
    "cli",
    "collection.py",
    "container_cleanup.py",
    "container_watch.py",
    "docker_job.py",
    "process_worker.py",
    "retrying_worker.py",
    "worker.py",
    "__pycache__",
}
_LARGEST_REPORT = 4 * 1024 * 1024
_NO_REGULAR_FILE = 0x8F280000
"""Bits of Go's `fs.ModeType`: folder, link, device, pipe, socket and whatever else is no file."""
_LATE_EVENT_SECONDS = 1
_TAIL_LINES = 200
TAIL_BYTES = 16 * 1024


@lru_cache(maxsize=1)
def _package_members() -> tuple[tuple[str, bytes], ...]:
    root = Path(__file__).resolve().parent.parent
    members = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not _LEFT_OUT.intersection(relative.parts):
            members.append((f"{root.name}/{relative.as_posix()}", path.read_bytes()))
    return tuple(members)


def entry_archive(context_json: str | None) -> bytes:
    """A tar archive, to be unpacked at `/`: a scratch folder, and what the engine entry needs.

    That is this package, the context, and a folder for the report: any image that has Prefect runs
    the worker's own version of it. Without a context there is only the scratch folder.
    """
    buffer = io.BytesIO()
    folder = FOLDER.lstrip("/")
    modified = int(time.time())
    with tarfile.open(fileobj=buffer, mode="w") as archive:

        def add(name: str, content: bytes | None, mode: int) -> None:
            info = tarfile.TarInfo(name)
            info.mode = mode
            info.mtime = modified
            if content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                return
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        add(folder, None, 0o755)
        # The container's user need not be root.
        add(SCRATCH_PATH.lstrip("/"), None, 0o1777)
        if context_json is not None:
            add(f"{folder}/report", None, 0o1777)
            # The image may not let the user write bytecode; the sources are all that is needed.
            for name, content in _package_members():
                add(f"{folder}/{name}", content, 0o644)
            add(CONTEXT_PATH.lstrip("/"), context_json.encode(), 0o644)
    return buffer.getvalue()


def read_file(container: Container, path: str) -> str | None:
    """A small text file of a container, running or not; `None` if there is none."""
    import docker.errors

    try:
        chunks, stat = container.get_archive(path)
    except docker.errors.NotFound:
        return None
    known = stat or {}
    if known.get("mode", 0) & _NO_REGULAR_FILE or known.get("size", 0) > _LARGEST_REPORT:
        return None  # a folder would come with all that is in it
    data = b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None:
                return content.read().decode("utf-8", errors="replace")
    return None


def stream_output(
    container: Container, on_output: Callable[[bytes], None], *, since: int | None = None
) -> None:
    """Pass on the output of a container until it ends. Blocks.

    Args:
        container: Running or not.
        on_output: Takes each chunk.
        since: Only what was printed at or after this time, seconds since the epoch.

    Raises:
        docker.errors.APIError: The engine refused, for example for a log driver without reading.
    """
    for chunk in container.logs(stream=True, follow=True, since=since):
        on_output(chunk)


def pass_old_output(
    container: Container, on_output: Callable[[bytes], None], *, until: int
) -> None:
    """Pass on what a container printed before a time, seconds since the epoch."""
    for chunk in container.logs(stream=True, follow=False, until=until):
        on_output(chunk)


def missed_output(container: Container, printed_last: bytes) -> bytes:
    """What the stream of an ended container did not bring; usually nothing.

    Under load the engine ends the stream of a container that exits at once before its last line.

    Args:
        container: It has ended.
        printed_last: The end of what was streamed, up to `TAIL_BYTES`.
    """
    import docker.errors

    try:
        tail = container.logs(tail=_TAIL_LINES)
    except docker.errors.APIError:
        return b""  # no log driver that can be read; the stream has said so
    return missing_end(printed_last, tail[-TAIL_BYTES:])


def container_state(container: Container) -> dict[str, Any]:
    """`State` of the container as the engine has it now (`ExitCode`, `OOMKilled`, `Error`)."""
    # `wait()` alone leaves the attributes of the time before the end.
    container.reload()
    state: dict[str, Any] = container.attrs["State"]
    return state


def read_peak_memory_mb(pid: int) -> int | None:
    """Highest memory use of the container whose main process is `pid`, MiB.

    Only a worker that shares the engine's host can see it; elsewhere it is `None`.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.max_usage_in_bytes")
        elif controllers == "" and len(lines) == 1:
            file = Path("/sys/fs/cgroup", path.lstrip("/"), "memory.peak")
        else:
            continue
        try:
            return bytes_to_mb_ceil(int(file.read_text()))
        except (OSError, ValueError):
            return None
    return None


def saw_oom_event(client: DockerClient, container: Container) -> bool:
    """Whether the engine reported a kill for memory in this container. Blocks for a second.

    The engine keeps its last 256 events; those of the second to come are waited for as well.
    """
    events = client.events(
        since=int(_epoch(container.attrs["State"]["StartedAt"])),
        until=int(time.time()) + _LATE_EVENT_SECONDS,
        filters={"container": container.id, "event": "oom"},
        decode=True,
    )
    return any(True for _ in events)


def _epoch(text: str) -> float:
    """Seconds since the epoch of the engine's time, which has nanoseconds and ends in Z."""
    whole = text.partition(".")[0].rstrip("Z")
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
