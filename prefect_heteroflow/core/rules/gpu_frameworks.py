"""Out of GPU memory as TensorFlow, JAX, RAPIDS, inference servers and others print it."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Rule

_GPU = FailureClass.GPU_OUT_OF_MEMORY

RULES: tuple[Rule, ...] = (
    Rule(
        id="tensorflow-cpu-tensor-oom",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"OOM when allocating tensor with shape.{0,200}(?:device:CPU|allocator (?:cpu"
        r"|mklcpu))",
        sample="ResourceExhaustedError: OOM when allocating tensor with shape[256,1000000] and "
        "type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu "
        "[Op:Add]",
        near_miss="ResourceExhaustedError: OOM when allocating tensor with shape[16,16] and type "
        "float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        framework="tensorflow",
        sentence="TensorFlow ran out of host memory[: a tensor of {requested} was asked for].",
        parser="tensor-shape",
    ),
    Rule(
        id="tensorflow-gpu-tensor-oom",
        failure=_GPU,
        pattern=r"OOM when allocating tensor (?:with|of) shape",
        unless=r"device:CPU|allocator (?:cpu|mklcpu)",
        sample="ResourceExhaustedError: OOM when allocating tensor with shape[16,16] and type "
        "float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        near_miss="OOM when allocating tensor with shape[9] and type float on device:CPU:0 by "
        "allocator cpu",
        framework="tensorflow",
        sentence="TensorFlow ran out of GPU memory[: a tensor of {requested} was asked for].",
        confidence=0.95,
        parser="tensor-shape",
    ),
    Rule(
        id="tensorflow-allocator-oom",
        failure=_GPU,
        pattern=r"Dst tensor is not initialized|SameWorkerRecvDone unable to allocate output tensor"
        r"|Allocator \((?:GPU|gpu)[^)]{0,20}\) ran out of memory|failed to alloc(?:ate)? \d{1,20} "
        r"bytes (?:on host|unified memory; result: CUDA_ERROR_OUT_OF_MEMORY)"
        r"|Blas x?GEM[MV].{0,40}failed",
        sample="tensorflow.python.framework.errors_impl.InternalError: Dst tensor is not "
        "initialized.",
        near_miss="W Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.5GiB. The caller "
        "indicates that this is not a failure, but may mean that there could be performance gains",
        framework="tensorflow",
        sentence="TensorFlow could not place a tensor on the GPU[: {requested} were asked for].",
        confidence=0.75,
        numbers=(rf"trying to allocate (?P<requested>{SIZE})",),
    ),
    Rule(
        id="xla-compile-limit",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"[Rr]an out of memory in memory space (?:vmem|smem|cmem|sflag)"
        r"|in memory space (?:vmem|smem)|[Ss]coped vmem limit"
        r"|exceeded scoped allocation limit|Exceeded (?:vmem|smem)",
        sample="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in "
        "memory space vmem. It should not be possible to run out of vmem - please file a "
        "bug.",
        near_miss="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in "
        "memory space hbm. Used 18.6G of 15.48G hbm.",
        framework="jax, torch_xla on TPU",
        sentence="The compiler ran into an on-chip memory limit, which every device of the kind "
        "has.",
        confidence=0.85,
    ),
    Rule(
        id="xla-resource-exhausted",
        failure=_GPU,
        pattern=r"RESOURCE_EXHAUSTED: .{0,80}(?:[Oo]ut of memory|[Ff]ailed to allocate"
        r"|memory space hbm)|[Rr]esource exhausted: .{0,60}[Oo]ut of memory"
        r"|Out of memory (?:while trying to allocate|allocating) [\d,]{1,26} bytes"
        r"|Exceeded hbm capacity|Failed to allocate [\d,]{1,26} bytes for new constant"
        r"|RESOURCE_EXHAUSTED: Attempting to (?:allocate|reserve) .{1,40} That was not possible"
        r"|CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported",
        unless=r"memory space (?:vmem|smem)|[Ss]coped vmem|grpc|[Qq]uota|limit set to: "
        r"|allocated so far",
        sample="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
        "trying to allocate 4770354232 bytes.",
        near_miss="grpc.RpcError: RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
        framework="jax, xla, cupy",
        sentence="The compiled program did not fit the GPU's memory[: {requested} were asked for].",
        confidence=0.92,
        numbers=(
            rf"(?:allocate|allocating)(?: request for)? (?P<requested>{SIZE})",
            rf"There are (?P<free>{SIZE}) free",
            rf"Used (?P<requested>{SIZE}) of (?P<total>{SIZE})",
        ),
    ),
    Rule(
        id="cupy-own-limit",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"(?:out of memory to allocate|Out of memory allocating) .{1,120}limit set to: ",
        sample="cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 5,242,880 bytes "
        "(allocated so far: 1,024 bytes, limit set to: 1,048,576 bytes).",
        near_miss="cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 5,242,880 bytes "
        "(allocated so far: 1,024 bytes).",
        framework="cupy",
        sentence="CuPy's pool limit, which the program set itself, is too small[ for {requested}].",
        confidence=0.85,
        numbers=(
            rf"allocating (?P<requested>{SIZE}) \(allocated so far: (?P<own>{SIZE})",
            rf"limit set to: (?P<total>{SIZE})",
        ),
    ),
    Rule(
        id="cupy-out-of-memory",
        failure=_GPU,
        pattern=r"out of memory to allocate [\d,]{1,26} bytes"
        r"|Out of memory allocating [\d,]{1,26} bytes \(allocated so far"
        r"|cupy[\w.]{0,40}memory\.OutOfMemoryError",
        unless=r"limit set to: ",
        sample="cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 8589934592 bytes "
        "(total 17179869184 bytes)",
        near_miss="cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 5,242,880 bytes "
        "(allocated so far: 1,024 bytes, limit set to: 1,048,576 bytes).",
        framework="cupy",
        sentence="CuPy ran out of GPU memory[: {requested} were asked for][, {own} were in use].",
        confidence=0.95,
        numbers=(
            rf"(?:to allocate|allocating) (?P<requested>{SIZE})",
            rf"\((?:total|allocated so far:) (?P<own>{SIZE})",
        ),
    ),
    Rule(
        id="rmm-own-limit",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"(?:RMM|rmm).{0,200}Exceeded memory limit",
        sample="MemoryError: std::bad_alloc: out_of_memory: RMM failure at:limiting_resource_"
        "adaptor.hpp:143: Exceeded memory limit (failed to allocate 4.000000 GiB)",
        near_miss="MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool_memory_resource"
        ".hpp:196: Maximum pool size exceeded",
        framework="rmm, cudf, cuml",
        sentence="RMM's memory limit, which the program set itself, is too small"
        "[ for {requested}].",
        confidence=0.85,
        numbers=(rf"failed to allocate (?P<requested>{SIZE})",),
    ),
    Rule(
        id="rmm-out-of-memory",
        failure=_GPU,
        pattern=r"bad_alloc: .{0,40}(?:CUDA|RMM|rmm)|(?:RMM|rmm).{0,60}out_of_memory"
        r"|Maximum pool size exceeded|RMM_ERROR_OUT_OF_MEMORY|RMM failure at"
        r"|rmm::(?:bad_alloc|out_of_memory)|bad_alloc: out_of_memory",
        unless=r"Exceeded memory limit",
        sample="MemoryError: std::bad_alloc: CUDA error at: "
        "rmm/mr/device/cuda_memory_resource.hpp:69: cudaErrorMemoryAllocation out of "
        "memory",
        near_miss="MemoryError: std::bad_alloc",
        framework="rmm, cudf, cuml",
        sentence="RAPIDS ran out of GPU memory[: {requested} were asked for].",
        confidence=0.93,
        numbers=(rf"(?:failed to allocate|[Tt]ried to allocate) (?P<requested>{SIZE})",),
    ),
    Rule(
        id="xgboost-gpu-memory",
        failure=_GPU,
        pattern=r"Memory allocation error on worker \d{1,6}: (?:std::bad_alloc|.{0,60}cuda)"
        r"|- Requested memory: \d|- Free memory: \d",
        sample="xgboost.core.XGBoostError: [10:02:33] "
        "/workspace/src/common/device_helpers.cuh:428: Memory allocation error on worker "
        "0: std::bad_alloc: cudaErrorMemoryAllocation",
        near_miss="Memory allocation table of worker 0 written",
        framework="xgboost",
        sentence="XGBoost ran out of GPU memory[: {requested} were asked for][, {free} were free].",
        confidence=0.9,
        numbers=(
            rf"Requested memory: (?P<requested>{SIZE})",
            rf"Free memory: (?P<free>{SIZE})",
        ),
    ),
    Rule(
        id="opencl-vulkan-memory",
        failure=_GPU,
        pattern=r"Memory Object Allocation Failure|CL_MEM_OBJECT_ALLOCATION_FAILURE"
        r"|CL_OUT_OF_RESOURCES|CL_OUT_OF_HOST_MEMORY|Out of Host Memory"
        r"|ErrorOutOfDeviceMemory|ERROR_OUT_OF_DEVICE_MEMORY|OUT_OF_DEVICE_MEMORY|(?:PI"
        r"|UR|OL)_(?:RESULT_)?ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY)"
        r"|kIOGPUCommandBufferCallbackErrorOutOfMemory|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
        r"|Device memory allocation of size \d{1,20} failed"
        r"|Insufficient Memory \(\d{8}:kIOGPU",
        sample="  what():  Memory Object Allocation Failure",
        near_miss="[LightGBM] [Info] Memory Object Pool enabled",
        framework="lightgbm, opencl, vulkan, sycl, metal",
        sentence="The device had no memory for a buffer[ of {requested}].",
        confidence=0.75,
        numbers=(rf"allocation of size (?P<requested>{SIZE})",),
    ),
    Rule(
        id="onnxruntime-cuda-arena",
        failure=_GPU,
        pattern=r"BFCArena::AllocateRawInternal"
        r"|Failed to allocate memory for requested buffer of size"
        r"|Available memory of \d{1,20} is smaller than requested bytes of",
        anywhere=r"CUDA|cuda|GPU|gpu|TensorRT|Tensorrt|ROCM|nvidia|DML",
        unless=r"_nchwc|CPUExecutionProvider",
        sample="[GPU device 0]\nonnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to "
        "allocate memory for requested buffer of size 2830172160",
        near_miss="onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate "
        "memory for requested buffer of size 2830172160",
        framework="onnxruntime",
        sentence="ONNX Runtime ran out of GPU memory[: {requested} were asked for].",
        confidence=0.7,
        numbers=(
            rf"requested (?:buffer of size|bytes of) (?P<requested>{SIZE})",
            rf"Available memory of (?P<free>{SIZE})",
        ),
    ),
    Rule(
        id="tensorrt-gpu-memory",
        failure=_GPU,
        pattern=r"Requested amount of GPU memory \(\d{1,20} bytes\) could not be allocated"
        r"|Error Code 2: OutOfMemory|\[TRT\] .{0,120}out of memory"
        r"|OutOfMemory \((?:no further|Requested size)|requested size was \d{1,20} bytes",
        unless=r"[Ss]kipping tactic|[Tt]actic [Dd]evice request",
        sample="[W] Requested amount of GPU memory (1180463648 bytes) could not be allocated.",
        near_miss="[W] Skipping tactic 0 due to insufficient memory: Error Code 2: OutOfMemory (no "
        "further information)",
        framework="tensorrt",
        sentence="TensorRT ran out of GPU memory[: {requested} were asked for].",
        confidence=0.88,
        numbers=(
            rf"GPU memory \((?P<requested>{SIZE})\)",
            rf"[Rr]equested size was (?P<requested>{SIZE})",
        ),
    ),
    Rule(
        id="vllm-startup-memory",
        failure=_GPU,
        pattern=r"Free memory on device .{0,60}on startup is less than desired GPU memory utiliza"
        r"tion|is less than desired GPU memory utilization",
        sample="ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 3.6 GiB).",
        near_miss="INFO Free memory on device (23.4/24.0 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 21.6 GiB).",
        framework="vllm",
        sentence="The GPU had too little free memory for vLLM[: {free} of {total} free][, "
        "{requested} wanted].",
        confidence=0.95,
        parser="vllm-startup",
    ),
    Rule(
        id="inference-kv-cache",
        failure=_GPU,
        pattern=r"larger than the (?:maximum number of tokens that can be stored in"
        r"|available) KV cache|No available memory for the cache blocks"
        r"|Not enough memory\. Please try to increase --mem-fraction-static"
        r"|Not enough memory to handle \d{1,12} |You need to (?:de"
        r"|in)crease `?--max-batch|[Nn]o (?:space|memory) left for (?:the )?KV cache"
        r"|KV cache memory .{0,40}(?:is )?(?:insufficient|not enough)|(?:Decode"
        r"|Prefill) out of memory|No executable batch size found, reached zero"
        r"|[Nn]ot enough (?:GPU|VRAM|device) memory|occurred when warming up sampler",
        unless=r"not found in '",
        sample="ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        near_miss="INFO GPU KV cache size: 5,120 tokens",
        framework="vllm, sglang, tgi, accelerate",
        sentence="After the model there was too little GPU memory left to serve one request"
        "[: {requested} needed][, {free} available].",
        confidence=0.88,
        numbers=(
            rf"\((?P<requested>{SIZE}) KV cache is needed",
            rf"available KV cache memory \((?P<free>{SIZE})",
        ),
    ),
    Rule(
        id="llamacpp-gpu-buffer",
        failure=_GPU,
        pattern=r"(?:failed|unable) to allocate (?:CUDA|ROCm|Vulkan|Metal|SYCL|CANN|MUSA|OpenCL"
        r"|RPC)(?:\d|_Host|_Split)?\w{0,8} buffer"
        r"|ggml_\w{0,40}: failed to allocate .{0,20}(?:VRAM|device)",
        sample="alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624",
        near_miss="failed to allocate CPU buffer of size 151851674624",
        framework="llama.cpp, ollama",
        sentence="llama.cpp could not allocate a GPU buffer[ of {requested}].",
        confidence=0.9,
        numbers=(rf"buffer of size (?P<requested>{SIZE})",),
    ),
    Rule(
        id="paddle-gpu-memory",
        failure=_GPU,
        pattern=r"Out of memory error on (?:GPU|XPU|NPU) \d"
        r"|Cannot allocate .{1,30} memory on GPU \d"
        r"|\[LightGBM\] \[Fatal\] \[CUDA\] out of memory"
        r"|Malloc (?:for )?.{0,40}device memory (?:is )?not enough"
        r"|Ran out of memory trying to allocate .{1,30} on GPU",
        sample="ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.25GB "
        "memory on GPU 0, 15.1GB memory has been allocated and available memory is only "
        "300.5MB.",
        near_miss="Peak memory on GPU: 3 GB",
        framework="paddle, lightgbm, mindspore",
        sentence="The GPU's memory was used up[: {requested} more were asked for][, {free} were "
        "free].",
        confidence=0.9,
        numbers=(
            rf"Cannot allocate (?P<requested>{SIZE}) memory on GPU (?P<gpu>\d{{1,3}})",
            rf"(?P<own>{SIZE}) memory has been allocated",
            rf"available memory is only (?P<free>{SIZE})",
        ),
    ),
)
