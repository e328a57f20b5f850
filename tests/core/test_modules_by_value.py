"""Which modules no other process finds."""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType

import pytest

from prefect_heteroflow.task_runner import modules_by_value
from prefect_heteroflow.task_runner.modules_by_value import can_import, marks_by_value


def test_look_at_the_modules_loads_none_that_waits_for_its_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect has such ones; loaded at another time, some of them are there twice."""
    spec = find_spec("this")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = LazyLoader(spec.loader)  # type: ignore[arg-type]
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "this", module)
    marks_by_value()
    assert type(module) is not ModuleType


class PretendedModule:
    """As `_cffi_backend.Lib`, which cryptography puts there: no module, and without `__dict__`."""

    __slots__ = ()

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return ModuleType


def test_look_at_the_modules_passes_over_what_only_says_that_it_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretended = PretendedModule()
    assert isinstance(pretended, ModuleType)
    monkeypatch.setitem(sys.modules, "pretended", pretended)  # type: ignore[arg-type]
    monkeypatch.setattr(modules_by_value, "_looked_at", set())
    assert b"__main__" in marks_by_value()


@pytest.mark.parametrize(
    ("name", "found"), [(__name__, True), ("json.decoder", True), ("json.no_such", False)]
)
def test_module_can_be_imported_where_its_file_is_found_under_its_name(
    name: str, found: bool
) -> None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", "elsewhere.py")
    assert can_import(name, file) is found
