"""Attempts of one worker spread over the node's GPUs."""

from __future__ import annotations

from prefect_heteroflow.attempts.gpu_shares import GpuShares
from prefect_heteroflow.core.resources import Gpu, Resources

SMALL_A = Gpu(uuid="GPU-a", name="", memory_mb=8192)
SMALL_B = Gpu(uuid="GPU-b", name="", memory_mb=8192)
LARGE = Gpu(uuid="GPU-c", name="", memory_mb=24576)
ALL = (LARGE, SMALL_B, SMALL_A)
ONE = Resources(gpu_count=1)


def uuids(gpus: tuple[Gpu, ...]) -> list[str]:
    return [gpu.uuid for gpu in gpus]


def test_attempt_without_gpus_gets_none() -> None:
    assert GpuShares().take("run", ALL, Resources()) == ()


def test_smallest_gpu_that_is_large_enough_is_taken() -> None:
    asked = Resources(gpu_count=1, gpu_memory_mb=10000)
    assert uuids(GpuShares().take("run", ALL, asked)) == ["GPU-c"]


def test_second_attempt_gets_another_gpu() -> None:
    shares = GpuShares()
    shares.take("first", ALL, ONE)
    assert uuids(shares.take("second", ALL, ONE)) == ["GPU-b"]


def test_gpu_is_free_again_after_its_attempt() -> None:
    shares = GpuShares()
    shares.take("first", ALL, ONE)
    shares.give_back("first")
    assert uuids(shares.take("second", ALL, ONE)) == ["GPU-a"]


def test_unhealthy_gpu_is_not_given() -> None:
    broken = Gpu(uuid="GPU-a", name="", memory_mb=8192, healthy=False)
    assert uuids(GpuShares().take("run", (broken, SMALL_B), ONE)) == ["GPU-b"]


def test_gpu_of_unknown_health_is_given() -> None:
    assert uuids(GpuShares().take("run", (SMALL_A,), ONE)) == ["GPU-a"]


def test_gpus_of_others_are_told_apart_from_ones_own() -> None:
    shares = GpuShares()
    shares.take("first", ALL, ONE)
    shares.take("second", ALL, ONE)
    assert shares.in_use(but_for="first") == {"GPU-b"}
    assert shares.in_use(but_for="third") == {"GPU-a", "GPU-b"}
