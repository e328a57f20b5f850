"""`core` decides from values alone: no clock, no chance, no I/O, no logging, no Prefect."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import prefect_heteroflow.core

CORE = Path(prefect_heteroflow.core.__file__).parent
MODULES = sorted(CORE.rglob("*.py"))
PACKAGE = "prefect_heteroflow.core"
IMPURE = frozenset(
    (
        *("time", "datetime", "random", "secrets", "uuid", "logging", "warnings"),
        *("os", "pathlib", "io", "shutil", "tempfile", "glob", "fcntl", "mmap"),
        *("socket", "ssl", "http", "urllib", "select", "selectors", "asyncio"),
        *("subprocess", "multiprocessing", "threading", "concurrent", "ctypes"),
        *("sqlite3", "platform", "getpass", "pwd", "resource", "atexit", "builtins"),
    )
)
# Calls that reach outside although no import is needed for them.
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})


def imported_names(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
    return names


def called_names(tree: ast.AST) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(CORE)))
def test_module_of_core_imports_only_pure_modules(module: Path):
    """The standard library without what observes or acts, and core itself."""
    tree = ast.parse(module.read_text())
    for name in imported_names(tree):
        top = name.partition(".")[0]
        assert top in sys.stdlib_module_names or name == PACKAGE or name.startswith(f"{PACKAGE}.")
        assert top not in IMPURE, f"{module.name} imports {name}"
    assert not called_names(tree) & IMPURE_CALLS


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(CORE)))
def test_module_of_core_bears_no_name_of_the_standard_library(module: Path):
    """Python breaks whenever the folder of such a module is the working directory."""
    assert module.stem == "__init__" or module.stem not in sys.stdlib_module_names


def test_core_has_modules():
    """The tests above look at something."""
    assert {"decide.py", "routing.py", "policy.py"} <= {module.name for module in MODULES}
