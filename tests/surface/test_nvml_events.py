"""Xid events through the real `pynvml`, from the fake library."""

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
from tests.support.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, FakeGpu

GPUS = (FakeGpu(uuid="GPU-aaaa", total_mb=16384), FakeGpu(uuid="GPU-bbbb", total_mb=24576))
NOT_SUPPORTED = 3

# Waits until it has heard as much as is asked for, or nothing more comes.
SCRIPT = """
import json, sys
from dataclasses import asdict
from prefect_heteroflow.infra.nvml_events import XidWatch
heard = []
with XidWatch() as watch:
    for _ in range(int(sys.argv[1])):
        event = watch.wait(0.2)
        heard.append(event and asdict(event))
    reason = watch.unavailable and watch.unavailable.reason
print(json.dumps([heard, reason]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(nvml.why_no_fake())
    return nvml.build(tmp_path_factory.mktemp("nvml-events"))


@pytest.fixture
def listen(library: Path, tmp_path: Path) -> Any:
    """What a watcher hears in so many waits, and why it hears nothing."""

    def run(times: int, *lines: str, gpus: tuple[FakeGpu, ...] = GPUS) -> Any:
        state = tmp_path / "state"
        nvml.write_state(state, gpus, *lines)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(times)],
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


def test_each_xid_is_heard_once_with_its_gpu(listen: Any) -> None:
    heard, reason = listen(3, "xid gpu=1 code=79", "xid gpu=0 code=31")
    assert heard == [
        {"code": 79, "gpu_uuid": "GPU-bbbb"},
        {"code": 31, "gpu_uuid": "GPU-aaaa"},
        None,
    ]
    assert reason is None


def test_gpu_that_tells_no_events_leaves_the_others_heard(listen: Any) -> None:
    heard, reason = listen(1, f"error call=events gpu=0 code={NOT_SUPPORTED}", "xid gpu=1 code=48")
    assert (heard, reason) == ([{"code": 48, "gpu_uuid": "GPU-bbbb"}], None)


def test_gpu_that_lost_its_name_with_the_fault_is_heard_without_it(listen: Any) -> None:
    heard, _ = listen(1, f"error call=uuid gpu=0 code={GPU_IS_LOST}", "xid gpu=0 code=79")
    assert heard == [{"code": 79, "gpu_uuid": None}]


@pytest.mark.parametrize(
    ("lines", "gpus", "said"),
    [
        ([f"error call=init code={DRIVER_NOT_LOADED}"], GPUS, "NVML cannot be used"),
        ([f"error call=events code={NOT_SUPPORTED}"], GPUS, "NVML tells no events: Not Supported"),
        ([f"error call=handle code={GPU_IS_LOST}"], GPUS, "No GPU of this machine tells its Xids"),
        ([], (), "No GPU of this machine tells its Xids"),
        ([f"error call=wait code={GPU_IS_LOST}"], GPUS, "NVML tells no events any more: GPU is"),
    ],
    ids=["no driver", "no events", "all lost", "no gpu", "lost while waiting"],
)
def test_machine_without_events_says_so_and_is_heard_as_nothing(
    listen: Any, lines: list[str], gpus: tuple[FakeGpu, ...], said: str
) -> None:
    heard, reason = listen(1, *lines, gpus=gpus)
    assert heard == [None]
    assert reason.startswith(said)
