"""Temporary folders of attempts, which a later process of the same worker can tell for its own."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect_heteroflow.infra.removal import remove

_PREFIX = "heteroflow-"
_SCRATCH = "scratch-"


class ScratchFolders:
    """The temporary folders of the attempts of one node.

    Args:
        owner: Names the node among all whose workers share this machine's temporary folder: its
            name and its server.
    """

    def __init__(self, *owner: str) -> None:
        self._prefix = f"{_PREFIX}{uuid5(NAMESPACE_URL, ' '.join(owner)).hex[:12]}-"

    def make(self, purpose: str) -> Path:
        """A new folder of one attempt.

        Raises:
            OSError: It cannot be made.
        """
        return Path(tempfile.mkdtemp(prefix=f"{self._prefix}{purpose}-"))

    def of_task(self, task_id: UUID | str) -> Path:
        """Where the scratch folder of a task is, whether there is one or not."""
        name = f"{self._prefix}{_SCRATCH}{UUID(str(task_id))}"
        return Path(tempfile.gettempdir(), name)

    def make_for_task(self, task_id: UUID | str) -> Path:
        """The scratch folder of a task, which all its attempts on this node share.

        What one of them has put in its place gives way to a new folder.

        Raises:
            OSError: It cannot be made, or somebody else has put something in its place: everybody
                may write where temporary folders are.
        """
        folder = self.of_task(task_id)
        with contextlib.suppress(FileNotFoundError):
            found = folder.lstat()
            if found.st_uid == os.geteuid() and not stat.S_ISDIR(found.st_mode):
                folder.unlink()
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise OSError(
                    f"{folder} is there already and is no folder of this worker's user. Remove it."
                ) from None
        return folder

    def remove_if_empty(self, task_id: UUID | str) -> None:
        """Remove a task's scratch folder if nothing is in it, as with most tasks."""
        with contextlib.suppress(OSError):
            self.of_task(task_id).rmdir()

    def set_aside(self, task_id: UUID | str) -> Path | None:
        """Take a task's scratch folder away, to be removed; `None` if there is none.

        At once, so that an attempt that starts meanwhile begins with a new one.
        """
        aside = self.make("gone")
        try:
            return self.of_task(task_id).rename(aside / "scratch").parent
        except OSError:
            aside.rmdir()
            return None

    def tasks(self) -> list[UUID]:
        """The tasks that have a scratch folder on this node, or something else in its place."""
        prefix = f"{self._prefix}{_SCRATCH}"
        found = []
        for path in self._all():
            if path.name.startswith(prefix):
                try:
                    found.append(UUID(path.name.removeprefix(prefix)))
                except ValueError:
                    continue
        return found

    def remove_attempts(self) -> int:
        """Remove the folders of attempts, and those of tasks that are empty.

        Only while no attempt of the node runs: nobody can tell whose a folder is.

        Returns:
            How many folders of attempts went.
        """
        for task_id in self.tasks():
            self.remove_if_empty(task_id)
        left = [it for it in self._all() if not it.name.startswith(f"{self._prefix}{_SCRATCH}")]
        return sum(remove(path).problem is None for path in left)

    def _all(self) -> list[Path]:
        """Whatever has one of our names, also what a job has put in the place of a folder."""
        there = Path(tempfile.gettempdir()).iterdir()
        return [path for path in there if path.name.startswith(self._prefix)]
