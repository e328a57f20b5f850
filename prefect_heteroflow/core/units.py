"""MB in this package means MiB, as `docker run --memory` and NVML tools print it."""

from __future__ import annotations

BYTES_PER_MB = 1024 * 1024


def mb_to_bytes(mb: int) -> int:
    """Bytes of `mb` MiB."""
    return mb * BYTES_PER_MB


def bytes_to_mb_ceil(size_bytes: int) -> int:
    """Smallest whole number of MiB that holds `size_bytes`."""
    return -(-size_bytes // BYTES_PER_MB)


def bytes_to_mb_floor(size_bytes: int) -> int:
    """Whole MiB in `size_bytes`."""
    return size_bytes // BYTES_PER_MB
