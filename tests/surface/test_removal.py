"""Removal of what attempts leave: of any depth, and never anything outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_heteroflow.infra.cleanup import CleanupPlan, clean_up
from prefect_heteroflow.infra.nvml import NvmlUnavailable
from prefect_heteroflow.infra.removal import Removal, remove
from prefect_heteroflow.infra.scratch import ScratchFolders

DEEP = 1500
"""Deeper than Python recurses, and than a process may hold files open."""


def nest(folder: Path, name: str, depth: int = DEEP) -> None:
    """Folders within folders, a file in each; paths to the lowest ones are longer than allowed."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(here)
        here = inner
    os.close(here)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """A later session of pytest could not remove it."""
    yield
    for path in tmp_path.iterdir():
        remove(path)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScratchFolders:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return ScratchFolders("node-1", "http://api")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that nobody may touch, with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    return folder


def test_folder_deeper_than_python_recurses_goes(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    nest(tmp_path / "folder", "d")
    assert remove(tmp_path / "folder") == Removal()
    assert list(tmp_path.iterdir()) == []


def test_everything_in_a_folder_goes_and_the_bytes_of_its_files_count(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e/f"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "file").write_text("0123456789")
    os.mkfifo(tmp_path / "folder" / "fifo")
    assert remove(tmp_path / "folder") == Removal(removed_bytes=30)
    assert list(tmp_path.iterdir()) == []


def test_link_in_a_folder_goes_and_what_it_points_to_stays(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(outside)
    assert remove(tmp_path / "folder").problem is None
    assert (outside / "precious").exists()


def test_link_in_the_place_of_a_folder_goes_and_what_it_points_to_stays(
    tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "folder").symlink_to(outside)
    assert remove(tmp_path / "folder").problem is None
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "precious").exists()


def test_what_is_gone_already_is_no_problem(tmp_path: Path) -> None:
    assert remove(tmp_path / "gone") == Removal()


def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root everything can be removed: the file is one that refuses."""
    folder = tmp_path / "folder"
    for name in ("a", "b/held", "b/inner/c", "d"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == "held":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", refuse)
    assert remove(folder) == Removal(removed_bytes=3, problem="Operation not permitted")
    assert [str(path.relative_to(folder)) for path in folder.rglob("*")] == ["b", "b/held"]


def test_folder_that_is_moved_away_meanwhile_ends_the_removal(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that the attempt has left: the way up would lead somewhere else."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "last").write_text("x")
    unlink = os.unlink

    def move(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        (tmp_path / "folder" / "inner").rename(outside / "inner")

    monkeypatch.setattr("os.unlink", move)
    assert remove(tmp_path / "folder").problem == "a folder was moved while it was removed"
    assert (outside / "precious").exists()


# ---- where it is used ----------------------------------------------------------------------------


def test_worker_starts_where_a_job_left_a_deep_folder(folders: ScratchFolders) -> None:
    nest(folders.make("gone"), "scratch")
    assert folders.remove_attempts() == 1


def test_deep_folder_that_matches_a_pattern_goes_before_a_retry(tmp_path: Path) -> None:
    nest(tmp_path, "d.lock")
    report = clean_up(CleanupPlan(folders=[tmp_path]))
    assert (report.removed, report.problems) == (("d.lock",), ())


def test_cleanup_of_a_deep_folder_says_how_far_it_looked(tmp_path: Path) -> None:
    (tmp_path / "a.lock").touch()
    nest(tmp_path, "d")
    report = clean_up(CleanupPlan(folders=[tmp_path]))
    assert report.removed == ("a.lock",)
    assert report.problems == ("what is more than 64 folders deep was not looked through",)


def test_step_of_a_cleanup_that_breaks_off_keeps_the_others_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.lock").write_text("0123456789")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "b.lock").touch()

    def fail(name: str, folder: int) -> Removal:
        if name == "b.lock":
            raise RecursionError("maximum recursion depth exceeded")
        return remove(tmp_path / name)

    monkeypatch.setattr("prefect_heteroflow.infra.cleanup.remove_entry", fail)
    report = clean_up(
        CleanupPlan(folders=[tmp_path], hook="true", gpu_free_mb={"GPU-1": 1}),
        read=lambda: NvmlUnavailable("no driver"),
    )
    assert report.text() == (
        "Cleaned up: removed a.lock (10 bytes); the cleanup hook succeeded; removing stale files"
        " broke off (RecursionError: maximum recursion depth exceeded); GPU memory is not known:"
        " no driver."
    )
