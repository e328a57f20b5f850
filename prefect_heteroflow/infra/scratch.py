"""Temporary folders of attempts, which a later process of the same worker can tell for its own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

_PREFIX = "heteroflow-"


class ScratchFolders:
    """The temporary folders of the attempts of one node.

    Args:
        owner: Names the node among all whose workers share this machine's temporary folder: its
            name, its pool and its server.
    """

    def __init__(self, *owner: str) -> None:
        self._prefix = f"{_PREFIX}{uuid5(NAMESPACE_URL, ' '.join(owner)).hex[:12]}-"

    def make(self, purpose: str) -> Path:
        """A new folder.

        Raises:
            OSError: It cannot be made.
        """
        return Path(tempfile.mkdtemp(prefix=f"{self._prefix}{purpose}-"))

    def remove_all(self) -> int:
        """Remove every folder of this node; gives how many there were.

        Only while no attempt of the node runs: nobody can tell whose a folder is.
        """
        left = [
            path
            for path in Path(tempfile.gettempdir()).glob(f"{self._prefix}*")
            if path.is_dir() and not path.is_symlink()
        ]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return len(left)
