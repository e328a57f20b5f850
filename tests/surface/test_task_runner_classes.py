"""Classes of the flow's script, after values of them went to a child and came back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.prefect_server import PrefectServer


@pytest.fixture(scope="module")
def seen(server: PrefectServer) -> dict[str, Any]:
    """What the script says."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "tests/support/script_with_classes.py")],
        env=server.env(PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_class_of_the_script_has_no_counter_of_the_child_on_it(seen: dict[str, Any]) -> None:
    assert seen["made"] == 1


def test_values_of_its_class_see_the_globals_of_the_script(seen: dict[str, Any]) -> None:
    assert seen["scaled"] == [1000, 50]


def test_enum_of_the_script_stays_as_it_is(seen: dict[str, Any]) -> None:
    assert seen["unit"] == [True, 10]


def test_exception_class_of_the_script_stays_as_it_is(seen: dict[str, Any]) -> None:
    assert seen["error"] == [True, 10]


def test_instance_with_slots_of_the_script_comes_back(seen: dict[str, Any]) -> None:
    assert seen["slotted"] == [True, 4, 4]
