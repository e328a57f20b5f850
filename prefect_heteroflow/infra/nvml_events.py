"""Xid events of the NVIDIA driver, as NVML tells them while somebody waits for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from prefect_heteroflow.infra.nvml import NvmlUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One report of the driver."""

    code: int
    gpu_uuid: str | None
    """`None` if the GPU does not even tell its name any more."""


class XidWatch:
    """Hears of Xids from `open` on; for one thread, as `wait` blocks.

        with XidWatch() as watch:
            if watch.unavailable is None:
                event = watch.wait(5.0)

    NVML keeps no events from before, and not every GPU and driver has them: `unavailable` says so.
    """

    def __init__(self) -> None:
        self.unavailable: NvmlUnavailable | None = None
        """Why nothing can be heard; `None` while at least one GPU tells its Xids."""
        self._nvml: Any = None
        self._set: Any = None

    def __enter__(self) -> XidWatch:
        try:
            import pynvml  # only here, as in `nvml`
        except ImportError as error:
            self.unavailable = NvmlUnavailable(f"nvidia-ml-py cannot be imported ({error}).")
            return self
        nvml: Any = pynvml  # it has no types
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError, OSError) as error:
            self.unavailable = NvmlUnavailable(f"NVML cannot be used: {error}.")
            return self
        self._nvml = nvml
        try:
            self._set = nvml.nvmlEventSetCreate()
            if not self._register_all():
                self.unavailable = NvmlUnavailable("No GPU of this machine tells its Xids.")
        except nvml.NVMLError as error:
            self.unavailable = NvmlUnavailable(f"NVML tells no events: {error}.")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._nvml is None:
            return
        with suppress(self._nvml.NVMLError):
            if self._set is not None:
                self._nvml.nvmlEventSetFree(self._set)
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _register_all(self) -> int:
        nvml, registered = self._nvml, 0
        for index in range(int(nvml.nvmlDeviceGetCount())):
            # A GPU that is lost or too old must not keep the others from being heard.
            with suppress(nvml.NVMLError):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                types = nvml.nvmlDeviceGetSupportedEventTypes(device)
                if types & nvml.nvmlEventTypeXidCriticalError:
                    nvml.nvmlDeviceRegisterEvents(
                        device, nvml.nvmlEventTypeXidCriticalError, self._set
                    )
                    registered += 1
        return registered

    def wait(self, timeout_seconds: float) -> XidEvent | None:
        """The next Xid; `None` if none came in time or nothing can be heard any more.

        Blocks for up to `timeout_seconds`; returns at once when `unavailable` is set.
        """
        if self.unavailable is not None:
            return None
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, int(timeout_seconds * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                self.unavailable = NvmlUnavailable(f"NVML tells no events any more: {error}.")
            return None
        return XidEvent(code=int(event.eventData), gpu_uuid=self._uuid(event.device))

    def _uuid(self, device: Any) -> str | None:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(device)
        except self._nvml.NVMLError:
            return None
        return uuid.decode("utf-8", "replace") if isinstance(uuid, bytes) else str(uuid)
