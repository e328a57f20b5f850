"""What goes through a result storage between two pools, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore

from prefect_heteroflow.task_runner.sealed_storage import (
    SealBroken,
    SealedStorage,
    StorageNotShared,
    new_seal,
    storage_at,
    storage_of,
)


def storage(folder: Path) -> SealedStorage:
    return SealedStorage(LocalFileSystem(basepath=str(folder)), f"the folder {folder}")


def test_what_was_stored_is_what_is_loaded(tmp_path: Path) -> None:
    seal = new_seal()
    storage(tmp_path).put("call", b"body", seal)
    assert storage(tmp_path).get_call("call", seal) == b"body"


def test_other_side_finds_the_storage_by_its_address(tmp_path: Path) -> None:
    near, address = storage_of(ResultStore(result_storage=LocalFileSystem(basepath=str(tmp_path))))
    seal = new_seal()
    near.put("call", b"body", seal)
    assert storage_at(address).get_call("call", seal) == b"body"


@pytest.mark.parametrize("change", ["one byte", "another key", "another seal", "cut off"])
def test_what_was_changed_is_not_loaded(tmp_path: Path, change: str) -> None:
    """Somebody who can write to the bucket cannot make a worker load it."""
    seal, key = new_seal(), "call"
    storage(tmp_path).put("call", b"body", seal)
    content = (tmp_path / "call").read_bytes()
    if change == "one byte":
        (tmp_path / "call").write_bytes(content[:-1] + b"Y")
    elif change == "another key":
        (tmp_path / "other").write_bytes(content)
        key = "other"
    elif change == "another seal":
        seal = new_seal()
    else:
        (tmp_path / "call").write_bytes(content[:10])
    with pytest.raises(SealBroken, match="not what was stored"):
        storage(tmp_path).get_call(key, seal)


def test_storage_that_the_other_side_does_not_see_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StorageNotShared) as caught:
        storage(tmp_path / "elsewhere").get_call("call", new_seal())
    assert f"the folder {tmp_path / 'elsewhere'}" in str(caught.value)
    assert "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK" in str(caught.value)


def test_reply_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    assert storage(tmp_path).get("reply", new_seal()) is None
