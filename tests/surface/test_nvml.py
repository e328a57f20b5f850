"""GPUs read through the real `pynvml`, from the fake library and from a MIG machine in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.infra.nvml import _read_device
from tests.support import nvml
from tests.support.needs import need
from tests.support.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, FakeGpu

A2 = FakeGpu(uuid="GPU-aaaa", name="NVIDIA A2", total_mb=16384, used_mb=1024)
A5000 = FakeGpu(uuid="GPU-bbbb", name="NVIDIA RTX A5000", total_mb=24576)
NOT_SUPPORTED = 3

SCRIPT = """
import json
from dataclasses import asdict
from pathlib import Path
import os
import pynvml
from prefect_heteroflow.infra.nvml import NvmlUnavailable, read_gpus
gpus = read_gpus()
try:
    pynvml.nvmlDeviceGetCount()
    left_open = True
except pynvml.NVMLError:
    left_open = False
reason = gpus.reason if isinstance(gpus, NvmlUnavailable) else None
found = [] if reason else [asdict(gpu) for gpu in gpus]
print(json.dumps([found, reason, left_open]))
"""


def run(environment: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found, reason, left_open = json.loads(done.stdout)
    assert left_open is False
    return reason or tuple(Gpu(**gpu) for gpu in found)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(nvml.why_no_fake())
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def ask(library: Path, tmp_path: Path) -> Any:
    """What `read_gpus` gives in a child process on a machine of this state."""

    def read(gpus: tuple[FakeGpu, ...], *lines: str) -> Any:
        state = tmp_path / "state"
        nvml.write_state(state, gpus, *lines)
        return run(nvml.environment(library.parent, state))

    return read


def test_gpus_are_read_with_total_and_free_memory(ask: Any) -> None:
    """In NVML's order, in MiB."""
    assert ask((A2, A5000)) == (
        Gpu(uuid="GPU-aaaa", name="NVIDIA A2", memory_mb=16384, free_mb=15360),
        Gpu(uuid="GPU-bbbb", name="NVIDIA RTX A5000", memory_mb=24576, free_mb=24576),
    )


def test_machine_without_gpus_has_none(ask: Any) -> None:
    """A driver that lists nothing is no failure."""
    assert ask(()) == ()


@pytest.mark.parametrize(
    ("call", "change"),
    [
        ("name", {"name": ""}),
        ("uuid", {"uuid": "index-1"}),
        ("memory", {"memory_mb": 0, "free_mb": None}),
    ],
)
def test_value_that_cannot_be_read_is_missing(
    ask: Any, call: str, change: dict[str, object]
) -> None:
    """One failing field takes neither the other fields nor the other GPUs away."""
    whole = {"uuid": "GPU-bbbb", "name": "NVIDIA RTX A5000", "memory_mb": 24576, "free_mb": 24576}
    first, second = ask((A2, A5000), f"error call={call} gpu=1 code={NOT_SUPPORTED}")
    assert first.uuid == "GPU-aaaa"
    assert second == Gpu(**{**whole, **change})


@pytest.mark.parametrize("call", ["handle", "memory"])
def test_gpu_that_fell_off_the_bus_is_not_healthy(ask: Any, call: str) -> None:
    """It stays in the list, so that a person sees it, and is not routed to."""
    first, second = ask((A2, A5000), f"error call={call} gpu=0 code={GPU_IS_LOST}")
    assert first.healthy is False
    assert first.memory_mb == 0
    assert second.healthy is None


@pytest.mark.parametrize("call", ["init", "count"])
def test_driver_that_does_not_answer_is_a_reason(ask: Any, call: str) -> None:
    """Not known is not the same as no GPU."""
    reason = ask((A2,), f"error call={call} code={DRIVER_NOT_LOADED}")
    assert reason.startswith("NVML ")
    assert "Driver Not Loaded" in reason


def test_machine_without_the_library_is_a_reason(tmp_path: Path) -> None:
    """No driver installed: the usual case of a machine without a GPU."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert run({"LD_LIBRARY_PATH": str(tmp_path)}) == (
        "NVML cannot be used: NVML Shared Library Not Found."
    )


class FakeNvmlError(Exception):
    """Stands for `pynvml.NVMLError`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeMig:
    """An 80 GB GPU in MIG mode, with the functions of `pynvml` that it can answer."""

    NVMLError = FakeNvmlError
    NVML_ERROR_GPU_IS_LOST = GPU_IS_LOST
    NVML_ERROR_RESET_REQUIRED = 16

    def __init__(self, instances: dict[int, int], *, remap_failed: int = 0) -> None:
        self.instances = instances
        self.remap_failed = remap_failed

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index not in self.instances:
            raise FakeNvmlError(6)
        return f"MIG-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA A100 MIG"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        total = self.instances.get(int(handle.split("-")[1]), 81920) << 20
        return SimpleNamespace(total=total, free=total, used=0)

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        return (0, 0, 0, self.remap_failed)


def test_gpu_in_mig_mode_is_its_instances() -> None:
    """CUDA cannot use it as a whole; places without an instance are passed over."""
    gpus = list(_read_device(FakeMig({0: 20096, 2: 9856}), 0))
    assert [(gpu.uuid, gpu.memory_mb, gpu.healthy) for gpu in gpus] == [
        ("MIG-0", 20096, True),
        ("MIG-2", 9856, True),
    ]


def test_gpu_in_mig_mode_without_instances_is_nothing() -> None:
    """Nothing can run there until somebody makes an instance."""
    assert list(_read_device(FakeMig({}), 0)) == []


def test_failed_row_remapping_is_not_healthy() -> None:
    """NVIDIA's sign that the GPU is to be replaced holds for each of its instances."""
    (gpu,) = _read_device(FakeMig({1: 9856}, remap_failed=1), 0)
    assert gpu.healthy is False
