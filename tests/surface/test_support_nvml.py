"""The fake NVML library, asked by the real `pynvml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import nvml
from tests.support.needs import need
from tests.support.nvml import FakeGpu

GPUS = (
    FakeGpu(uuid="GPU-aaaa", name="NVIDIA A2", total_mb=16384, used_mb=1024),
    FakeGpu(uuid="GPU-bbbb", name="NVIDIA RTX A5000", total_mb=24576),
)

PRELUDE = """
import json, os, sys
from pathlib import Path
import pynvml
from tests.support.nvml import FakeGpu, write_state
state = Path(os.environ["FAKE_NVML_STATE"])
def gpu(index):
    return pynvml.nvmlDeviceGetHandleByIndex(index)
def code(call, *args):
    try:
        call(*args)
    except pynvml.NVMLError as exc:
        return [exc.value, str(exc)]
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(nvml.why_no_fake())
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def ask(library: Path, tmp_path: Path) -> Any:
    """Runs a script against a state; gives what its last expression, `answer`, was."""

    def run(script: str, *lines: str, gpus: tuple[FakeGpu, ...] = GPUS) -> Any:
        state = tmp_path / "state"
        nvml.write_state(state, gpus, *lines)
        done = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}\n{script}\nprint(json.dumps(answer))"],
            env={**os.environ, **nvml.environment(library.parent, state)},
            cwd=Path(__file__).parents[2],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_two_gpus_are_described_as_their_lines_say(ask: Any) -> None:
    """Name, UUID, memory of both versions, PCI address and driver come from the file."""
    answer = ask(
        """
pynvml.nvmlInit()
answer = []
for index in range(pynvml.nvmlDeviceGetCount()):
    h = gpu(index)
    memory, memory_v2 = (pynvml.nvmlDeviceGetMemoryInfo(h, v) for v in (None, pynvml.nvmlMemory_v2))
    answer.append([pynvml.nvmlDeviceGetUUID(h), pynvml.nvmlDeviceGetName(h),
        memory.total >> 20, memory.used >> 20, memory.free >> 20, memory_v2.free >> 20,
        pynvml.nvmlDeviceGetPciInfo(h).busId, pynvml.nvmlSystemGetDriverVersion()])
pynvml.nvmlShutdown()
""",
        "driver version=570.1",
    )
    assert answer == [
        ["GPU-aaaa", "NVIDIA A2", 16384, 1024, 15360, 15360, "00000000:01:00.0", "570.1"],
        ["GPU-bbbb", "NVIDIA RTX A5000", 24576, 0, 24576, 24576, "00000000:02:00.0", "570.1"],
    ]


def test_processes_belong_to_the_gpu_of_their_line(ask: Any) -> None:
    """Each GPU lists its own processes, with their memory, and none for an idle one."""
    answer = ask(
        """
pynvml.nvmlInit()
answer = [[[p.pid, p.usedGpuMemory >> 20]
           for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(i))] for i in (0, 1)]
""",
        "process gpu=0 pid=11 used_mb=512",
        "process gpu=0 pid=12 used_mb=256",
    )
    assert answer == [[[11, 512], [12, 256]], []]


def test_a_rewritten_state_shows_at_the_next_call(ask: Any) -> None:
    """A test may change the memory in use, or lose a GPU, while the process runs."""
    answer = ask(
        """
pynvml.nvmlInit()
h = gpu(0)
write_state(state, [FakeGpu(uuid="GPU-aaaa", total_mb=16384, used_mb=16000)])
used = pynvml.nvmlDeviceGetMemoryInfo(h).used >> 20
write_state(state, [FakeGpu(uuid="GPU-aaaa", total_mb=16384)], "error call=memory gpu=0 code=15")
answer = [used, code(pynvml.nvmlDeviceGetMemoryInfo, h)]
"""
    )
    assert answer == [16000, [nvml.GPU_IS_LOST, "GPU is lost"]]


def test_an_error_line_for_one_gpu_leaves_the_other_alone(ask: Any) -> None:
    """A lost GPU does not take its neighbour with it."""
    answer = ask(
        """
pynvml.nvmlInit()
answer = [code(pynvml.nvmlDeviceGetMemoryInfo, gpu(i)) for i in (0, 1)]
""",
        "error call=memory gpu=1 code=15",
    )
    assert answer == [None, [15, "GPU is lost"]]


def test_init_fails_with_the_code_asked_for_and_calls_stay_uninitialized(ask: Any) -> None:
    """A machine without a driver answers 9 to the init and 1 to all that follows."""
    answer = ask(
        "answer = [code(pynvml.nvmlInit), code(pynvml.nvmlDeviceGetCount)]",
        f"error call=init code={nvml.DRIVER_NOT_LOADED}",
    )
    assert answer == [[9, "Driver Not Loaded"], [1, "Uninitialized"]]


def test_an_xid_is_delivered_once_to_a_set_that_registered_its_gpu(ask: Any) -> None:
    """The wait gives the Xid's GPU and code, then times out; other GPUs' Xids stay away."""
    answer = ask(
        """
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(gpu(0), pynvml.nvmlEventTypeXidCriticalError, events)
before = code(pynvml.nvmlEventSetWait, events, 20)
write_state(state, [FakeGpu(uuid="GPU-aaaa", total_mb=1), FakeGpu(uuid="GPU-bbbb", total_mb=1)],
            "xid gpu=1 code=31", "xid gpu=0 code=79")
seen = pynvml.nvmlEventSetWait(events, 2000)
uuid = pynvml.nvmlDeviceGetUUID(seen.device)
answer = [before, [uuid, seen.eventType, seen.eventData], code(pynvml.nvmlEventSetWait, events, 20)]
pynvml.nvmlEventSetFree(events)
"""
    )
    timeout = [10, "Timeout"]
    assert answer == [timeout, ["GPU-aaaa", 8, 79], timeout]
