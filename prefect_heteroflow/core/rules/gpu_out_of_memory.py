"""Out of GPU memory in the words of the driver and its libraries, whoever passes them on."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Rule

_GPU = FailureClass.GPU_OUT_OF_MEMORY

RULES: tuple[Rule, ...] = (
    Rule(
        id="cuda-out-of-memory-from-driver",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"(?:CUDA|HIP|hip|cuda) (?:driver |runtime |Runtime )?error:? ?(?:\(2\) ?)?:? ?"
        r"out of memory"
        r"|\berror=2 : out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
        r"|hipErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|(?:cuda|hip|musa)Malloc\w{0,12} "
        r"(?:retry )?failed: out of memory|Cuda Runtime \(out of memory\)"
        r"|(?:CUDA|[Cc]uda|HIP|NCCL) (?:failure|call failed)[^\n]{0,60}out of memory"
        r"|CUDA failed with error out of memory|(?:CUDA|HIP|GPU|XPU|NPU|VRAM) (?:is )?out of memory"
        r"|[Oo]ut of (?:GPU|CUDA|device|graphics|video|VRAM) ?memory|Error out of memory at line",
        sample="RuntimeError: CUDA error: out of memory",
        near_miss="RuntimeError: CUDA error: device-side assert triggered",
        framework="cuda, hip",
        sentence="The GPU driver had no memory left[ on GPU {gpu}][: {requested} were asked for]"
        "[ of {total}].",
        confidence=0.93,
        numbers=(
            rf"allocating (?P<requested>{SIZE}) on device (?P<gpu>\d{{1,3}})",
            rf"[Oo]ut of GPU memory trying to allocate (?P<requested>{SIZE})",
            r"failed to allocate [\d.]{1,12}[KMGT]?i?B? \((?P<requested>\d{1,20} bytes)\)",
            rf"(?:allocate|[Cc]annot allocate) (?P<requested>{SIZE})",
        ),
    ),
    Rule(
        id="cuda-library-alloc-failed",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|HIPFFT|CURAND|NVRTC)\w{0,10}_"
        r"(?:ALLOC_FAILED|ALLOCATION_FAILED|INSUFFICIENT_RESOURCES)\b|rocblas_status_memory_error"
        r"|miopenStatusAllocFailed",
        sample="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
        "`cublasCreate(handle)`",
        near_miss="RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling "
        "`cublasSgemm(`",
        framework="cublas, cudnn, rocblas",
        sentence="A GPU library could not get its working memory: the GPU is full.",
        confidence=0.85,
    ),
    Rule(
        id="cuda-library-not-initialized",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED"
        r"|Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"
        r"|because cuDNN failed to initialize|failed to create cublas handle"
        r"|[Ff]ailed to initialize cu(?:DNN|BLAS|SOLVER)",
        sample="RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        near_miss="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        framework="cublas, cudnn",
        sentence="A GPU library could not start, most often because the GPU's memory is full.",
        confidence=0.55,
    ),
    Rule(
        id="gpu-words-out-of-memory",
        failure=_GPU,
        pattern=r"(?:CUDA|[Cc]uda|GPU|\bgpu\b|HIP\b|hip[A-Z]|VRAM|vram|nvidia|ROCm|rocm|Vulkan"
        r"|Metal|SYCL|sycl|OpenCL|[Dd]evice memory).{0,160}(?:[Oo]ut of memory"
        r"|[Oo]ut[_-]of[_-]memory|OutOfMemory|OUT_OF_MEMORY|[Aa]lloc fail"
        r"|memory exhausted|insufficient memory|[Nn]ot enough memory)",
        unless=r"CPUAllocator|host memory|system memory|[Ww]arning: |Windows|/test|test_",
        sample="lightgbm.basic.LightGBMError: [CUDA] out of memory cuda_utils.cu 22",
        near_miss="MemoryError: out of memory while the GPU-less node parsed a file",
        framework="any GPU library",
        sentence="A GPU library ran out of memory[: {requested} were asked for].",
        confidence=0.7,
        numbers=(rf"(?:allocat\w{{1,5}}|size|requested) (?P<requested>{SIZE})",),
    ),
)
