"""The incremental scanner: any bytes, any chunks, little memory, nothing lost that matters."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence, FailureClass
from prefect_heteroflow.core.literals import LiteralFinder, PlainFinder
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.fast_literals import fast_finder

OOM = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    b"capacity of 24.00 GiB of which 1.00 GiB is free."
)
QUIET = b"2024-05-01 12:00:00 INFO loading shard of the data set\n"


def _class(scanner: FailureScanner) -> FailureClass | None:
    found = diagnose(Evidence(exit_code=1, log=scanner.evidence_text()))
    return None if found is None else found.failure


def _fed(data: bytes, size: int = 1 << 16, finder: LiteralFinder | None = None) -> FailureScanner:
    scanner = FailureScanner(finder)
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    return scanner


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_chunk_size_does_not_matter(size: int) -> None:
    """The same bytes in any chunks give the same text."""
    data = QUIET * 50 + OOM + b"\n" + QUIET * 50
    assert _fed(data, size).evidence_text() == _fed(data).evidence_text()


def test_line_in_the_middle_of_much_output_is_kept_with_its_number() -> None:
    """What lies far before the tail is found, and the gaps are told."""
    scanner = _fed(QUIET * 40_000 + OOM + b"\n" + QUIET * 40_000)
    assert _class(scanner) is FailureClass.GPU_OUT_OF_MEMORY
    assert {finding.line_number for finding in scanner.findings()} == {40_000}
    assert "lines left out]" in scanner.evidence_text()


def test_first_and_last_of_many_matches_are_kept() -> None:
    """Of a line that repeats without end the first ones and the last ones stay."""
    lines = b"".join(b"ValueError: number %d\n" % number for number in range(50_000))
    text = _fed(lines).evidence_text()
    assert "ValueError: number 0\n" in text
    assert "ValueError: number 49999" in text
    assert len(text) < 300_000


def test_line_across_the_end_of_the_head_is_whole() -> None:
    """Where the kept head of the output ends inside a line, that line is not kept in half."""
    for before in range(1_850, 2_100, 10):
        scanner = _fed(b"q" * before + b"\n" + OOM + b"\n" + QUIET * 3_000)
        assert OOM.decode() in scanner.evidence_text().split("\n")


def test_text_can_be_asked_for_in_between() -> None:
    """Asking does not change what is found later."""
    scanner = _fed(QUIET * 10)
    assert "CUDA" not in scanner.evidence_text()
    scanner.feed(OOM)
    assert _class(scanner) is FailureClass.GPU_OUT_OF_MEMORY


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OOM.decode().encode("utf-16"), id="utf-16"),
        pytest.param(OOM.decode().encode("utf-16-be"), id="utf-16-be"),
        pytest.param(b"\x00".join([b"", OOM, b""]), id="nul"),
        pytest.param(b"\x1b[31m" + OOM.replace(b" ", b"\x1b[0m \x1b[1m") + b"\x1b[0m", id="ansi"),
        pytest.param(b"50%|####    | 5/10\r" + OOM, id="carriage-return"),
        pytest.param(b"\xff\xfe\x80 " + OOM, id="broken-utf-8"),
        pytest.param(b"x" * 3_000_000 + b"\n" + OOM, id="after-a-long-line"),
        pytest.param(b"y" * 700_000 + b" " + OOM, id="at-the-end-of-a-long-line"),
    ],
)
def test_unusual_bytes_are_read(data: bytes) -> None:
    """Encodings, colours, progress bars and long lines do not hide the cause."""
    assert _class(_fed(data, 1000)) is FailureClass.GPU_OUT_OF_MEMORY


def test_escape_code_split_between_chunks_is_removed() -> None:
    """A colour code that arrives in two pieces is still no text."""
    scanner = FailureScanner()
    scanner.feed(b"Value\x1b[3")
    scanner.feed(b"1mError: bad\n")
    assert "ValueError: bad" in scanner.evidence_text()


def test_empty_output_is_an_empty_text() -> None:
    """Nothing fed, nothing kept."""
    scanner = FailureScanner()
    scanner.feed(b"")
    assert scanner.evidence_text() == ""
    assert scanner.findings() == []


def test_memory_is_bounded_for_a_line_of_100_mb() -> None:
    """One line of 100 MB is read in pieces that do not pile up."""
    scanner = FailureScanner()
    chunk = b"z" * (1 << 20)
    tracemalloc.start()
    for _ in range(100):
        scanner.feed(chunk)
    scanner.feed(b"\n" + OOM)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 1024 * 1024
    assert _class(scanner) is FailureClass.GPU_OUT_OF_MEMORY


def test_memory_is_bounded_when_every_line_matches() -> None:
    """A hostile log in which every line is a candidate is kept in a few megabytes."""
    scanner = FailureScanner()
    tracemalloc.start()
    for number in range(4_000):
        scanner.feed(OOM + b" %d\n" % number + b"Segmentation fault\nNCCL error\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 1024 * 1024


def test_secrets_are_masked_in_findings() -> None:
    """A finding can be shown."""
    scanner = _fed(b"ValueError: password=hunter2hunter2\n")
    assert all("hunter2" not in finding.line for finding in scanner.findings())


@settings(max_examples=100, deadline=None)
@given(chunks=st.lists(st.binary(max_size=200), max_size=30))
def test_any_bytes_are_taken(chunks: list[bytes]) -> None:
    """No sequence of bytes makes the scanner or the diagnosis raise."""
    scanner = FailureScanner()
    for chunk in chunks:
        scanner.feed(chunk)
    assert _class(scanner) is not None
    scanner.findings()


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(
        st.one_of(st.sampled_from([OOM, b"MemoryError", b"step 1", b""]), st.binary(max_size=40))
    )
)
def test_engines_find_the_same_lines(lines: list[bytes]) -> None:
    """The fast engine and the plain one name the same lines."""
    fast = fast_finder()
    if fast is None:
        pytest.skip("ahocorasick_rs is not installed")
    block = b"\n".join(line.replace(b"\n", b" ") for line in lines)
    plain = set(PlainFinder().lines_with_hits(block))
    assert set(fast.lines_with_hits(block)) <= plain


def test_fast_engine_gives_the_same_evidence() -> None:
    """With either engine the evidence of a log is the same."""
    data = QUIET * 9_000 + OOM + b"\n" + QUIET * 9_000
    assert _fed(data, finder=fast_finder()).evidence_text() == _fed(data).evidence_text()
