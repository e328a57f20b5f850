"""The end of a stream that broke off, taken from the end of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.log_lines import missing_end


@pytest.mark.parametrize(
    ("seen", "tail", "missing"),
    [
        (b"one\ntwo\n", b"one\ntwo\n", b""),
        (b"zero\none\ntwo\n", b"one\ntwo\n", b""),
        (b"one\n", b"one\ntwo\n", b"two\n"),
        (b"one\ntw", b"one\ntwo\n", b"o\n"),
        (b"", b"denied\n", b"denied\n"),
        (b"one\n", b"", b""),
        (b"", b"", b""),
    ],
    ids=["all", "longer", "last line", "half a line", "nothing seen", "no output", "neither"],
)
def test_missing_end_is_what_comes_after_what_was_seen(
    seen: bytes, tail: bytes, missing: bytes
) -> None:
    assert missing_end(seen, tail) == missing


@given(text=st.binary(max_size=60), cut=st.integers(0, 60), kept=st.integers(1, 60))
def test_seen_and_missing_end_make_the_end_of_the_text(text: bytes, cut: int, kept: int) -> None:
    seen, tail = text[:cut], text[-kept:]
    assert (seen + missing_end(seen, tail)).endswith(tail)
