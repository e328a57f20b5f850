"""Makes the node ready for a retry: leftover processes, stale files, the user's hook, GPU memory.

Everything here blocks and is bounded in time; run it in a thread. What does not work is noted in
the report and keeps no retry from starting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prefect_heteroflow.core.cleanup import DEFAULT_PATTERNS, CleanupReport, is_matched
from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.infra.cleanup_hook import never, run_hook
from prefect_heteroflow.infra.leftovers import end_leftovers
from prefect_heteroflow.infra.nvml import NvmlUnavailable, read_gpus
from prefect_heteroflow.infra.removal import remove_entry

GPU_WAIT_SECONDS = 50.0
GPU_TOLERANCE_MB = 512
HOOK_TIMEOUT_SECONDS = 60.0
MAX_SEARCHED_DEPTH = 64
"""Folders within folders. `os.fwalk` recurses and holds each open; a matching folder goes whole,
however deep it is."""
_GPU_POLL_SECONDS = 0.5
# Folders of the system: an attempt never owns one of them as a whole.
_SHARED_FOLDERS = frozenset(
    map(Path, ("/", "/tmp", "/var/tmp", "/dev/shm", "/home", "/root", "/var", "/usr", "/etc"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """What is cleaned before one retry on the same node."""

    folders: Sequence[Path] = ()
    """The attempt's own scratch and temporary folders, and no others."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Variables that only processes of the ended attempt have in their environment; without any,
    no process is looked for."""
    patterns: Sequence[str] = DEFAULT_PATTERNS
    """From `core.cleanup.parse_cleanup_patterns`."""
    gpu_free_mb: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid -> memory that was free before the attempt began, MiB."""
    hook: str | None = None
    hook_folder: Path | None = None
    """Where the hook runs; without it, in the first of the folders."""
    hook_environment: Mapping[str, str] = field(default_factory=dict)
    hook_timeout_seconds: float = HOOK_TIMEOUT_SECONDS
    is_cancelled: Callable[[], bool] = never
    """Nothing is to be retried any more: what takes long breaks off."""


def clean_up(
    plan: CleanupPlan,
    *,
    read: Callable[[], tuple[Gpu, ...] | NvmlUnavailable] = read_gpus,
    gpu_wait_seconds: float = GPU_WAIT_SECONDS,
) -> CleanupReport:
    """Clean up for a retry and say what was done.

    The processes come first, since they hold files and GPU memory; the GPU memory comes last. A
    step that breaks off keeps the others from nothing.
    """
    report, problems, removed = CleanupReport(), list[str](), Removed()
    with _noted("looking for leftover processes", problems):
        ended = end_leftovers(plan.marks) if plan.marks else 0
        report = dataclasses.replace(report, ended_processes=ended)
    with _noted("removing stale files", problems):
        remove_matching(plan.folders, plan.patterns, problems, removed)
    with _noted("the cleanup hook", problems):
        succeeded, text = _run_hook(plan)
        report = dataclasses.replace(report, hook=text if succeeded else None)
        problems += [] if succeeded or text is None else [text]
    with _noted("waiting for GPU memory", problems):
        waited, gpu_problem = wait_for_gpu_memory(
            plan.gpu_free_mb,
            read=read,
            timeout_seconds=gpu_wait_seconds,
            is_cancelled=plan.is_cancelled,
        )
        report = dataclasses.replace(report, gpu_wait_seconds=waited)
        problems += [gpu_problem] if gpu_problem else []
    return dataclasses.replace(
        report,
        removed=tuple(removed.paths),
        removed_bytes=removed.bytes,
        problems=tuple(problems),
    )


@contextlib.contextmanager
def _noted(step: str, problems: list[str]) -> Iterator[None]:
    """A step whose fault, whatever it is, is added to `problems`."""
    try:
        yield
    except Exception as error:
        problems.append(f"{step} broke off ({type(error).__name__}: {error})")


def _run_hook(plan: CleanupPlan) -> tuple[bool, str | None]:
    if plan.hook is None or plan.is_cancelled():
        return True, None
    folders = (*filter(None, [plan.hook_folder]), *plan.folders)
    folder = next((it for it in folders if it.is_dir()), Path("/"))
    return run_hook(
        plan.hook,
        folder=folder,
        environment=plan.hook_environment,
        timeout_seconds=plan.hook_timeout_seconds,
        is_cancelled=plan.is_cancelled,
    )


# ---- files --------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Removed:
    """What has been removed so far."""

    paths: list[str] = field(default_factory=list)
    """Relative to the attempt's folders."""
    bytes: int = 0
    """Of plain files."""


