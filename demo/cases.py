"""The cases of the demo, and how each must end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

POOL_TYPE = {False: "heteroflow-process", True: "heteroflow"}
"""Worker type without and with Docker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node that declares what it has."""

    name: str
    pool: str
    gpu_mb: int
    memory_mb: int


NODES = (
    DemoNode(name="demo-8gb", pool="gpu-8gb", gpu_mb=8192, memory_mb=16384),
    DemoNode(name="demo-24gb", pool="gpu-24gb", gpu_mb=24576, memory_mb=32768),
    DemoNode(name="demo-80gb", pool="gpu-80gb", gpu_mb=81920, memory_mb=65536),
)


class Row(Protocol):
    """What is judged of a row of the attempt history."""

    @property
    def failure(self) -> str | None:
        """Failure class."""

    @property
    def node(self) -> str | None:
        """Name of the node."""

    @property
    def memory_mb(self) -> int | None:
        """Memory limit, MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run, and what must come of it."""

    name: str
    """Short, for lines of progress."""
    title: str
    deployment: str
    state: str
    """Name of the final state."""
    attempts: tuple[tuple[str | None, str, int | None], ...]
    """(failure class, node, memory in MiB) of each attempt; a refused one had no memory."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    job_variables: Mapping[str, Any] = field(default_factory=dict)


def cases(*, docker: bool, gpus: bool = True, image: str | None = None) -> tuple[Case, ...]:
    """The cases, which can all run at once.

    Args:
        docker: In containers, not in processes.
        gpus: Nodes can give GPUs; without, the two cases about them are left out.
        image: Container image with Python and Prefect; needed with `docker`.
    """
    small: dict[str, Any] = {"memory_mb": 512, **({"image": image} if docker else {})}
    found = [
        Case(
            name="host-oom",
            title="Host memory: killed at 256 MB and at 512 MB, completes with 1024 MB",
            deployment="host-oom/host-oom",
            parameters={"need_mb": 576},
            job_variables={**small, "memory_mb": 256},
            state="Completed",
            attempts=(
                ("CpuOutOfMemory", "demo-8gb", 256),
                ("CpuOutOfMemory", "demo-8gb", 512),
                (None, "demo-8gb", 1024),
            ),
        ),
        Case(
            name="flaky-network",
            title="A read timeout: again on the same node, with the same resources",
            deployment="flaky-network/flaky-network",
            job_variables={**small, "retry_delay": 1},
            state="Completed",
            attempts=(("NetworkTimeout", "demo-8gb", 512), (None, "demo-8gb", 512)),
        ),
        Case(
            name="bad-setting",
            title="A bad setting: refused before anything starts, and not retried",
            deployment="bad-setting/bad-setting",
            job_variables={**small, "memory_mb": 4096, "oom_memory_limit": 1024},
            state="PermanentFailure",
            attempts=(("ResourceLimitExceeded", "demo-8gb", None),),
        ),
        Case(
            name="container-job",
            title="A plain job: a command with no Prefect inside",
            deployment="container-job/container-job",
            job_variables={**small, "command": "python3 -c 'print(6 * 7)'"},
            state="Completed",
            attempts=((None, "demo-8gb", 512),),
        ),
    ]
    if gpus:
        found[1:1] = [_gpu_case(20000, "demo-24gb", small), _gpu_case(60000, "demo-80gb", small)]
    if docker:
        found.insert(
            -1,
            Case(
                name="missing-image",
                title="An image that does not exist: stops at once",
                deployment="missing-image/missing-image",
                job_variables={
                    **small,
                    "image": "heteroflow-demo/no-such-image:1",
                    "image_pull_policy": "Never",
                },
                state="PermanentFailure",
                attempts=(("ImageNotFound", "demo-8gb", 512),),
            ),
        )
    return tuple(found)


def _gpu_case(need_gpu_mb: int, node: str, small: Mapping[str, Any]) -> Case:
    skipped = ", past the 24 GB one" if node == "demo-80gb" else ""
    return Case(
        name=f"gpu-oom {need_gpu_mb}",
        title=f"GPU memory: needs {need_gpu_mb} MB, so from the 8 GB node to {node}{skipped}",
        deployment="gpu-oom/gpu-oom",
        parameters={"need_gpu_mb": need_gpu_mb},
        job_variables={**small, "gpu_count": 1},
        state="Completed",
        attempts=(("GpuOutOfMemory", "demo-8gb", 512), (None, node, 512)),
    )


def differences(case: Case, state: str, rows: Sequence[Row]) -> list[str]:
    """What is not as it must be, in words; empty if the case ended well."""
    found = []
    if state != case.state:
        found.append(f"it ended as {state}, expected {case.state}")
    seen = tuple((row.failure, row.node, row.memory_mb) for row in rows)
    if seen != case.attempts:
        found.append(f"its attempts were {_said(seen)}, expected {_said(case.attempts)}")
    return found


def _said(attempts: Sequence[tuple[str | None, str | None, int | None]]) -> str:
    return (
        ", ".join(
            f"{failure or 'success'} on {node} with {memory_mb} MB"
            for failure, node, memory_mb in attempts
        )
        or "none"
    )
