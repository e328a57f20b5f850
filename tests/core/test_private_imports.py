"""Nothing of Prefect's private modules is imported: they change without notice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "prefect_heteroflow"
PRIVATE = ("prefect._internal", "prefect._experimental")


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_module_imports_no_private_module_of_prefect(path: Path) -> None:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.append(node.module)
    assert [name for name in names if name.startswith(PRIVATE)] == []