def remove_matching(
    folders: Iterable[Path], patterns: Sequence[str], problems: list[str], removed: Removed
) -> None:
    """Remove what matches within the folders, down to `MAX_SEARCHED_DEPTH`.

    Symbolic links are removed as links and never followed, also if somebody swaps a folder for
    one meanwhile.

    Args:
        folders: The attempt's own.
        patterns: From `core.cleanup.parse_cleanup_patterns`.
        problems: What cannot be removed is added to them.
        removed: What goes is added to it, at once.
    """
    for folder in folders:
        problem = _why_not_own(folder)
        if problem is not None:
            problems.append(problem)
            continue
        if not folder.exists():
            continue
        with _noted("removing stale files", problems):
            _remove_matching(os.fspath(folder), patterns, problems, removed)


def _remove_matching(
    root: str, patterns: Sequence[str], problems: list[str], removed: Removed
) -> None:
    is_too_deep = False
    for path, folder_names, names, descriptor in os.fwalk(root, follow_symlinks=False):
        for name in [*names, *folder_names]:
            relative = os.path.relpath(os.path.join(path, name), root)
            if not is_matched(relative, patterns):
                continue
            removal = remove_entry(name, descriptor)
            removed.bytes += removal.removed_bytes
            if removal.problem is not None:
                problems.append(f"{relative} could not be removed ({removal.problem})")
                continue
            removed.paths.append(relative)
            if name in folder_names:
                folder_names.remove(name)
        if folder_names and _depth(path, root) >= MAX_SEARCHED_DEPTH:
            folder_names.clear()
            is_too_deep = True
    if is_too_deep:
        problems.append(
            f"what is more than {MAX_SEARCHED_DEPTH} folders deep was not looked through"
        )


def _depth(path: str, root: str) -> int:
    return path.count("/") - root.count("/")


def _why_not_own(folder: Path) -> str | None:
    """Why a folder cannot be one of an attempt's own."""
    shown = f"{str(folder)!r} was left alone"
    if not folder.is_absolute() or ".." in folder.parts:
        return f"{shown}: expected the absolute path of a folder of the attempt's own"
    if folder in _SHARED_FOLDERS or folder == Path.home():
        return f"{shown}: it is a folder that everybody shares"
    if folder.is_symlink():
        return f"{shown}: it is a link to somewhere else"
    return None


# ---- GPU memory ---------------------------------------------------------------------------------


def wait_for_gpu_memory(
    free_mb: Mapping[str, int],
    *,
    read: Callable[[], tuple[Gpu, ...] | NvmlUnavailable] = read_gpus,
    timeout_seconds: float = GPU_WAIT_SECONDS,
    tolerance_mb: int = GPU_TOLERANCE_MB,
    is_cancelled: Callable[[], bool] = never,
) -> tuple[float | None, str | None]:
    """Wait until the GPUs have as much free memory as they had before the attempt.

    The driver gives memory back some seconds after its process has ended.

    Args:
        free_mb: GPU uuid -> what was free before, MiB.
        read: Reads the GPUs of the machine.
        timeout_seconds: The wait ends after so long, whatever is free.
        tolerance_mb: So much less is enough, MiB.
        is_cancelled: The wait ends when nothing is to be started any more.

    Returns:
        Seconds waited, `None` if there was nothing to wait for; and what is still missing.
    """
    started = time.monotonic()
    has_waited = False
    while True:
        found = read() if free_mb else ()
        if isinstance(found, NvmlUnavailable):
            return None, f"GPU memory is not known: {found.reason.rstrip('.')}"
        missing = _missing(free_mb, found, tolerance_mb)
        waited = time.monotonic() - started
        if not missing or is_cancelled():
            return (waited if has_waited else None), None
        if waited >= timeout_seconds:
            return waited, f"GPU memory is still in use ({', '.join(missing)})"
        has_waited = True
        time.sleep(min(_GPU_POLL_SECONDS, timeout_seconds - waited))


def _missing(free_mb: Mapping[str, int], gpus: tuple[Gpu, ...], tolerance_mb: int) -> list[str]:
    # A GPU that tells nothing is not waited for: unknown is not occupied.
    return [
        f"{gpu.uuid}: {gpu.free_mb} of {free_mb[gpu.uuid]} MB free"
        for gpu in gpus
        if gpu.uuid in free_mb
        and gpu.free_mb is not None
        and gpu.free_mb < free_mb[gpu.uuid] - tolerance_mb
    ]
