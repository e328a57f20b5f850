"""The one gateway to NVML: what GPUs this machine has. Calls can take seconds on a sick driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prefect_heteroflow.core.resources import Gpu
from prefect_heteroflow.core.units import bytes_to_mb_floor


@dataclass(frozen=True, slots=True)
class NvmlUnavailable:
    """NVML told nothing at all: not "no GPU", but "not known"."""

    reason: str
    """One sentence for a person."""


def read_gpus() -> tuple[Gpu, ...] | NvmlUnavailable:
    """The GPUs in NVML's order; the instances of a GPU that is split by MIG in its place.

    A value that cannot be read is missing (`None`; `memory_mb` 0, an empty name), never an error.
    `healthy` is False for a GPU that fell off the bus, wants a reset, or whose row remapping
    failed; True if NVML says that it did not; `None` where it cannot say.
    `CUDA_VISIBLE_DEVICES` has no effect on what is read.
    """
    try:
        import pynvml  # only here: machines without GPUs, and imports of the package, go without
    except ImportError as error:
        return NvmlUnavailable(f"The package nvidia-ml-py cannot be imported ({error}).")
    nvml: Any = pynvml  # it has no types
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        return NvmlUnavailable(f"NVML cannot be used: {_sentence(error)}.")
    try:
        count = int(nvml.nvmlDeviceGetCount())
        return tuple(gpu for index in range(count) for gpu in _read_device(nvml, index))
    except nvml.NVMLError as error:
        return NvmlUnavailable(f"NVML does not list its GPUs: {_sentence(error)}.")
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _sentence(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _read_device(nvml: Any, index: int) -> Iterator[Gpu]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        unhealthy = False if _wants_repair(nvml, error) else None
        yield Gpu(uuid=f"index-{index}", name="", memory_mb=0, healthy=unhealthy)
        return
    instances = list(_mig_instances(nvml, handle))
    if instances or _mig_enabled(nvml, handle):
        # CUDA can use a GPU in MIG mode through its instances only, not as a whole.
        health = _health(nvml, handle)
        for number, instance in enumerate(instances):
            yield _read_gpu(nvml, instance, f"index-{index}-{number}", health)
        return
    yield _read_gpu(nvml, handle, f"index-{index}", _health(nvml, handle))


def _read_gpu(nvml: Any, handle: Any, fallback: str, healthy: bool | None) -> Gpu:
    memory = _value(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        uuid=_text(_value(nvml, nvml.nvmlDeviceGetUUID, handle)) or fallback,
        name=_text(_value(nvml, nvml.nvmlDeviceGetName, handle)),
        # Devices that share the memory of the host (Jetson, GB10) have no figure of their own.
        memory_mb=0 if memory is None else bytes_to_mb_floor(int(memory.total)),
        free_mb=None if memory is None else bytes_to_mb_floor(int(memory.free)),
        healthy=healthy,
    )


def _mig_enabled(nvml: Any, handle: Any) -> bool:
    modes = _value(nvml, getattr(nvml, "nvmlDeviceGetMigMode", None), handle)
    return bool(modes) and modes[0] == 1  # (current, pending)


def _mig_instances(nvml: Any, handle: Any) -> Iterator[Any]:
    if not _mig_enabled(nvml, handle):
        return
    most = _value(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for index in range(most):
        # Unused places answer "not found".
        instance = _value(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            yield instance


def _health(nvml: Any, handle: Any) -> bool | None:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if _wants_repair(nvml, error):
            return False
    rows = _value(nvml, getattr(nvml, "nvmlDeviceGetRemappedRows", None), handle)
    # (correctable, uncorrectable, pending, failure occurred); GPUs before Ampere do not have it.
    return None if rows is None else not rows[3]


def _wants_repair(nvml: Any, error: Exception) -> bool:
    codes = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}
    return getattr(error, "value", None) in codes


def _value(nvml: Any, call: Callable[..., Any] | None, *arguments: Any) -> Any:
    """What the call gives, or `None` if it fails or this version of `pynvml` lacks it."""
    if call is None:
        return None
    try:
        return call(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _text(value: Any) -> str:
    # Older versions of `pynvml` give bytes.
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
