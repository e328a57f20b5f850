"""Output of plain jobs as log records."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.orchestration.run_output import RunOutput


def records(*chunks: bytes) -> list[str]:
    """What is logged of the chunks."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger = logging.Logger("output")
    logger.addHandler(Kept())
    output = RunOutput(logger)
    for chunk in chunks:
        output.feed(chunk)
    output.close()
    return found


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"one\ntwo\n",), ["one", "two"]),
        ((b"on", b"e\ntw", b"o"), ["one", "two"]),
        ((b"10%\r20%\r30%\n",), ["30%"]),
        ((b"\xe4\xba", b"\x94\n"), ["\u4e94"]),
        ((b"a\x00b\n",), ["ab"]),
        ((b"\n\n",), []),
    ],
    ids=["lines", "broken off", "progress bar", "broken character", "nul", "empty"],
)
def test_a_record_is_a_line(chunks: tuple[bytes, ...], lines: list[str]) -> None:
    assert records(*chunks) == lines


def test_many_lines_at_once_share_records_of_at_most_16_kib() -> None:
    """A record costs the worker about a millisecond, and a job waits for whoever reads it."""
    lines = [f"line {number}" for number in range(5000)]
    found = records("\n".join([*lines, ""]).encode())
    assert len(found) < 10
    assert max(map(len, found)) <= 16 * 1024
    assert "\n".join(found).splitlines() == lines


@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\r\n\x00"), min_size=1)),
    st.integers(1, 300),
)
def test_nothing_is_lost_or_out_of_order_however_it_comes(lines: list[str], size: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert "\n".join(records(*chunks)) == "\n".join(lines)
