"""Text of file names, outputs and people, as it may be shown in one line and stored anywhere.

A name that is no UTF-8 has surrogates in it, which nothing can encode; PostgreSQL takes no NUL and
answers 503, which looks like an outage; an escape code reaches the terminal of whoever looks.
"""

from __future__ import annotations

import re

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_NOT_SHOWN = re.compile(
    # Control characters, line ends of Unicode, marks that turn the direction of writing.
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def storable(text: str) -> str:
    """`text` with NULs and lone surrogates written out, and otherwise as it was."""
    return _NOT_STORABLE.sub(_written_out, text)


def on_one_line(text: str) -> str:
    """`text` with every character written out that would not show as itself in a line.

    As Python writes it in a string; a byte that is no UTF-8 by its number.
    """
    return _NOT_SHOWN.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # what `os.fsdecode` makes of a byte
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
