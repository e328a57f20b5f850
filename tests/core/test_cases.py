"""The collected real cases and the formats beyond them: every one of them diagnosed right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence, FailureClass
from prefect_heteroflow.core.scanner import FailureScanner

DATA = Path(__file__).parent / "data"


def _rows(name: str) -> list[Any]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [pytest.param(row, id=row["id"]) for row in map(json.loads, lines)]


CASES = _rows("failures.jsonl")
FORMATS = _rows("formats.jsonl")


def _said(row: dict[str, Any], log: str) -> str | None:
    found = diagnose(
        Evidence(
            phase=row["phase"], exit_code=row["exit_code"], oom_killed=row["oom_killed"], log=log
        )
    )
    return None if found is None else found.failure.value


def _groups(names: list[str | None]) -> set[str | None]:
    return {None if name is None else FailureClass(name).group.value for name in names}


@pytest.mark.parametrize("row", CASES)
def test_real_case_gets_its_class(row: dict[str, Any]) -> None:
    """A real failure, as users reported it, is diagnosed as its label says."""
    assert _said(row, row["log"]) in [row["label"], *row["alt_labels"]]


@pytest.mark.parametrize("row", FORMATS)
def test_format_gets_its_class(row: dict[str, Any]) -> None:
    """A text in the format of a real tool is diagnosed for what it is, traps included."""
    assert _said(row, row["log"]) in row["right"]


@pytest.mark.parametrize("row", CASES)
def test_scanner_keeps_what_the_diagnosis_needs(row: dict[str, Any]) -> None:
    """A case read through the scanner in small pieces gets the same class."""
    scanner = FailureScanner()
    data = row["log"].encode()
    for start in range(0, len(data), 61):
        scanner.feed(data[start : start + 61])
    assert _said(row, scanner.evidence_text()) == _said(row, row["log"])


@pytest.mark.parametrize("row", CASES)
def test_case_deep_in_a_long_log_is_still_found(row: dict[str, Any]) -> None:
    """Quiet output of a megabyte before it does not hide a case."""
    scanner = FailureScanner()
    scanner.feed(b"loading shard of the data set\n" * 40_000)
    scanner.feed(row["log"].encode())
    said = _said(row, scanner.evidence_text())
    assert _groups([said]) <= _groups([row["label"], *row["alt_labels"]])


def test_ranks_of_carriage_return_progress_bars_are_lines() -> None:
    """A message glued to a progress bar by a carriage return is a line of its own."""
    log = "10%|#   | 1/10\r20%|##  | 2/10\rMemoryError"
    assert _said({"phase": "run", "exit_code": 1, "oom_killed": None}, log) == "CpuOutOfMemory"
