"""Calls and replies between two pools: in the flow's result storage, each under a seal.

Whoever can write to the bucket must not be able to make a worker load what he put there. So each
attempt has a key of its own, which travels through the Prefect API and never through the storage,
and nothing is unpickled whose keyed digest (HMAC-SHA256) is not right.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.blocks.core import Block
from prefect.filesystems import LocalFileSystem
from prefect.results import get_default_result_storage
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.task_runner.stored_results import read_stored, write_stored

if TYPE_CHECKING:
    from prefect.filesystems import WritableFileSystem
    from prefect.results import ResultStore

_DIGEST_BYTES = 32
_ADVICE = (
    "Configure a result storage that both sides reach, for example"
    " `@flow(result_storage='s3-bucket/NAME')` or PREFECT_DEFAULT_RESULT_STORAGE_BLOCK"
)


class StorageNotShared(RuntimeError):
    """The storage cannot be used by both sides; the text names it and what to configure."""


class SealBroken(RuntimeError):
    """What was loaded is not what was stored."""


def new_seal() -> str:
    """A key for one attempt."""
    return secrets.token_hex(32)


class SealedStorage:
    """The result storage of a flow, as both sides see it.

    Args:
        storage: Prefect's own.
        name: How a person would find it.
    """

    def __init__(self, storage: WritableFileSystem, name: str) -> None:
        self._storage = storage
        self.name = name

    def put(self, key: str, data: bytes, seal: str) -> None:
        """Store data under a key.

        Raises:
            StorageNotShared: The storage refused; says why.
        """
        try:
            write_stored(self._storage, key, _digest(key, data, seal) + data)
        except Exception as error:
            raise StorageNotShared(
                f"The result storage {self.name} cannot be written:"
                f" {type(error).__name__}: {error}. {_ADVICE}."
            ) from error

    def get(self, key: str, seal: str) -> bytes | None:
        """What is stored under a key; `None` if there is nothing.

        Raises:
            SealBroken: It was not stored by who knows the seal.
            StorageNotShared: The storage cannot be read; says why.
        """
        try:
            content = read_stored(self._storage, key)
        except (FileNotFoundError, ValueError):
            return None
        except Exception as error:
            raise StorageNotShared(
                f"The result storage {self.name} cannot be read:"
                f" {type(error).__name__}: {error}. {_ADVICE}."
            ) from error
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, _digest(key, data, seal)):
            raise SealBroken(
                f"What lies under {key} in the result storage {self.name} is not what was stored:"
                " its keyed digest is wrong. Nothing of it was loaded. See who can write there."
            )
        return data

    def get_call(self, key: str, seal: str) -> bytes:
        """As `get`, for the side that was sent here.

        Raises:
            SealBroken: It was not stored by who knows the seal.
            StorageNotShared: There is nothing: this side sees another storage.
        """
        data = self.get(key, seal)
        if data is None:
            raise StorageNotShared(
                f"The task and its arguments are not in the result storage {self.name} as it is"
                f" seen here. {_ADVICE}."
            )
        return data

    def forget(self, *keys: str) -> None:
        """Remove what is done with, where the storage is a folder; buckets expire it."""
        if isinstance(self._storage, LocalFileSystem):
            for key in keys:
                Path(self._storage.basepath or ".", key).expanduser().unlink(missing_ok=True)


def storage_of(store: ResultStore) -> tuple[SealedStorage, dict[str, str]]:
    """The storage of a result store, and the address under which another process finds it.

    Raises:
        StorageNotShared: It exists in this process only.
    """
    storage: Any = store.result_storage or get_default_result_storage()
    block_id = getattr(storage, "_block_document_id", None)
    if block_id is not None:
        name = f"{storage.get_block_type_slug()}/{getattr(storage, '_block_document_name', '')}"
        return SealedStorage(storage, name), {"block_document_id": str(block_id), "name": name}
    if isinstance(storage, LocalFileSystem):
        folder = str(Path(storage.basepath or ".").expanduser().resolve())
        return SealedStorage(storage, folder), {"folder": folder, "name": f"the folder {folder}"}
    kind = type(storage).__name__
    raise StorageNotShared(
        f"The result storage, a {kind}, was made in this process and never saved, so another one"
        f" cannot load it. Save the block (`block.save('NAME')`) and use it by its name. {_ADVICE}."
    )


def storage_at(address: dict[str, str]) -> SealedStorage:
    """The storage at an address from `storage_of`.

    Raises:
        StorageNotShared: It cannot be loaded here.
    """
    name = address.get("name", "")
    if "folder" in address:
        return SealedStorage(LocalFileSystem(basepath=address["folder"]), name)
    reference = {"block_document_id": UUID(address["block_document_id"])}
    try:
        block: Any = run_coro_as_sync(Block.aload_from_ref(reference))
    except Exception as error:
        raise StorageNotShared(
            f"The result storage {name} cannot be loaded here: {type(error).__name__}: {error}."
            f" Install what it needs in this environment. {_ADVICE}."
        ) from error
    return SealedStorage(block, name)


def _digest(key: str, data: bytes, seal: str) -> bytes:
    # The key belongs to it: a reply must not pass as the reply of another attempt.
    return hmac.new(seal.encode(), key.encode() + b"\0" + data, hashlib.sha256).digest()
