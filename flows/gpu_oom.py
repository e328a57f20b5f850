"""Needs a bigger GPU than the one that its first attempt has.

As deployed (pool `gpu-8gb`, `need_gpu_mb: 20000`): attempt 1 dies of CUDA out-of-memory on the 8 GB
GPU, attempt 2 runs on the pool whose nodes have 24 GB. The figures in the error text say how much
is needed, so `need_gpu_mb: 60000` goes from 8 GB straight to 80 GB.

With PyTorch and a GPU the memory is really allocated. Without, the flow raises the error of PyTorch
2.x, with figures computed from the GPU memory that the worker declares for this attempt.
"""

import os
from typing import Any

from prefect import flow

from prefect_heteroflow import current_attempt

MIB = 1024 * 1024


class OutOfMemoryError(RuntimeError):
    """Stands for `torch.OutOfMemoryError` on machines without PyTorch."""


@flow(name="gpu-oom", log_prints=True)
def gpu_oom(need_gpu_mb: int = 20000) -> int:
    """Use `need_gpu_mb` MB (MiB) of one GPU's memory; returns how much it used."""
    torch = _torch_with_cuda()
    if torch is None:
        _pretend_to_allocate(need_gpu_mb)
    else:
        weights = torch.empty(need_gpu_mb // 4 * MIB, dtype=torch.uint8, device="cuda")
        batch = torch.empty(
            (need_gpu_mb - need_gpu_mb // 4) * MIB, dtype=torch.uint8, device="cuda"
        )
        print(f"{(weights.nbytes + batch.nbytes) // MIB} MB allocated on the GPU")
    return need_gpu_mb


def _torch_with_cuda() -> Any:
    """The module `torch` if it is there and sees a GPU, else `None`."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _pretend_to_allocate(need_gpu_mb: int) -> None:
    """Fail as PyTorch does if this attempt's declared GPU is too small."""
    attempt = current_attempt()
    gpu_mb = attempt.gpu_memory_mb if attempt else None
    print(f"no GPU here: need {need_gpu_mb} MB, declared {gpu_mb} MB")
    if gpu_mb is None or need_gpu_mb <= gpu_mb:
        return
    in_use_mb = min(need_gpu_mb // 4, gpu_mb // 2)
    raise OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_gib(need_gpu_mb - in_use_mb)}. GPU 0 has a total"
        f" capacity of {_gib(gpu_mb)} of which {_gib(gpu_mb - in_use_mb)} is free. Process"
        f" {os.getpid()} has {_gib(in_use_mb)} memory in use. Of the allocated memory"
        f" {_gib(in_use_mb - 300)} is allocated by PyTorch, and 12.50 MiB is reserved by PyTorch"
        " but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
        " documentation for Memory Management "
        " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _gib(mb: int) -> str:
    return f"{mb / 1024:.2f} GiB"
