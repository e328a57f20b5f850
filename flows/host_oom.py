"""Needs more memory than its first attempt has.

As deployed (`memory_mb: 2048`, `need_mb: 3000`): the kernel kills attempt 1 at 2048 MB, attempt 2
gets 4096 MB on the same node and completes. With `need_mb: 20000` the run ends as
`PermanentFailure` at `oom_memory_limit`.
"""

from prefect import flow

CHUNK_MB = 64
MIB = 1024 * 1024


@flow(name="host-oom", log_prints=True)
def host_oom(need_mb: int = 3000) -> int:
    """Fill `need_mb` MB (MiB) of memory, besides what Python takes; returns how much it filled."""
    chunks: list[bytearray] = []
    while (filled_mb := len(chunks) * CHUNK_MB) < need_mb:
        if filled_mb % 512 == 0:
            print(f"{filled_mb} of {need_mb} MB filled")
        # Written, not only reserved: untouched pages count against no limit.
        chunks.append(bytearray(b"\x01") * (CHUNK_MB * MIB))
    return filled_mb
