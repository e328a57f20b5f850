"""Modules that no other process finds, so that what they define has to travel by value.

Prefect loads a flow's file a second time under a name of its own making, and a user may load one by
`importlib` from where `sys.path` does not lead. Pickle and cloudpickle both take what stands in
`sys.modules` for something that any process can import.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import cloudpickle

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"

_found: dict[tuple[str, str], bool] = {}
_looked_at: set[str] = set()
_by_value: frozenset[str] = frozenset()
_marks: tuple[bytes, ...] = (b"__main__",)


def marks_by_value() -> tuple[bytes, ...]:
    """What stands in the pickled bytes of a value that refers to such a module."""
    if len(sys.modules) != len(_looked_at):
        _look_at_new_modules()
    return _marks


def is_users_choice(registered: set[str]) -> bool:
    """Whether the user has told cloudpickle of further modules."""
    return not registered <= _by_value


def can_import(name: str, file: str | None) -> bool:
    """Whether another process finds the same module under that name.

    Args:
        name: The module's name.
        file: What it was loaded from.
    """
    if name == "__main__" or file is None:
        return False
    key = name, file
    if key not in _found:
        _found[key] = _is_found(name, file)
    return _found[key]


def _is_found(name: str, file: str) -> bool:
    parent, _, _ = name.rpartition(".")
    path = None
    if parent:
        package: Any = sys.modules.get(parent)
        path = _said_by(package, "__path__")
        if path is None or not _package_is_found(parent, _said_by(package, "__file__")):
            return False
    # Not `importlib.util.find_spec`: that one answers from `sys.modules`.
    for finder in list(sys.meta_path):
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # a finder of somebody else, or an old one without the method
            continue
        if spec is not None:
            return spec.origin == file
    return False


def _said_by(module: Any, name: str) -> Any:
    """An attribute of a module; the usual way would load those that wait for their first use."""
    if not isinstance(module, ModuleType):
        return None
    try:
        return object.__getattribute__(module, "__dict__").get(name)
    except AttributeError:  # it only says that it is a module: libraries of cffi do
        return None


def _package_is_found(name: str, file: str | None) -> bool:
    # A namespace package has no file: its folders are found if those above them are.
    return True if file is None else can_import(name, file)


def _look_at_new_modules() -> None:
    global _by_value, _looked_at, _marks
    names = set(sys.modules)
    for name in names - _looked_at:
        module = sys.modules.get(name)
        file = _said_by(module, "__file__")
        if (
            module is not None
            and isinstance(file, str)
            and name not in ("__main__", "__mp_main__")
            and not file.startswith(_STANDARD_LIBRARY)
            and not any(part in file for part in _INSTALLED)
            and not can_import(name, file)
        ):
            registry: Any = cloudpickle
            registry.register_pickle_by_value(module)
            _by_value |= {name}
            _marks = (*_marks, name.encode())
    _looked_at = names
