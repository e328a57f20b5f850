"""What a node says it is: declared GPUs, names, limits of memory, GPU support of the engine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.infra import node_probe
from prefect_heteroflow.infra.node_probe import (
    check_node_name,
    docker_gpu_support,
    parse_declared_gpus,
    probe_node,
    read_memory_sources,
    read_v1_limit,
    read_v2_limit,
)
from prefect_heteroflow.infra.nvml import NvmlUnavailable

GB = 1 << 30


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8192", (8192,)),
        ("24576,24576", (24576, 24576)),
        ("2x24576", (24576, 24576)),
        (" 2 X 24576 , 8192 ", (24576, 24576, 8192)),
        ("none", ()),
        ("", ()),
        ("0", ()),
    ],
)
def test_declared_gpus_are_read(text: str, sizes: tuple[int, ...]) -> None:
    """Each of the documented forms, and them mixed."""
    assert parse_declared_gpus(text) == sizes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("24GB", "'24GB' is no size"),
        ("8192,", "'' is no size"),
        ("-8192", "'-8192' is no size"),
        ("8192.5", "'8192.5' is no size"),
        ("0x8192", "'0x8192' is not positive"),
        ("2x0", "'2x0' is not positive"),
        ("2x2x8192", "'2x2x8192' is no size"),
        ("65x8192", "more than 64 GPUs"),
        ("9999x1,9999x1", "more than 64 GPUs"),
        ("٣", "'٣' is no size"),
    ],
)
def test_declared_gpus_that_make_no_sense_are_refused(text: str, complaint: str) -> None:
    """With the value, what is wrong with it and what is allowed."""
    with pytest.raises(ValueError, match="node_gpus is") as refused:
        parse_declared_gpus(text)
    assert complaint in str(refused.value)
    assert "allowed are the MB (MiB) of each GPU" in str(refused.value)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 201, "\x1b[31m"])
def test_node_name_that_cannot_be_shown_is_refused(name: str) -> None:
    """It stands in one line of a description and of a log."""
    with pytest.raises(ValueError, match="PREFECT_INTEGRATIONS_HETEROFLOW_NODE_NAME"):
        check_node_name(name)


def test_declared_values_override_what_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine can be any node: for tests, demos and machines without NVML."""
    monkeypatch.setattr(node_probe, "read_gpus", lambda: pytest.fail("NVML was asked"))
    node = probe_node(
        "n", "p", declared_memory_mb=10**6, declared_gpus=(81920, 81920), reserve_mb=512
    )
    assert node.memory_mb == 10**6
    assert [gpu.memory_mb for gpu in node.gpus] == [81920, 81920]
    assert len({gpu.uuid for gpu in node.gpus}) == 2
    assert node.docker is False


def test_probed_values_are_taken_where_nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory less the reserve, GPUs of NVML, the host's name."""
    gpus = (Gpu(uuid="GPU-1", name="A10", memory_mb=24576),)
    monkeypatch.setattr(node_probe, "read_gpus", lambda: gpus)
    monkeypatch.setattr(node_probe, "read_memory_sources", lambda info: {"a": 9000, "b": 8000})
    node = probe_node(None, "p", reserve_mb=500, docker_info={})
    assert (node.name, node.memory_mb, node.gpus) == (socket.gethostname(), 7500, gpus)
    assert node.docker is True
    monkeypatch.setattr(node_probe, "read_gpus", lambda: NvmlUnavailable("no driver"))
    assert probe_node("n", "p").gpus == ()


def test_least_source_of_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's memory, the limit of this process, what the engine says."""
    here = socket.gethostname()

    def limit(*, whole: bool) -> int:
        return (3 if whole else 2) * GB

    monkeypatch.setattr(node_probe, "read_cgroup_limit", limit)
    assert min(read_memory_sources().values()) == 2048
    inside = read_memory_sources({"MemTotal": GB, "Name": here})
    assert (inside["cgroup"], inside["docker"]) == (3072, 1024)


def test_engine_elsewhere_is_not_bound_by_the_workers_own_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker in a small container that uses the host's engine has the host's memory to give."""
    monkeypatch.setattr(node_probe, "read_cgroup_limit", lambda whole: GB // 2)
    assert read_memory_sources({"MemTotal": 64 * GB, "Name": "the-host"}) == {"docker": 65536}


def test_v2_limit_is_the_least_on_the_way_up(tmp_path: Path) -> None:
    """A limit above counts as much as the group's own; `max` and a missing file are none."""
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    assert read_v2_limit(tmp_path, group) is None
    (group / "memory.max").write_text("max\n")
    assert read_v2_limit(tmp_path, group) is None
    (tmp_path / "a" / "memory.max").write_text(f"{GB}\n")
    assert read_v2_limit(tmp_path, group) == GB
    (group / "memory.max").write_text(f"{2 * GB}\n")
    assert read_v2_limit(tmp_path, group) == GB
    (tmp_path.parent / "memory.max").write_text("1")
    assert read_v2_limit(tmp_path, group) == GB


def test_v1_limit_counts_those_above_it(tmp_path: Path) -> None:
    """From `memory.stat`, else the group's own; v1's "no limit" is a huge number."""
    assert read_v1_limit(tmp_path) is None
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert read_v1_limit(tmp_path) is None
    (tmp_path / "memory.limit_in_bytes").write_text(f"{2 * GB}\n")
    assert read_v1_limit(tmp_path) == 2 * GB
    (tmp_path / "memory.stat").write_text(f"cache 5\nhierarchical_memory_limit {GB}\n")
    assert read_v1_limit(tmp_path) == GB


@pytest.mark.parametrize(
    ("info", "supported"),
    [
        (None, None),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"Runtimes": {"runc": {}}, "DefaultRuntime": "nvidia"}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}], "Name": "far"}, None),
        ({"Runtimes": {"runc": {}}, "Name": "far"}, None),
        ({"Runtimes": None, "DiscoveredDevices": None, "Name": "far"}, None),
    ],
)
def test_gpu_support_is_read_from_what_the_engine_lists(
    info: dict[str, Any] | None, supported: bool | None
) -> None:
    """A runtime or a device; nothing listed by an engine elsewhere proves nothing."""
    assert docker_gpu_support(info) is supported


def test_gpu_support_by_the_hook_alone_is_seen_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Docker's `--gpus` needs no more than the hook program, which `docker info` does not show."""
    info = {"Runtimes": {"runc": {}}, "Name": socket.gethostname()}
    monkeypatch.setenv("PATH", str(tmp_path))
    if not Path("/usr/bin/nvidia-container-runtime-hook").exists():
        assert docker_gpu_support(info) is False
    hook = tmp_path / "nvidia-container-runtime-hook"
    hook.touch(mode=0o755)
    assert docker_gpu_support(info) is True
