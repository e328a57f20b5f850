"""Scratch folders of tasks and temporary folders of attempts, in a folder that all can write to."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from prefect_heteroflow.infra.removal import Removal, remove
from prefect_heteroflow.infra.scratch import ScratchFolders


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScratchFolders:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return ScratchFolders("node-1", "http://api")


def test_attempts_of_a_task_share_its_folder_and_those_of_another_have_theirs(
    folders: ScratchFolders,
) -> None:
    task, other = uuid4(), uuid4()
    folder = folders.make_for_task(task)
    assert folders.make_for_task(str(task)) == folder
    assert folders.make_for_task(other) != folder
    assert sorted(folders.tasks()) == sorted([task, other])


def test_node_does_not_see_the_folders_of_another_node(folders: ScratchFolders) -> None:
    other = ScratchFolders("node-2", "http://api")
    other.make_for_task(uuid4())
    other.make("attempt")
    assert (folders.tasks(), folders.remove_attempts()) == ([], 0)


def test_folders_of_attempts_go_at_the_start_of_a_worker_and_those_of_tasks_stay(
    folders: ScratchFolders,
) -> None:
    left, kept, empty = (
        folders.make("attempt"),
        folders.make_for_task(uuid4()),
        folders.make_for_task(uuid4()),
    )
    (kept / "weights.pt").touch()
    assert folders.remove_attempts() == 1
    assert (left.exists(), kept.exists(), empty.exists()) == (False, True, False)


def test_empty_folder_of_a_task_goes_at_once_and_one_with_files_stays(
    folders: ScratchFolders,
) -> None:
    empty, used = uuid4(), uuid4()
    folders.make_for_task(empty)
    (folders.make_for_task(used) / "weights.pt").touch()
    for task in (empty, used):
        folders.remove_if_empty(task)
    assert folders.tasks() == [used]


def test_link_of_somebody_else_in_the_place_of_a_scratch_folder_is_refused(
    folders: ScratchFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write where temporary folders are."""
    task = uuid4()
    (tmp_path / "elsewhere").mkdir()
    folders.of_task(task).symlink_to(tmp_path / "elsewhere")
    own = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    with pytest.raises(OSError, match="is no folder of this worker's user"):
        folders.make_for_task(task)


def test_folder_set_aside_leaves_room_for_a_new_one(folders: ScratchFolders) -> None:
    task = uuid4()
    (folders.make_for_task(task) / "weights.pt").touch()
    aside = folders.set_aside(task)
    assert aside is not None
    assert list(folders.make_for_task(task).iterdir()) == []
    assert list(aside.rglob("*.pt")) == [aside / "scratch" / "weights.pt"]
    assert folders.remove_attempts() == 1


def test_task_without_a_folder_has_nothing_to_set_aside(
    folders: ScratchFolders, tmp_path: Path
) -> None:
    assert folders.set_aside(uuid4()) is None
    assert list(tmp_path.iterdir()) == []


# A job may put anything in the place of its own folders.


def put_in_place(kind: str, place: Path, outside: Path) -> None:
    if kind == "file":
        place.write_text("x")
    else:
        place.symlink_to(outside if kind == "link" else outside / "nowhere")


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nobody may touch, with a file in it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "precious").write_text("kept")
    return folder


KINDS = ["file", "link", "broken link"]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_the_place_of_a_scratch_folder_goes_with_its_task(
    folders: ScratchFolders, tmp_path: Path, outside: Path, kind: str
) -> None:
    task = uuid4()
    put_in_place(kind, folders.of_task(task), outside)
    assert folders.tasks() == [task]
    aside = folders.set_aside(task)
    assert aside is not None
    assert remove(aside).problem is None
    assert list(tmp_path.iterdir()) == []
    assert (outside / "precious").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_the_place_of_an_attempts_folder_goes_at_the_start_of_a_worker(
    folders: ScratchFolders, tmp_path: Path, outside: Path, kind: str
) -> None:
    left = folders.make("work")
    left.rmdir()
    put_in_place(kind, left, outside)
    assert folders.remove_attempts() == 1
    assert list(tmp_path.iterdir()) == []
    assert (outside / "precious").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_next_attempt_has_a_new_folder_where_the_one_before_put_something_else(
    folders: ScratchFolders, outside: Path, kind: str
) -> None:
    task = uuid4()
    put_in_place(kind, folders.of_task(task), outside)
    folder = folders.make_for_task(task)
    assert (folder.is_dir(), folder.is_symlink()) == (True, False)
    assert (outside / "precious").exists()


def test_folder_that_cannot_be_removed_does_not_count_as_gone(
    folders: ScratchFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.make("attempt")
    refused = Removal(problem="Operation not permitted")
    monkeypatch.setattr("prefect_heteroflow.infra.scratch.remove", lambda path: refused)
    assert folders.remove_attempts() == 0
