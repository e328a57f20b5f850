"""A fake NVML library for child processes: the real `pynvml` finds it in place of NVIDIA's.

The answers come from a text file, which a test may rewrite while the child runs; its lines are
described at the head of `fake_nvml/fake_nvml.c`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"

GPU_IS_LOST = 15
"""NVML's code for a GPU that fell off the bus."""

DRIVER_NOT_LOADED = 9
"""NVML's code for a machine whose driver is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeGpu:
    """One GPU of the fake machine; memory in MiB."""

    uuid: str
    total_mb: int
    used_mb: int = 0
    name: str = "NVIDIA Fake GPU"

    def line(self) -> str:
        """The state file's line."""
        memory = f"total_mb={self.total_mb} used_mb={self.used_mb}"
        return f'gpu uuid={self.uuid} name="{self.name}" {memory}'


def why_no_fake() -> str | None:
    """Why the library cannot be compiled here, or `None` when it can."""
    return None if shutil.which("gcc") else "not installed: gcc"


def build(folder: Path) -> Path:
    """Compile the library into `folder`; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    return library


def environment(folder: Path, state_file: Path) -> dict[str, str]:
    """What a child process needs in its environment to load the library from `folder`."""
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
        "FAKE_NVML_STATE": str(state_file),
    }


def write_state(state_file: Path, gpus: Iterable[FakeGpu] = (), *more: str) -> None:
    """Replace the state at once, so that no reader sees half of it; `more` are further lines."""
    lines = [*(gpu.line() for gpu in gpus), *more]
    fresh = state_file.with_suffix(".new")
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(state_file)
