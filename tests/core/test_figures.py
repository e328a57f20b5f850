"""Numbers in out-of-memory texts, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence, FailureClass, MemoryFigures
from prefect_heteroflow.core.rules.figures import format_size, parse_size

MIB, GIB = 1024**2, 1024**3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("926.00 MiB", 926 * MIB),
        ("926. MiB", 926 * MIB),
        ("5,242,880 bytes", 5_242_880),
        ("0 bytes", 0),
        ("4.5 Gb", int(4.5 * GIB)),
        ("6.04 GB", round(6.04 * GIB)),
        ("34260Ki", 34260 * 1024),
        ("12.50 MiB", int(12.5 * MIB)),
        ("9437184kB", 9437184 * 1024),
        ("4294967296", 4 * GIB),
        ("many", None),
        ("3 apples", None),
    ],
)
def test_size_is_parsed_as_the_tools_mean_it(text: str, size: int | None) -> None:
    """Units are powers of 1024, with or without an `i`; commas and bare points are fine."""
    assert parse_size(text) == size


@given(st.text())
def test_any_text_as_a_size_is_a_number_or_none(text: str) -> None:
    """Parsing never raises."""
    assert parse_size(text) is None or isinstance(parse_size(text), int)


@given(st.integers(min_value=0, max_value=2**70))
def test_any_size_can_be_written_for_a_person(size: int) -> None:
    """A size is written with a unit."""
    assert format_size(size).split()[1] in ("bytes", "KiB", "MiB", "GiB", "TiB")


def _figures(line: str) -> MemoryFigures:
    found = diagnose(Evidence(exit_code=1, log=line))
    assert found is not None
    assert found.figures is not None
    return found.figures


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "RuntimeError: CUDA out of memory. Tried to allocate 9.80 GiB (GPU 0; 14.76 GiB total "
            "capacity; 9.94 GiB already allocated; 3.89 GiB free; 160.00 MiB cached)",
            MemoryFigures(
                requested_bytes=round(9.8 * GIB),
                total_bytes=round(14.76 * GIB),
                free_bytes=round(3.89 * GIB),
                own_bytes=round(9.94 * GIB) + 160 * MIB,
                foreign_bytes=round(14.76 * GIB)
                - round(3.89 * GIB)
                - round(9.94 * GIB)
                - 160 * MIB,
                gpu_index=0,
            ),
            id="torch-1.0-cached",
        ),
        pytest.param(
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 2; 6.00 GiB total "
            "capacity; 4.50 GiB already allocated; 6.50 MiB free; 5.00 GiB reserved in total by "
            "PyTorch)",
            MemoryFigures(
                requested_bytes=20 * MIB,
                total_bytes=6 * GIB,
                free_bytes=int(6.5 * MIB),
                own_bytes=5 * GIB,
                foreign_bytes=GIB - int(6.5 * MIB),
                gpu_index=2,
            ),
            id="torch-1.9-reserved",
        ),
        pytest.param(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB. GPU 3 has "
            "a total capacity of 79.00 GiB of which 98.00 MiB is free. Process 387746 has 78.00 "
            "GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
            "1.00 GiB is reserved by PyTorch but unallocated.",
            MemoryFigures(
                requested_bytes=132 * MIB,
                total_bytes=79 * GIB,
                free_bytes=98 * MIB,
                own_bytes=78 * GIB,
                foreign_bytes=0,
                gpu_index=3,
            ),
            id="torch-own-process-under-its-host-pid",
        ),
        pytest.param(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 24.00 GiB of which 1.00 GiB is free. Process 11 has 20.00 GiB "
            "memory in use. Of the allocated memory 2.00 GiB is allocated by PyTorch, and 0 "
            "bytes is reserved by PyTorch but unallocated.",
            MemoryFigures(
                requested_bytes=2 * GIB,
                total_bytes=24 * GIB,
                free_bytes=GIB,
                own_bytes=2 * GIB,
                foreign_bytes=20 * GIB,
                gpu_index=0,
            ),
            id="torch-neighbour",
        ),
        pytest.param(
            "RuntimeError: MPS backend out of memory (MPS allocated: 6.00 GB, other allocations: "
            "1.00 GB, max allowed: 6.50 GB). Tried to allocate 256 bytes on shared pool.",
            MemoryFigures(
                requested_bytes=256,
                total_bytes=int(6.5 * GIB),
                own_bytes=6 * GIB,
                foreign_bytes=GIB,
            ),
            id="torch-mps",
        ),
        pytest.param(
            "ResourceExhaustedError: OOM when allocating tensor with shape[16,1,8] and type "
            "float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc",
            MemoryFigures(requested_bytes=16 * 8 * 4, gpu_index=1),
            id="tensorflow-shape",
        ),
        pytest.param(
            "ValueError: Free memory on device cuda:1 (3.25/4.0 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 3.5 GiB).",
            MemoryFigures(
                requested_bytes=int(3.5 * GIB),
                total_bytes=4 * GIB,
                free_bytes=int(3.25 * GIB),
                own_bytes=0,
                foreign_bytes=int(0.75 * GIB),
                gpu_index=1,
            ),
            id="vllm-startup",
        ),
        pytest.param(
            "ValueError: To serve at least one request with max seq len (8), (2.00 GB KV cache is "
            "needed, which is larger than the available KV cache memory (0.50 GB).",
            MemoryFigures(requested_bytes=2 * GIB, free_bytes=GIB // 2),
            id="vllm-kv-cache",
        ),
        pytest.param(
            "duckdb.OutOfMemoryException: Out of Memory Error: failed to allocate data of size "
            "128.0 MiB (2.5 GiB/3.0 GiB used)",
            MemoryFigures(requested_bytes=128 * MIB, own_bytes=int(2.5 * GIB), total_bytes=3 * GIB),
            id="duckdb-binary-units",
        ),
        pytest.param(
            "duckdb.OutOfMemoryException: Out of Memory Error: could not allocate block of size "
            "262KB (7.9GB/8.0GB used)",
            MemoryFigures(
                requested_bytes=262_000, own_bytes=7_900_000_000, total_bytes=8_000_000_000
            ),
            id="duckdb-decimal-units-of-old",
        ),
        pytest.param(
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
            "trying to allocate 4770354232 bytes.",
            MemoryFigures(requested_bytes=4_770_354_232),
            id="jax",
        ),
        pytest.param(
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 5,242,880 bytes "
            "(allocated so far: 1,048,576 bytes).",
            MemoryFigures(requested_bytes=5_242_880, own_bytes=1_048_576),
            id="cupy",
        ),
        pytest.param(
            "Error: cannot allocate vector of size 4.5 Gb",
            MemoryFigures(requested_bytes=int(4.5 * GIB)),
            id="r",
        ),
        pytest.param(
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.50 MiB on device 1: "
            "cudaMalloc failed: out of memory",
            MemoryFigures(requested_bytes=int(51748.5 * MIB), gpu_index=1),
            id="llama.cpp",
        ),
        pytest.param(
            "Error: model requires more system memory (9.5 GiB) than is available (7.0 GiB)",
            MemoryFigures(requested_bytes=int(9.5 * GIB), free_bytes=7 * GIB),
            id="ollama",
        ),
        pytest.param(
            "[W] Requested amount of GPU memory (1180463648 bytes) could not be allocated.",
            MemoryFigures(requested_bytes=1_180_463_648),
            id="tensorrt",
        ),
    ],
)
def test_numbers_are_read_to_the_byte(line: str, expected: MemoryFigures) -> None:
    """Each format gives exactly the figures that it prints."""
    assert _figures(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "memory allocation of 18446744071841293701 bytes failed",
        "_ArrayMemoryError: Unable to allocate 7.28 PiB for an array with shape (3,) and data "
        "type f",
        "RuntimeError: CUDA out of memory. Tried to allocate 8388608.00 TiB (GPU 0; 8.00 GiB total",
        "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "pyarrow.lib.ArrowMemoryError: malloc of size 2400000000000000000 failed",
    ],
)
def test_absurd_size_is_a_bug_of_the_program(line: str) -> None:
    """A size beyond any machine never leads to a bigger one."""
    found = diagnose(Evidence(exit_code=1, log=line))
    assert found is not None
    assert found.failure is FailureClass.APPLICATION_ERROR
