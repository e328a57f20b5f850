"""Small JSON files on this machine that outlast the worker: each is whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Entries by name, which only this user can read.

    Args:
        folder: Where they are; it is made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write an entry, or replace it; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / f".{name}.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / f"{name}.json")

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there."""
        with contextlib.suppress(OSError):
            (self._folder / f"{name}.json").unlink()

    def read_all(self) -> dict[str, Any]:
        """Every entry by its name; `None` for one that cannot be read."""
        return {path.stem: _read(path) for path in sorted(self._folder.glob("*.json"))}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
