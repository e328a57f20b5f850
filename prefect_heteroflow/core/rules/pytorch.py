"""PyTorch on CUDA, HIP, XPU, MPS and the CPU: allocator texts of every era, DataLoader workers."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="torch-request-beyond-any-memory",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"out of memory\. Tried to allocate more than 1EB|invalid buffer size",
        gates=("out of memory. Tried to allocate", "nvalid buffer size"),
        sample="RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        near_miss="RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        framework="pytorch",
        sentence="The program asked for more memory than any machine has: a wrong size.",
    ),
    Rule(
        id="torch-own-memory-fraction",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"out of memory\. Tried to allocate .{1,200} allowed; ",
        gates=("out of memory. Tried to allocate",),
        sample="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has "
        "a total capacity of 79.15 GiB of which 70.00 GiB is free. 1.05 GiB allowed; Of the "
        "allocated memory 1.00 GiB is allocated by PyTorch.",
        near_miss="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 "
        "has a total capacity of 79.15 GiB of which 70.00 MiB is free.",
        framework="pytorch",
        sentence="The program may use only a fraction of the GPU that it set itself"
        "[ and asked for {requested} more].",
        parser="pytorch",
    ),
    Rule(
        id="torch-gpu-out-of-memory",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"\b(?:CUDA|HIP|XPU|NPU|MLU|MUSA|GCU|HPU|SDAA|PrivateUse\w{1,20}) out of memory\. "
        r"Tried to allocate",
        gates=("out of memory. Tried to allocate",),
        sample="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.80 GiB total "
        "capacity; 4.36 GiB already allocated; 6.69 MiB free; 4.63 GiB reserved in total by "
        "PyTorch)",
        near_miss="def test_cuda_out_of_memory_message(): assert 'Tried to allocate' in text",
        framework="pytorch",
        sentence="PyTorch ran out of GPU memory[: {requested} more were asked for][ on a GPU of "
        "{total}][, {free} were free].",
        confidence=0.98,
        parser="pytorch",
    ),
    Rule(
        id="torch-mps-out-of-memory",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"MPS backend out of memory",
        gates=("MPS backend out of memory",),
        sample="RuntimeError: MPS backend out of memory (MPS allocated: 6.04 GB, other allocations: "
        "1.04 GB, max allowed: 6.77 GB). Tried to allocate 459.07 MB on private pool.",
        near_miss="MPS backend: out-of-tree memory planner enabled",
        framework="pytorch",
        sentence="PyTorch ran out of Apple GPU memory[: {requested} more were asked for][, {total} "
        "are allowed].",
        confidence=0.95,
        parser="pytorch",
    ),
    Rule(
        id="gpu-single-buffer-limit",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"can ?not allocate memory block with size larger than|can NOT allocate memory block "
        r"with size larger than|larger than (?:the )?max(?:imum)? (?:buffer|allocation) size"
        r"|exceeds maxBufferSize|exceeds the (?:device )?max(?:imum)?[_ ]?"
        r"(?:single )?(?:buffer|alloc(?:ation)?) size",
        gates=(
            "block with size larger than",
            "larger than ",
            "exceeds maxBufferSize",
            "exceeds the ",
        ),
        sample="RuntimeError: Current platform can NOT allocate memory block with size larger than "
        "4GB! Tried to allocate 6.85 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already "
        "allocated; 0 bytes reserved in total by PyTorch)",
        near_miss="UserWarning: batch larger than the training set size",
        framework="pytorch/xpu, OpenCL, Metal, Vulkan",
        sentence="One buffer was larger than this kind of device allows, however much memory it has.",
        confidence=0.8,
        parser="pytorch",
    ),
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
        gates=(
            "out of memory",
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "ut of GPU",
            "hipErrorMemoryAllocation",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "ut of CUDA",
            "ut of device",
            "ut of graphics",
            "ut of video",
            "ut of VRAM",
        ),
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
        gates=(
            "_ALLOC_FAILED",
            "_ALLOCATION_FAILED",
            "_INSUFFICIENT_RESOURCES",
            "rocblas_status_memory_error",
            "miopenStatusAllocFailed",
        ),
        sample="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
        "`cublasCreate(handle)`",
        near_miss="RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(`",
        framework="cublas, cudnn, rocblas",
        sentence="A GPU library could not get its working memory: the GPU is full.",
        confidence=0.85,
    ),
    Rule(
        id="cuda-library-not-initialized",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED|Could not create cudnn "
        r"handle: CUDNN_STATUS_INTERNAL_ERROR|because cuDNN failed to initialize"
        r"|failed to create cublas handle|[Ff]ailed to initialize cu(?:DNN|BLAS|SOLVER)",
        gates=(
            "_STATUS_NOT_INITIALIZED",
            "Could not create cudnn handle",
            "because cuDNN failed to",
            "failed to create cublas handle",
            "ailed to initialize cu",
        ),
        sample="RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        near_miss="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        framework="cublas, cudnn",
        sentence="A GPU library could not start, most often because the GPU's memory is full.",
        confidence=0.55,
    ),
    Rule(
        id="torch-cpu-out-of-memory",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|posix_memalign\."
        r"{0,40}(?:12|Cannot allocate)|Torch: not enough memory: you tried to allocate"
        r"|DefaultCPUAllocator.{0,80}you tried to allocate",
        gates=("DefaultCPUAllocator", "posix_memalign", "Torch: not enough memory"),
        sample="RuntimeError: [enforce fail at CPUAllocator.cpp:68] . DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 90177536 bytes. Error code 12 (Cannot allocate "
        "memory)",
        near_miss="INFO DefaultCPUAllocator is used for pinned buffers",
        framework="pytorch",
        sentence="PyTorch could not get memory of the host[: {requested} were asked for].",
        confidence=0.95,
        numbers=(rf"tried to allocate (?P<requested>{SIZE})",),
    ),
    Rule(
        id="dataloader-shared-memory",
        failure=FailureClass.SHARED_MEMORY_EXHAUSTED,
        pattern=r"killed by signal: Bus error|insufficient shared memory|out of shared memory\. Please"
        r"|raise your shared memory limit|unable to (?:write to|resize|open) (?:file|shared memory "
        r"object) </?torch_[^>]{1,80}>[^\n]{0,80}(?:No space left|Cannot allocate)"
        r"|unable to (?:allocate|mmap|open) [^\n]{0,80}</torch_[^\n]{1,80}Cannot allocate memory",
        gates=(
            "killed by signal: Bus error",
            "insufficient shared memory",
            "out of shared memory",
            "raise your shared memory limit",
            "/torch_",
            "<torch_",
        ),
        sample="RuntimeError: DataLoader worker (pid 572) is killed by signal: Bus error. It is "
        "possible that dataloader's workers are out of shared memory. Please try to raise your "
        "shared memory limit.",
        near_miss="RuntimeError: DataLoader worker (pid 572) is killed by signal: Killed.",
        framework="pytorch",
        sentence="The shared memory (`/dev/shm`) that DataLoader workers use is full.",
        confidence=0.93,
    ),
    Rule(
        id="dataloader-worker-killed",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) is killed by signal: Killed",
        gates=("is killed by signal: ",),
        sample="RuntimeError: DataLoader worker (pid 3418) is killed by signal: Killed.",
        near_miss="RuntimeError: DataLoader worker (pid 3418) is killed by signal: Terminated.",
        framework="pytorch",
        sentence="A DataLoader worker was killed with SIGKILL, which the kernel does when host memory "
        "is full.",
        confidence=0.8,
        role=Role.ROOT,
    ),
    Rule(
        id="dataloader-worker-crashed",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) is killed by signal: "
        r"(?:Segmentation fault|Aborted|Illegal instruction|Floating point exception)",
        gates=("is killed by signal: ",),
        sample="RuntimeError: DataLoader worker (pid 21) is killed by signal: Segmentation fault.",
        near_miss="RuntimeError: DataLoader worker (pid 21) is killed by signal: Killed.",
        framework="pytorch",
        sentence="A DataLoader worker crashed in native code.",
        confidence=0.85,
    ),
    Rule(
        id="dataloader-worker-gone",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) (?:exited unexpectedly|is killed by "
        r"signal: Terminated)",
        gates=("DataLoader worker (pid",),
        sample="RuntimeError: DataLoader worker (pid(s) 2180, 2181) exited unexpectedly",
        near_miss="DataLoader worker (pid 7) started",
        framework="pytorch",
        sentence="A DataLoader worker ended without saying why.",
        role=Role.SUMMARY,
        confidence=0.4,
    ),
)
