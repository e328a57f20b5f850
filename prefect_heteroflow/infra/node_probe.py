"""What this machine is: its memory and GPUs, probed or declared."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from prefect_heteroflow.core.resources import Gpu, Node
from prefect_heteroflow.core.units import bytes_to_mb_floor
from prefect_heteroflow.infra.cgroups import locate_own_cgroup, parse_counter, read_number
from prefect_heteroflow.infra.cgroups import read_text as read_control
from prefect_heteroflow.infra.nvml import NvmlUnavailable, read_gpus

MAX_NODE_NAME_CHARACTERS = 200
MAX_DECLARED_GPUS = 64
_UNLIMITED = 1 << 62
"""Bytes; v1 shows "no limit" as a number a little below 2 ** 63."""


def probe_node(
    name: str | None,
    pool: str,
    *,
    declared_memory_mb: int | None = None,
    declared_gpus: tuple[int, ...] | None = None,
    reserve_mb: int = 0,
    docker_info: Mapping[str, Any] | None = None,
    docker: bool | None = None,
) -> Node:
    """This machine as a node. Blocks (NVML): call it in a thread.

    Args:
        name: Its name; `None` or empty takes the host's.
        pool: The work pool of its worker.
        declared_memory_mb: Memory for attempts, MiB, whatever the machine has.
        declared_gpus: Memory of each GPU, MiB, whatever NVML says; `()` for none.
        reserve_mb: Left for the system, MiB; taken off what was probed, not off what is declared.
        docker_info: What `docker info` says (`client.info()`), for a worker that starts containers.
        docker: Whether it starts containers; `None` takes it from `docker_info`.

    Raises:
        ValueError: A name that is too long or not printable, or a negative number.
    """
    node_name = check_node_name(name or socket.gethostname())
    if reserve_mb < 0 or (declared_memory_mb is not None and declared_memory_mb < 1):
        raise ValueError(
            f"node_memory_mb is {declared_memory_mb} with a reserve of {reserve_mb};"
            " memory is at least 1 MB and a reserve at least 0."
        )
    memory_mb = declared_memory_mb
    if memory_mb is None:
        memory_mb = max(min(read_memory_sources(docker_info).values()) - reserve_mb, 0)
    gpus: tuple[Gpu, ...] | NvmlUnavailable
    if declared_gpus is not None:
        gpus = tuple(
            Gpu(uuid=f"declared-{node_name}-{index}", name="declared", memory_mb=size)
            for index, size in enumerate(declared_gpus)
        )
    else:
        gpus = read_gpus()
    return Node(
        name=node_name,
        pool=pool,
        memory_mb=memory_mb,
        gpus=() if isinstance(gpus, NvmlUnavailable) else gpus,
        docker=docker_info is not None if docker is None else docker,
    )


def check_node_name(name: str) -> str:
    """The name without blanks around it.

    Raises:
        ValueError: Empty, longer than 200 characters, or with characters that cannot be printed.
    """
    stripped = name.strip()
    if not stripped or len(stripped) > MAX_NODE_NAME_CHARACTERS or not stripped.isprintable():
        raise ValueError(
            f"node_name is {name[:40]!r}; allowed are 1 to {MAX_NODE_NAME_CHARACTERS} printable"
            " characters. Set PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME."
        )
    return stripped


def read_memory_sources(docker_info: Mapping[str, Any] | None = None) -> dict[str, int]:
    """What bounds the memory of an attempt here, by source, MiB; the least of them counts.

    Containers do not live in the worker's own cgroup, so with `docker_info` only a limit of the
    whole visible hierarchy counts (that of a container in which the engine itself runs), and only
    if the engine runs here.
    """
    sources = {"machine": bytes_to_mb_floor(psutil.virtual_memory().total)}
    limit = read_cgroup_limit(whole=docker_info is not None)
    engine_is_here = docker_info is None or docker_info.get("Name") == socket.gethostname()
    if limit is not None and engine_is_here:
        sources["cgroup"] = bytes_to_mb_floor(limit)
    total = (docker_info or {}).get("MemTotal")
    if isinstance(total, int) and total > 0:
        sources["docker"] = bytes_to_mb_floor(total)
        if not engine_is_here:
            del sources["machine"]  # another machine's, or a virtual machine's engine
    return sources


def read_cgroup_limit(*, whole: bool = False) -> int | None:
    """Memory limit of this process's cgroup and those above it, bytes; `None` for no limit.

    Args:
        whole: Look at the top of the visible hierarchy only.
    """
    limits: list[int | None] = []
    if (located := locate_own_cgroup("memory")) is not None:
        limits.append(read_v1_limit(located[0] if whole else located[1]))
    if (located := locate_own_cgroup("")) is not None:
        limits.append(read_v2_limit(located[0], located[0] if whole else located[1]))
    return min((limit for limit in limits if limit is not None), default=None)


def read_v1_limit(group: Path) -> int | None:
    """Limit of a v1 group, those above it included, bytes; `None` for no limit."""
    statistics = read_control(group / "memory.stat") or ""
    limit = parse_counter(statistics, "hierarchical_memory_limit")
    if limit is None:
        limit = read_number(group / "memory.limit_in_bytes")
    return None if limit is None or limit >= _UNLIMITED else limit


def read_v2_limit(top: Path, group: Path) -> int | None:
    """Least limit of a v2 group and those above it up to `top`, bytes; `None` for no limit."""
    limits = [read_number(group / "memory.max")]
    while group not in (top, group.parent):
        group = group.parent
        limits.append(read_number(group / "memory.max"))
    return min((limit for limit in limits if limit is not None), default=None)


def parse_declared_gpus(text: str) -> tuple[int, ...]:
    """Memory of each declared GPU, MiB, from `8192`, `24576,24576`, `2x24576` or `none`.

    Raises:
        ValueError: It is none of these; says what is wrong and what is allowed.
    """
    allowed = (
        "allowed are the MB (MiB) of each GPU, such as '8192', '24576,24576' or '2x24576',"
        " or 'none'."
    )
    if text.strip().lower() in ("", "none", "0"):
        return ()
    sizes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,4})\s*[xX*]\s*)?(\d{1,9})\s*", part, re.ASCII)
        if match is None:
            raise ValueError(f"node_gpus is {text[:60]!r}: {part.strip()!r} is no size; {allowed}")
        count, size = int(match[1] or 1), int(match[2])
        if count < 1 or size < 1:
            raise ValueError(
                f"node_gpus is {text[:60]!r}: {part.strip()!r} is not positive; {allowed}"
            )
        sizes += [size] * count
        if len(sizes) > MAX_DECLARED_GPUS:
            raise ValueError(
                f"node_gpus is {text[:60]!r}: more than {MAX_DECLARED_GPUS} GPUs; {allowed}"
            )
    return tuple(sizes)


def docker_gpu_support(info: Mapping[str, Any] | None) -> bool | None:
    """Whether the engine can give GPUs to containers, as far as `docker info` tells.

    True with an NVIDIA runtime or an NVIDIA device by CDI. Docker's `--gpus` also works with
    nothing but the hook program installed beside the engine, which `docker info` does not show:
    it is looked for here if the engine runs here, and the answer is `None` if it does not.
    """
    if info is None:
        return None
    runtimes = info.get("Runtimes")
    names = [*(runtimes if isinstance(runtimes, Mapping) else ()), info.get("DefaultRuntime")]
    if any("nvidia" in str(name) for name in names):
        return True
    devices = info.get("DiscoveredDevices")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, Mapping) and str(device.get("ID", "")).startswith("nvidia.com/"):
            return True
    if info.get("Name") != socket.gethostname():
        return None
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/bin"])
    return shutil.which("nvidia-container-runtime-hook", path=path) is not None
