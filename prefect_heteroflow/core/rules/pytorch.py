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
        sample="RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        near_miss="RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        framework="pytorch",
        sentence="The program asked for more memory than any machine has: a wrong size.",
    ),
    Rule(
        id="torch-own-memory-fraction",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"out of memory\. Tried to allocate .{1,200} allowed; ",
        sample="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 "
        "has a total capacity of 79.15 GiB of which 70.00 GiB is free. 1.05 GiB allowed; "
        "Of the allocated memory 1.00 GiB is allocated by PyTorch.",
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
        sample="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.80 GiB "
        "total capacity; 4.36 GiB already allocated; 6.69 MiB free; 4.63 GiB reserved in "
        "total by PyTorch)",
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
        sample="RuntimeError: MPS backend out of memory (MPS allocated: 6.04 GB, other "
        "allocations: 1.04 GB, max allowed: 6.77 GB). Tried to allocate 459.07 MB on "
        "private pool.",
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
        pattern=r"can ?not allocate memory block with size larger than"
        r"|can NOT allocate memory block with size larger than"
        r"|larger than (?:the )?max(?:imum)? (?:buffer|allocation) size"
        r"|exceeds maxBufferSize|exceeds the (?:device )?max(?:imum)?[_ ]?(?:single"
        r" )?(?:buffer|alloc(?:ation)?) size",
        sample="RuntimeError: Current platform can NOT allocate memory block with size larger than "
        "4GB! Tried to allocate 6.85 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already "
        "allocated; 0 bytes reserved in total by PyTorch)",
        near_miss="UserWarning: batch larger than the training set size",
        framework="pytorch/xpu, OpenCL, Metal, Vulkan",
        sentence="One buffer was larger than this kind of device allows, however much memory it "
        "has.",
        confidence=0.8,
        parser="pytorch",
    ),
    Rule(
        id="torch-cpu-out-of-memory",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|posix_memalign\."
        r"{0,40}(?:12|Cannot allocate)|Torch: not enough memory: you tried to allocate"
        r"|DefaultCPUAllocator.{0,80}you tried to allocate",
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
        pattern=r"killed by signal: Bus error|insufficient shared memory"
        r"|out of shared memory\. Please|raise your shared memory limit"
        r"|unable to (?:write to|resize|open) (?:file"
        r"|shared memory object) </?torch_[^>]{1,80}>[^\n]{0,80}(?:No space left"
        r"|Cannot allocate)|unable to (?:allocate|mmap"
        r"|open) [^\n]{0,80}</torch_[^\n]{1,80}Cannot allocate memory",
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
        sample="RuntimeError: DataLoader worker (pid 3418) is killed by signal: Killed.",
        near_miss="RuntimeError: DataLoader worker (pid 3418) is killed by signal: Terminated.",
        framework="pytorch",
        sentence="A DataLoader worker was killed with SIGKILL, which the kernel does when host "
        "memory is full.",
        confidence=0.8,
        role=Role.ROOT,
    ),
    Rule(
        id="dataloader-worker-crashed",
        failure=FailureClass.PROCESS_CRASHED,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) is killed by signal: "
        r"(?:Segmentation fault|Aborted|Illegal instruction|Floating point exception)",
        sample="RuntimeError: DataLoader worker (pid 21) is killed by signal: Segmentation fault.",
        near_miss="RuntimeError: DataLoader worker (pid 21) is killed by signal: Killed.",
        framework="pytorch",
        sentence="A DataLoader worker crashed in native code.",
        confidence=0.85,
    ),
    Rule(
        id="dataloader-worker-gone",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) (?:exited unexpectedly"
        r"|is killed by signal: Terminated)",
        sample="RuntimeError: DataLoader worker (pid(s) 2180, 2181) exited unexpectedly",
        near_miss="DataLoader worker (pid 7) started",
        framework="pytorch",
        sentence="A DataLoader worker ended without saying why.",
        role=Role.SUMMARY,
        confidence=0.4,
    ),
)
