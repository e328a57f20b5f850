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
        pattern=r"NVRM: Xid \([^)]{1,60}\): (?:4[68]|54|6[24]|7[49]|9[45]|109|110|119|120|136|140|143"
        r"|14[4-9]|15[0568])\b",
        gates=("NVRM: Xid",),
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
        r"|_kgspIsHeartbeatTimedOut|GSP .{0,60}[Hh]eartbeat timed out|Timeout waiting for RPC from GSP"
        r"|RmInitAdapter failed|rm_init_adapter failed|GPU \d{1,3}: NVML_ERROR_(?:GPU_IS_LOST|UNKNOWN)"
        r"|NVMLError_GpuIsLost|amdgpu: .{0,80}GPU reset|GPU reset begin|VRAM is lost"
        r"|DEVICE_LOST\b|ErrorDeviceLost|[Gg]pu (?:recovery|hang) ?(?:failed|detected)|GPU HANG",
        gates=(
            "fallen off the bus",
            "GPU is lost",
            "GPU_IS_LOST",
            "nable to determine the device handle",
            "GSP Timeout",
            "eartbeat",
            "from GSP",
            "RmInitAdapter failed",
            "NVML_ERROR_UNKNOWN",
            "rm_init_adapter failed",
            "GpuIsLost",
            "GPU reset",
            "VRAM is lost",
            "DEVICE_LOST",
            "ErrorDeviceLost",
            "GPU HANG",
            "pu recovery",
            "pu hang",
        ),
        sample="Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        near_miss="Heartbeat monitor timed out! Process will be terminated after dumping debug info",
        framework="nvidia, amd, intel drivers",
        sentence="The GPU stopped answering; the node must be looked after.",
        role=Role.PLATFORM,
        confidence=0.95,
    ),
    Rule(
        id="gpu-ecc-error",
        failure=FailureClass.GPU_HARDWARE_ERROR,
        pattern=r"uncorrectable (?:NVLink|ECC) error|ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable"
        r"|cudaErrorNvlinkUncorrectable|ECC [Uu]ncorrectable|[Dd]ouble[- ][Bb]it ECC|hardware stack "
        r"error|hipErrorECCNotCorrectable|row remapping fail|CUDA_ERROR_HARDWARE_STACK_ERROR"
        r"|[Uu]ncontained ECC",
        gates=(
            "uncorrectable ",
            "_ECC_UNCORRECTABLE",
            "ECCUncorrectable",
            "NvlinkUncorrectable",
            "ECC uncorrectable",
            "ECC Uncorrectable",
            "it ECC",
            "hardware stack error",
            "ECCNotCorr",
            "row remapping fail",
            "HARDWARE_STACK_ERROR",
            "ncontained ECC",
        ),
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
        gates=(
            "unspecified launch failure",
            "ErrorLaunchFailure",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA error: hardware",
            "HSA_STATUS_ERROR",
        ),
        sample="RuntimeError: CUDA error: unspecified launch failure",
        near_miss="RuntimeError: CUDA error: the launch timed out and was terminated",
        framework="cuda, hip",
        sentence="A GPU kernel died without a reason, which points to the device.",
        confidence=0.6,
    ),
    Rule(
        id="gpu-busy-or-not-ready",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable|Error 802: system not "
        r"yet initialized|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"
        r"|cudaErrorSystemNotReady|cudaErrorDevicesUnavailable|hipErrorDevicesUnavailable"
        r"|NVML: Unknown Error|NVMLError_Unknown|[Ff]ailed to initialize NVML: Unknown Error"
        r"|Error 803: |Error 804: |unsupported display driver|forward compatibility was attempted"
        r"|[Dd]river/library version mismatch|NVRM: API mismatch|Found no NVIDIA driver on your system"
        r"|NVIDIA-SMI has failed because it couldn't communicate|(?:CUDA_ERROR_NO_DEVICE|no "
        r"CUDA-capable device is detected)|No CUDA GPUs are available|NVMLError_DriverNotLoaded"
        r"|No HIP GPUs are available|[Ff]ailed to initialize NVML|CUDA_ERROR_NOT_INITIALIZED"
        r"|[Ff]abric ?[Mm]anager .{0,60}(?:not running|failed to start|[Nn]ot [Ss]tarted)"
        r"|CUDA unknown error - this may be due to an incorrectly set up environment"
        r"|Torch is not able to use GPU",
        gates=(
            "busy or unavailable",
            "system not yet initialized",
            "_SYSTEM_NOT_READY",
            "SystemNotReady",
            "DevicesUnavailable",
            "NVML: Unknown Error",
            "NVMLError_Unknown",
            "ailed to initialize NVML",
            "Error 803: ",
            "Error 804: ",
            "unsupported display driver",
            "forward compatibility was attempted",
            "river/library version mismatch",
            "NVRM: API mismatch",
            "Found no NVIDIA driver",
            "NVIDIA-SMI has failed because",
            "CUDA_ERROR_NO_DEVICE",
            "no CUDA-capable device",
            "No CUDA GPUs are",
            "No HIP GPUs are",
            "DriverNotLoaded",
            "CUDA_ERROR_NOT_INITIALIZED",
            "abric manager",
            "abricmanager",
            "abric Manager",
            "abricManager",
            "CUDA unknown error - this",
            "Torch is not able to use GPU",
        ),
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
        gates=(
            "nvalid device ordinal",
            "cudaErrorInvalidDevice",
            "CUDA_ERROR_INVALID_DEVICE",
            "Invalid CUDA 'device=",
            "deserialize object on",
            "hipErrorInvalidDevice",
        ),
        sample="RuntimeError: CUDA error: invalid device ordinal",
        near_miss="RuntimeError: CUDA error: invalid device function",
        framework="cuda",
        sentence="The program addresses a GPU that it was not given.",
        confidence=0.85,
    ),
    Rule(
        id="cuda-program-error",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"device-side assert triggered|illegal memory access was encountered|misaligned address"
        r"|no kernel image is available|CUDA driver version is insufficient|invalid device function"
        r"|an illegal instruction was encountered|the launch timed out and was terminated"
        r"|invalid configuration argument|too many resources requested for launch"
        r"|Cannot re-initialize CUDA in forked subprocess|named symbol not found at line"
        r"|CUDA Setup failed despite GPU being available|NVIDIA driver on your system is too old"
        r"|cudaErrorIllegalAddress|cudaErrorAssert\b|CUDA_ERROR_ILLEGAL_ADDRESS"
        r"|PTX was compiled with an unsupported toolchain|Torch not compiled with CUDA enabled"
        r"|cudaErrorNoKernelImageForDevice|hipErrorNoBinaryForGpu|Memory access fault by GPU node"
        r"|CUBLAS_STATUS_(?:INVALID_VALUE|EXECUTION_FAILED|NOT_SUPPORTED|ARCH_MISMATCH)"
        r"|CUDNN_STATUS_(?:BAD_PARAM|NOT_SUPPORTED|EXECUTION_FAILED|MAPPING_ERROR)"
        r"|out of resource: shared memory|uses too much shared data|OutOfResources: "
        r"|CUDNN_STATUS_VERSION_MISMATCH|CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        gates=(
            "device-side assert",
            "illegal memory access",
            "misaligned address",
            "no kernel image is",
            "driver version is insufficient",
            "invalid device function",
            "an illegal instruction was",
            "the launch timed out",
            "invalid configuration argument",
            "too many resources requested",
            "annot re-initialize CUDA",
            "named symbol not found",
            "CUDA Setup failed despite",
            "your system is too old",
            "IllegalAddress",
            "cudaErrorAssert",
            "ILLEGAL_ADDRESS",
            "unsupported toolchain",
            "not compiled with CUDA",
            "NoKernelImage",
            "NoBinaryForGpu",
            "Memory access fault by GPU",
            "CUBLAS_STATUS_",
            "CUDNN_STATUS_",
            "out of resource: ",
            "too much shared data",
            "OutOfResources: ",
        ),
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
        gates=("NVRM: Xid",),
        sample="NVRM: Xid (PCI:0000:1a:00): 31, pid=477445, name=python3, Ch 00000010, intr 00000000. "
        "MMU Fault: ENGINE GRAPHICS",
        near_miss="NVRM: Xid (PCI:0000:1a:00): 43, pid=477445, name=python3, Ch 00000010",
        framework="nvidia driver",
        sentence="The NVIDIA driver stopped the program for a wrong memory access.",
        role=Role.GENERIC,
        confidence=0.5,
    ),
)
