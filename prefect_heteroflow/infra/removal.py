"""Removes folders of attempts: of any depth, and never anything outside of them.

A job can nest folders deeper than Python can recurse, than a process can hold files open, or than
a path can be long. So the way down is kept in a list, one folder is open at a time, and the way up
is the kernel's own `..`, which must lead back to where we came from.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, kw_only=True)
class Removal:
    """What came of removing one thing."""

    removed_bytes: int = 0
    """Of plain files."""
    problem: str | None = None
    """Why some of it is still there: the first error."""

    def note(self, problem: str) -> None:
        """Keep it, unless there is an earlier one."""
        self.problem = self.problem or problem


@dataclass(slots=True, kw_only=True)
class _Level:
    name: str
    """In the folder above."""
    identity: tuple[int, int]
    """Device and inode."""
    folders: list[str] = field(default_factory=list)
    """In it, those that are still to be entered."""


def remove(path: Path) -> Removal:
    """Remove what stands at a path: a folder with all that is in it, or a file or link itself.

    Links are never followed, and nothing on another file system is removed. It raises no error:
    what cannot be removed stays, and everything else goes.
    """
    try:
        parent = os.open(path.parent, _FOLDER & ~os.O_NOFOLLOW)
    except OSError as error:
        return Removal(problem=_text(error))
    try:
        return remove_entry(path.name, parent)
    finally:
        os.close(parent)


def remove_entry(name: str, folder: int) -> Removal:
    """The same for a name in an open folder; what is not there any more is no problem.

    Args:
        name: A single name.
        folder: Descriptor of the folder.
    """
    removal = Removal()
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        return removal if isinstance(error, FileNotFoundError) else Removal(problem=_text(error))
    try:
        if stat.S_ISDIR(found.st_mode):
            _remove_folder(name, folder, removal)
        else:
            _remove_file(name, folder, removal)
    except OSError as error:
        removal.note(_text(error))
    return removal


def _remove_folder(name: str, folder: int, removal: Removal) -> None:
    try:
        here = os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        _remove_unread(name, folder, removal, error)
        return
    try:
        levels = [_read_level(name, here, removal)]
        while True:
            level = levels[-1]
            if level.folders:
                here = _enter(level.folders.pop(), here, levels, removal)
                continue
            levels.pop()
            if not levels:
                break
            here = _leave(here, levels[-1])
            try:
                os.rmdir(level.name, dir_fd=here)
            except OSError as error:
                removal.note(_text(error))
    finally:
        os.close(here)
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        removal.note(_text(error))


def _enter(name: str, here: int, levels: list[_Level], removal: Removal) -> int:
    """The open folder to go on in: that one, or the same as before if it is not to be entered."""
    try:
        inner = os.open(name, _FOLDER, dir_fd=here)
    except OSError as error:
        _remove_unread(name, here, removal, error)
        return here
    if os.fstat(inner).st_dev != levels[0].identity[0]:
        os.close(inner)
        removal.note("it holds another file system")
        return here
    levels.append(_read_level(name, inner, removal))
    os.close(here)
    return inner


def _remove_unread(name: str, folder: int, removal: Removal, why: OSError) -> None:
    """A folder that cannot be opened: it goes if it is empty."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        removal.note(_text(why))


def _leave(here: int, above: _Level) -> int:
    """The open folder above.

    Raises:
        OSError: It cannot be opened, or it is another one: somebody has moved ours.
    """
    found = os.open("..", _FOLDER, dir_fd=here)
    if _identity(found) != above.identity:
        os.close(found)
        raise OSError(0, "a folder was moved while it was removed")
    os.close(here)
    return found


def _read_level(name: str, here: int, removal: Removal) -> _Level:
    """Remove the files of an open folder and note its folders."""
    level = _Level(name=name, identity=_identity(here))
    try:
        with os.scandir(here) as entries:
            # All at once: what is removed while it is listed may hide something else.
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError as error:
        removal.note(_text(error))
        return level
    for each, is_folder in found:
        if is_folder:
            level.folders.append(each)
            continue
        try:
            _remove_file(each, here, removal)
        except OSError as error:
            removal.note(_text(error))
    return level


def _remove_file(name: str, folder: int, removal: Removal) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    os.unlink(name, dir_fd=folder)
    if stat.S_ISREG(found.st_mode):
        removal.removed_bytes += found.st_size


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _text(error: OSError) -> str:
    return error.strerror or str(error)
