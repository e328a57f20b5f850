"""What lies in a storage of Prefect's, as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.filesystems import LocalFileSystem
from prefect.results import (  # type: ignore[attr-defined]  # one name is imported there only
    ResultRecordMetadata,
    get_default_result_storage,
    resolve_result_storage,
)
from prefect.utilities.asyncutils import run_coro_as_sync

__all__ = ["ResultRecordMetadata", "read_result", "read_stored", "write_stored"]


def read_stored(storage: Any, key: str) -> bytes:
    """The bytes under a key, whether the storage answers with a coroutine or not.

    Raises:
        Exception: There is nothing, or the storage does not answer; each storage has its own types.
    """
    found = storage.read_path(key)
    if hasattr(found, "__await__"):
        found = run_coro_as_sync(found)
    return bytes(found)


def write_stored(storage: Any, key: str, content: bytes) -> None:
    """Store bytes under a key.

    Raises:
        Exception: The storage refused; each has its own types.
    """
    written = storage.write_path(key, content=content)
    if hasattr(written, "__await__"):
        run_coro_as_sync(written)


def read_result(metadata: ResultRecordMetadata) -> bytes:
    """The bytes of the result that a state refers to.

    Raises:
        Exception: They are gone, or the storage is.
    """
    key = str(metadata.storage_key)
    in_sync: Any = {"_sync": True}  # the reader may be inside of an event loop
    storage: Any
    if metadata.storage_block_id is not None:
        storage = resolve_result_storage(metadata.storage_block_id, **in_sync)
    elif Path(key).is_absolute():
        storage = LocalFileSystem(basepath=str(Path(key).parent))
    else:
        storage = get_default_result_storage(**in_sync)
    return read_stored(storage, key)
