"""Numbers read from out-of-memory texts, in bytes as each tool means them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from prefect_heteroflow.core.failures import MemoryFigures

SIZE = r"-?\d[\d,.]{0,30}(?: ?(?:[KMGTPEkm]i?[Bb]?(?:ytes)?|[Bb]ytes|B))?\b"
"""A number with an optional unit, to be used inside a named group."""

ABSURD_BYTES = 64 * 1024**4
"""64 TiB: no single request of this size is a matter of capacity; it is a wrong number."""

_SIZE = re.compile(r"(-?\d[\d,]*(?:\.\d*)?) ?([A-Za-z]*)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


def parse_size(text: str, *, base: int = 1024) -> int | None:
    """Bytes of a text such as `926.00 MiB`, `5,242,880`, `4.5 Gb`, `0 bytes`.

    Every tool in the tables counts in powers of 1024, also where it prints `GB`; the ones
    that do not pass `base=1000`. Fractions are rounded to the nearest byte.
    """
    found = _SIZE.match(text.strip())
    if found is None:
        return None
    unit = found.group(2).lower()
    if unit in ("b", "byte", "bytes"):
        unit = ""
    power = _POWERS.get(unit[:1])
    if power is None:
        return None
    number = found.group(1).replace(",", "")
    scale: int = base**power
    return round(Fraction(number.rstrip(".") or "0") * scale)


def format_size(size_bytes: int) -> str:
    """`1.69 GiB` for a person; two decimals at most."""
    value = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def read_numbers(patterns: tuple[str, ...], line: str) -> MemoryFigures | None:
    """Figures from the named groups of `patterns`; the first pattern that knows a number wins."""
    values: dict[str, int | None] = {}
    for pattern in patterns:
        found = _compiled(pattern).search(line)
        if found is None:
            continue
        for name, text in found.groupdict().items():
            if text is not None and values.get(name) is None:
                decimal = name.endswith("_decimal")
                key = name.removesuffix("_decimal")
                values[key] = (
                    int(text) if key == "gpu" else parse_size(text, base=1000 if decimal else 1024)
                )
    if not values:
        return None
    return MemoryFigures(
        requested_bytes=values.get("requested"),
        total_bytes=values.get("total"),
        free_bytes=values.get("free"),
        own_bytes=values.get("own"),
        foreign_bytes=values.get("foreign"),
        gpu_index=values.get("gpu"),
    )


_TORCH_REQUESTED = re.compile(rf"Tried to allocate ({SIZE})")
_TORCH_TOTAL = re.compile(
    rf"(?:total capaci?ty of ({SIZE})|({SIZE}) total capacity|max allowed: ({SIZE}))"
)
_TORCH_FREE = re.compile(rf"(?:of which ({SIZE}) is free|({SIZE}) free\b)")
_TORCH_GPU = re.compile(r"\b(?:GPU|NPU|XPU|MLU|device) {1,2}(\d{1,3})\b")
_TORCH_SELF = re.compile(rf"this process has ({SIZE}) memory in use")
_TORCH_OTHERS = re.compile(rf"Process \d{{1,10}} has ({SIZE}) memory in use")
_TORCH_ALLOCATED = re.compile(rf"({SIZE}) (?:is allocated by PyTorch|already allocated)")
_TORCH_UNALLOCATED = re.compile(rf"({SIZE}) is reserved by PyTorch but unallocated")
_TORCH_RESERVED = re.compile(rf"({SIZE}) reserved in total")
_TORCH_CACHED = re.compile(rf"({SIZE}) cached")
_TORCH_MPS = re.compile(rf"MPS allocated: ({SIZE}), other allocations: ({SIZE})")


def _read(pattern: re.Pattern[str], line: str) -> int | None:
    found = pattern.search(line)
    if found is None:
        return None
    return next((parse_size(text) for text in found.groups() if text is not None), None)


def pytorch(line: str) -> MemoryFigures | None:
    """Figures of the PyTorch caching allocator, from 0.4 to 2.9, CUDA, HIP, XPU and MPS.

    `own` is "this process has" where printed; else reserved (which includes allocated), else
    allocated + cached, else allocated. In a container NVML reports host process ids, so that
    the job itself stands there as `Process N`: a single such line that fits the allocator's
    own count is the job, not a neighbour.
    """
    requested = _read(_TORCH_REQUESTED, line)
    total = _read(_TORCH_TOTAL, line)
    free = _read(_TORCH_FREE, line)
    mps = _TORCH_MPS.search(line)
    if mps is not None:
        own, others = parse_size(mps.group(1)), parse_size(mps.group(2))
        return MemoryFigures(
            requested_bytes=requested, total_bytes=total, own_bytes=own, foreign_bytes=others
        )
    allocated = _read(_TORCH_ALLOCATED, line)
    own = _read(_TORCH_SELF, line)
    others_found = [parse_size(text) or 0 for text in _TORCH_OTHERS.findall(line)]
    foreign: int | None = sum(others_found) if others_found else None
    if own is None:
        reserved = _read(_TORCH_RESERVED, line)
        unallocated = _read(_TORCH_UNALLOCATED, line)
        cached = _read(_TORCH_CACHED, line)
        if reserved is not None:
            own = max(reserved, allocated or 0)
        elif allocated is not None:
            own = allocated + (unallocated or 0) + (cached or 0)
        if own is not None and len(others_found) == 1:
            only = others_found[0]
            if only >= own > only / 2:
                own, foreign = only, 0
    gpu = _TORCH_GPU.search(line)
    if foreign is None and None not in (total, free, own):
        foreign = max(0, (total or 0) - (free or 0) - (own or 0))
    if requested is None and total is None and allocated is None:
        return None
    return MemoryFigures(
        requested_bytes=requested,
        total_bytes=total,
        free_bytes=free,
        own_bytes=own,
        foreign_bytes=foreign,
        gpu_index=None if gpu is None else int(gpu.group(1)),
    )


_TENSOR = re.compile(r"shape ?\[([\d,]{0,200})\] and type ([\w:<>]{1,40})")
_TENSOR_GPU = re.compile(r"device:GPU:(\d{1,3})")
_TENSOR_WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "qint8": 1, "half": 2, "bfloat16": 2, "float16": 2,
    "int16": 2, "uint16": 2, "float": 4, "float32": 4, "int32": 4, "uint32": 4, "double": 8,
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


def tensor_shape(line: str) -> MemoryFigures | None:
    """Bytes of a TensorFlow tensor: the product of its shape times the width of its type."""
    found = _TENSOR.search(line)
    if found is None:
        return None
    width = _TENSOR_WIDTHS.get(found.group(2))
    dimensions = [int(part[:20]) for part in found.group(1).split(",") if part][:32]
    size: int | None = width
    for dimension in dimensions:
        size = None if size is None else size * dimension
    gpu = _TENSOR_GPU.search(line)
    return MemoryFigures(requested_bytes=size, gpu_index=None if gpu is None else int(gpu.group(1)))


_VLLM_STARTUP = re.compile(
    r"(?:\[?(?:cuda|xpu|hip):(\d{1,3})\]? ?)?\(([\d.]{1,12})/([\d.]{1,12}) (GiB|GB)\).{0,90}"
    r"\([\d.]{1,8}, ([\d.]{1,12}) (?:GiB|GB)\)"
)


def vllm_startup(line: str) -> MemoryFigures | None:
    """`(free/total GiB) on startup ... (utilisation, wanted GiB)`; the rest belongs to others."""
    found = _VLLM_STARTUP.search(line)
    if found is None:
        return None
    free = parse_size(f"{found.group(2)} {found.group(4)}")
    total = parse_size(f"{found.group(3)} {found.group(4)}")
    wanted = parse_size(f"{found.group(5)} {found.group(4)}")
    foreign = None if free is None or total is None else max(0, total - free)
    return MemoryFigures(
        requested_bytes=wanted,
        total_bytes=total,
        free_bytes=free,
        own_bytes=0,
        foreign_bytes=foreign,
        gpu_index=None if found.group(1) is None else int(found.group(1)),
    )


_DUCKDB_SIZE = re.compile(r"of size ([\d.]{1,20} ?[KMGTP]?i?B?(?:ytes)?)", re.IGNORECASE)
_DUCKDB_USED = re.compile(r"\(([\d.]{1,20} ?[KMGTP]?i?B)/([\d.]{1,20} ?[KMGTP]?i?B) used\)")


def duckdb(line: str) -> MemoryFigures | None:
    """DuckDB prints powers of 1000 as `MB` (until 0.9) and powers of 1024 as `MiB`."""
    size, used = _DUCKDB_SIZE.search(line), _DUCKDB_USED.search(line)
    if size is None:
        return None

    def value(text: str) -> int | None:
        return parse_size(text, base=1024 if "i" in text else 1000)

    return MemoryFigures(
        requested_bytes=value(size.group(1)),
        own_bytes=None if used is None else value(used.group(1)),
        total_bytes=None if used is None else value(used.group(2)),
    )


PARSERS: dict[str, Callable[[str], MemoryFigures | None]] = {
    "pytorch": pytorch,
    "tensor-shape": tensor_shape,
    "vllm-startup": vllm_startup,
    "duckdb": duckdb,
}
