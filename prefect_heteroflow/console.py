"""The worker's own console, where the output of attempts is echoed."""

from __future__ import annotations

import sys


def echo(chunk: bytes) -> None:
    """Print output of an attempt as far as the console can show it.

    Whatever becomes of the console, the attempt is to go on: characters that it does not have are
    shown as `?`, and one that is closed or broken is left alone.
    """
    stream = sys.stdout
    try:
        encoding = stream.encoding or "utf-8"
        text = chunk.decode("utf-8", errors="replace")
        stream.write(text.encode(encoding, errors="replace").decode(encoding))
        stream.flush()
    except (AttributeError, LookupError, OSError, ValueError):
        return  # no console, one with an unknown encoding, a broken pipe, a closed file
