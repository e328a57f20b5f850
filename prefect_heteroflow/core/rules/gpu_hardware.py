"""GPU faults, driver state and programs that misuse a healthy GPU."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="gpu-xid-hardware",
        failure=FailureClass.GPU_HARDWARE_ERROR,
        # Catalog of 2025-10: reset (46 62 64 95 109 110 119 120 136 140 143 155 156 158), reboot
        # (79), double-bit ECC (48), contained ECC (94), NVLink (74, 144-150), power (54),
        # fabric manager (45 follows others and is left out).
        pattern=r"NVRM: Xid \([^)]{1,60}\): (?:4[68]|54|6[24]|7[49]|9[45]|109|110|119|120|136|140"
        r"|143|14[4-9]|15[0568])\b",
        unless=r"\): 1(?:4[4-9]|50),.{0,200}Nonfatal",
        sample="NVRM: Xid (PCI:0000:02:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        near_miss="NVRM: Xid (PCI:0000:1a:00): 31, pid=477445, name=python3, Ch 00000010",
        framework="nvidia driver",
        sentence="The NVIDIA driver reported a hardware fault (Xid) of the GPU.",
        role=Role.PLATFORM,
        confidence=0.95,
    ),
    Rule(
        id="gpu-lost",
        failure=FailureClass.GPU_HARDWARE_ERROR,
        pattern=r"GPU has fallen off the bus|fallen off the bus|GPU is lost|GPU_IS_LOST"
        r"|Unable to determine the device handle for (?:GPU|gpu)|GSP Timeout"
        r"|_kgspIsHeartbeatTimedOut|GSP .{0,60}[Hh]eartbeat timed out"
        r"|Timeout waiting for RPC from GSP|RmInitAdapter failed|rm_init_adapter failed"
        r"|GPU \d{1,3}: NVML_ERROR_(?:GPU_IS_LOST|UNKNOWN)|NVMLError_GpuIsLost"
        r"|amdgpu: .{0,80}GPU reset|GPU reset begin|VRAM is lost|DEVICE_LOST\b"
        r"|ErrorDeviceLost|[Gg]pu (?:recovery|hang) ?(?:failed|detected)|GPU HANG",
        sample="Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        near_miss="Heartbeat monitor timed out! Process will be terminated after dumping debug "
        "info",
        framework="nvidia, amd, intel drivers",
        sentence="The GPU stopped answering; the node must be looked after.",
        role=Role.PLATFORM,
        confidence=0.95,
    ),
    Rule(
        id="gpu-ecc-error",
        failure=FailureClass.GPU_HARDWARE_ERROR,
        pattern=r"uncorrectable (?:NVLink|ECC) error|ERROR_ECC_UNCORRECTABLE"
        r"|cudaErrorECCUncorrectable|cudaErrorNvlinkUncorrectable|ECC [Uu]ncorrectable"
        r"|[Dd]ouble[- ][Bb]it ECC|hardware stack error|hipErrorECCNotCorrectable"
        r"|row remapping fail|CUDA_ERROR_HARDWARE_STACK_ERROR|[Uu]ncontained ECC",
        sample="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        near_miss="ECC mode: enabled, volatile corrected: 12",
        framework="cuda",
        sentence="The GPU reported a memory or link error that it could not correct.",
        confidence=0.95,
    ),
    Rule(
        id="cuda-launch-failure",
        failure=FailureClass.GPU_HARDWARE_ERROR,
        pattern=r"unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED"
        r"|hipErrorLaunchFailure|CUDA error: hardware|HSA_STATUS_ERROR_EXCEPTION"
        r"|HSA_STATUS_ERROR:",
        sample="RuntimeError: CUDA error: unspecified launch failure",
        near_miss="RuntimeError: CUDA error: the launch timed out and was terminated",
        framework="cuda, hip",
        sentence="A GPU kernel died without a reason, which points to the device.",
        confidence=0.6,
    ),
    Rule(
        id="gpu-busy-or-not-ready",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable"
        r"|Error 802: system not yet initialized|system not yet initialized"
        r"|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady"
        r"|cudaErrorDevicesUnavailable|hipErrorDevicesUnavailable|NVML: Unknown Error"
        r"|NVMLError_Unknown|[Ff]ailed to initialize NVML: Unknown Error|Error 803: "
        r"|Error 804: |unsupported display driver|forward compatibility was attempted"
        r"|[Dd]river/library version mismatch|NVRM: API mismatch"
        r"|Found no NVIDIA driver on your system"
        r"|NVIDIA-SMI has failed because it couldn't communicate|(?:CUDA_ERROR_NO_DEVICE"
        r"|no CUDA-capable device is detected)|No CUDA GPUs are available"
        r"|NVMLError_DriverNotLoaded|No HIP GPUs are available"
        r"|[Ff]ailed to initialize NVML|CUDA_ERROR_NOT_INITIALIZED"
        r"|[Ff]abric ?[Mm]anager .{0,60}(?:not running|failed to start|[Nn]ot [Ss]tarted)"
        r"|CUDA unknown error - this may be due to an incorrectly set up environment"
        r"|Torch is not able to use GPU",
        sample="RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        near_miss="the endpoint is busy or temporarily unavailable for maintenance",
        framework="cuda, nvml",
        sentence="The node's GPU driver was not ready for this container; another node may be.",
        confidence=0.85,
    ),
    Rule(
        id="gpu-device-ordinal",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"invalid device ordinal|cudaErrorInvalidDevice\b|CUDA_ERROR_INVALID_DEVICE"
        r"|Invalid CUDA 'device=|Attempting to deserialize object on (?:a )?CUDA device \d"
        r"|hipErrorInvalidDevice\b",
        sample="RuntimeError: CUDA error: invalid device ordinal",
        near_miss="RuntimeError: CUDA error: invalid device function",
        framework="cuda",
        sentence="The program addresses a GPU that it was not given.",
        confidence=0.85,
    ),
    Rule(
        id="cuda-program-error",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"device-side assert triggered|illegal memory access was encountered"
        r"|misaligned address|no kernel image is available"
        r"|CUDA driver version is insufficient|invalid device function"
        r"|an illegal instruction was encountered|the launch timed out and was terminated"
        r"|invalid configuration argument|too many resources requested for launch"
        r"|Cannot re-initialize CUDA in forked subprocess|named symbol not found at line"
        r"|CUDA Setup failed despite GPU being available"
        r"|NVIDIA driver on your system is too old|cudaErrorIllegalAddress"
        r"|cudaErrorAssert\b|CUDA_ERROR_ILLEGAL_ADDRESS"
        r"|PTX was compiled with an unsupported toolchain"
        r"|Torch not compiled with CUDA enabled|cudaErrorNoKernelImageForDevice"
        r"|hipErrorNoBinaryForGpu|Memory access fault by GPU node"
        r"|CUBLAS_STATUS_(?:INVALID_VALUE|EXECUTION_FAILED|NOT_SUPPORTED|ARCH_MISMATCH)"
        r"|CUDNN_STATUS_(?:BAD_PARAM|NOT_SUPPORTED|EXECUTION_FAILED|MAPPING_ERROR)"
        r"|out of resource: shared memory|uses too much shared data|OutOfResources: "
        r"|CUDNN_STATUS_VERSION_MISMATCH|CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        sample="RuntimeError: CUDA error: device-side assert triggered",
        near_miss="Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        framework="cuda, hip, triton",
        sentence="The program misused the GPU or does not fit its kind; more memory does not help.",
        confidence=0.75,
    ),
    Rule(
        id="gpu-xid-program",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"NVRM: Xid \([^)]{1,60}\): (?:13|31|69|25|32|39|4[01]|60|68|7[0-2])\b",
        sample="NVRM: Xid (PCI:0000:1a:00): 31, pid=477445, name=python3, Ch 00000010, intr "
        "00000000. MMU Fault: ENGINE GRAPHICS",
        near_miss="NVRM: Xid (PCI:0000:1a:00): 43, pid=477445, name=python3, Ch 00000010",
        framework="nvidia driver",
        sentence="The NVIDIA driver stopped the program for a wrong memory access.",
        role=Role.GENERIC,
        confidence=0.5,
    ),
)
