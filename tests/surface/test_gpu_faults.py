"""Hardware faults: told by the driver (the fake library) or proved by the end of an attempt."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_heteroflow.attempts import gpu_faults
from prefect_heteroflow.attempts.gpu_faults import cordon_after_attempt
from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence
from prefect_heteroflow.infra.nvml import NvmlUnavailable
from prefect_heteroflow.infra.nvml_events import XidWatch
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.node_values import cordon_variable_name
from prefect_heteroflow.orchestration.nodes import cordon_node
from tests.support import nvml, wait_until
from tests.support.needs import need
from tests.support.nvml import FakeGpu
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api

GPUS = (FakeGpu(uuid="GPU-aaaa", total_mb=16384), FakeGpu(uuid="GPU-bbbb", total_mb=24576))
XID_94 = "NVRM: Xid (PCI:0000:02:00): 94, pid=1234, name=python, Contained: SM (0x1)."

SCRIPT = """
import asyncio, logging, sys
from prefect.client.orchestration import get_client
from prefect_heteroflow.attempts.gpu_faults import watch_gpu_faults
async def main():
    async with get_client() as client:
        print("up", flush=True)
        logger = logging.getLogger("faults")
        await watch_gpu_faults(client, sys.argv[1], has_gpus=True, logger=logger)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(nvml.why_no_fake())
    return nvml.build(tmp_path_factory.mktemp("nvml-faults"))


@pytest.fixture
def node() -> str:
    return f"node-{uuid4().hex[:8]}"


@pytest.fixture
async def client(server: PrefectServer) -> AsyncIterator[PrefectClient]:
    with temporary_settings({PREFECT_API_URL: server.api_url}):
        async with get_client() as found:
            yield found


@pytest.fixture
def watcher(
    server: PrefectServer, library: Path, tmp_path: Path, node: str
) -> Iterator[Callable[..., None]]:
    """A watching process; gives a function that writes the driver's reports."""
    state = tmp_path / "state"
    nvml.write_state(state, GPUS)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, node],
        env={**server.env(), **nvml.environment(library.parent, state)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield lambda *lines: nvml.write_state(state, GPUS, *lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def cordon_of(api: Api, node: str) -> dict[str, Any] | None:
    body = {"variables": {"name": {"any_": [cordon_variable_name(node)]}}}
    found = api.post("/variables/filter", body)
    return found[0]["value"] if found else None


class DeafWatch(XidWatch):
    """Of a machine without NVML."""

    def __enter__(self) -> DeafWatch:
        self.unavailable = NvmlUnavailable("NVML cannot be used: no library.")
        return self


@pytest.mark.parametrize(("has_gpus", "level"), [(False, logging.DEBUG), (True, logging.INFO)])
async def test_missing_xid_events_are_worth_a_line_only_where_there_are_gpus(
    client: PrefectClient,
    node: str,
    has_gpus: bool,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a machine without any, it looked like something that is broken."""
    monkeypatch.setattr(gpu_faults, "XidWatch", DeafWatch)
    logger = logging.getLogger("tests.faults")
    with caplog.at_level(logging.DEBUG, logger.name):
        await gpu_faults.watch_gpu_faults(client, node, has_gpus=has_gpus, logger=logger)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (level, "No Xid events of the driver: NVML cannot be used: no library.")
    ]


def test_fault_that_the_driver_reports_cordons_the_gpu_and_then_the_node(
    api: Api, watcher: Callable[..., None], node: str
) -> None:
    """A program's Xid before them cordons nothing."""
    watcher("xid gpu=0 code=31", "xid gpu=1 code=48")
    cordon = wait_until(lambda: cordon_of(api, node), what="cordon of the GPU")
    assert (cordon["cordoned"], list(cordon["gpus"])) == (False, ["GPU-bbbb"])
    assert cordon["gpus"]["GPU-bbbb"] == "Xid 48: the GPU needs a reset or repair"
    watcher("xid gpu=0 code=31", "xid gpu=1 code=48", "xid gpu=0 code=79")
    wait_until(lambda: (cordon_of(api, node) or {})["cordoned"], what="cordon of the node")
    cordon = cordon_of(api, node)
    assert cordon is not None
    assert cordon["reason"] == "Xid 79 of GPU GPU-aaaa: the node needs a reboot"
    assert list(cordon["gpus"]) == ["GPU-bbbb"]


def test_watcher_ends_where_the_driver_tells_no_events(
    server: PrefectServer, library: Path, tmp_path: Path, node: str
) -> None:
    nvml.write_state(tmp_path / "state")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, node],
        env={**server.env(), **nvml.environment(library.parent, tmp_path / "state")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_end_of_an_attempt_cordons_its_gpu(
    api: Api, client: PrefectClient, node: str
) -> None:
    diagnosis = diagnose(Evidence(phase="run", exit_code=1, log=XID_94))
    assert diagnosis is not None
    assert await cordon_after_attempt(client, node, diagnosis, ["GPU-aaaa"]) is not None
    cordon = cordon_of(api, node)
    assert cordon is not None
    assert cordon["gpus"] == {"GPU-aaaa": "Xid 94: the GPU needs a reset or repair"}


async def test_fault_leaves_a_persons_reason_alone(
    api: Api, client: PrefectClient, node: str
) -> None:
    await cordon_node(client, node, reason="fan broken", at=utc_now())
    diagnosis = diagnose(Evidence(phase="run", exit_code=1, log=XID_94))
    assert diagnosis is not None
    await cordon_after_attempt(client, node, diagnosis, [])
    cordon = cordon_of(api, node)
    assert cordon is not None
    assert cordon["reason"] == "fan broken"


async def test_failure_of_the_program_cordons_nothing(
    api: Api, client: PrefectClient, node: str
) -> None:
    diagnosis = diagnose(Evidence(phase="run", exit_code=1, log="CUDA out of memory."))
    assert diagnosis is not None
    assert await cordon_after_attempt(client, node, diagnosis, ["GPU-aaaa"]) is None
    assert cordon_of(api, node) is None
