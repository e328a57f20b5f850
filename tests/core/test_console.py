"""The worker's console takes what it can, and never stands in the way of an attempt."""

from __future__ import annotations

import io
import sys

import pytest

from prefect_heteroflow.console import echo

FIVE = "\u4e94".encode()


def console(encoding: str) -> tuple[io.BytesIO, io.TextIOWrapper]:
    written = io.BytesIO()
    return written, io.TextIOWrapper(written, encoding=encoding, newline="")


@pytest.mark.parametrize(
    ("encoding", "chunk", "shown"),
    [
        ("utf-8", FIVE + b"!", FIVE + b"!"),
        ("ascii", FIVE + b"!", b"?!"),
        ("latin-1", "\xe9 \u4e94".encode(), b"\xe9 ?"),
        ("utf-8", b"\xff", "\ufffd".encode()),
    ],
    ids=["all of it", "ascii", "latin-1", "no text at all"],
)
def test_console_shows_what_its_encoding_has(
    monkeypatch: pytest.MonkeyPatch, encoding: str, chunk: bytes, shown: bytes
) -> None:
    written, stream = console(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    echo(chunk)
    assert written.getvalue() == shown


class Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Broken()], ids=["none", "closed", "broken"])
def test_console_that_cannot_be_written_to_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    echo(b"text")
