"""Values as bytes for another process."""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from contextlib import suppress
from types import CodeType
from typing import Any, ClassVar

import cloudpickle
from prefect.locking.memory import MemoryLockManager

from prefect_heteroflow.task_runner.modules_by_value import is_users_choice, marks_by_value
from prefect_heteroflow.task_runner.slots_sent import with_slots


def to_pickle(value: Any) -> bytes:
    """The value as cloudpickle would have it, which also knows lambdas and what `__main__` defines.

    Most values need nothing of that, and then pickle alone takes half of the time. A name from
    `__main__` stands in what it gives, and means something else in another process; one from a
    module that only this process has means nothing there.
    """
    registry: Any = cloudpickle
    marks = marks_by_value()
    if not is_users_choice(registry.list_registry_pickle_by_value()):
        data = _plain_pickle(value, marks)
        if data is not None:
            return data
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _plain_pickle(value: Any, marks: tuple[bytes, ...]) -> bytes | None:
    with suppress(Exception):
        # The default protocol of old Pythons copies an array once more.
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if not any(mark in data for mark in marks):
            return data
    return None


def _code_with_file(code: CodeType) -> tuple[Any, ...]:
    make, arguments = _Cloudpickle.dispatch_table[CodeType](code)
    return make, tuple(
        code.co_filename if isinstance(value, str) and value == _NO_FILE else value
        for value in arguments
    )


_Cloudpickle: Any = cloudpickle.Pickler
_NO_FILE = "<dynamic-code>"


class Pickler(_Cloudpickle):  # type: ignore[misc]
    """Keeps what cloudpickle leaves out.

    That is the file of code, so that tracebacks show its lines, and the slots of a class.
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _code_with_file, MemoryLockManager: lambda _: (MemoryLockManager, ())},
        _Cloudpickle.dispatch_table,
    )

    def reducer_override(self, value: Any) -> Any:
        """How a class or function is sent; pickle decides about all else."""
        reduced = super().reducer_override(value)
        return with_slots(value, reduced) if isinstance(value, type) else reduced
