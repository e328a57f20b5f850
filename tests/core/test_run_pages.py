"""No look at many runs ends with the first page of the server."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from prefect_heteroflow.orchestration import run_pages
from prefect_heteroflow.orchestration.run_pages import in_parts, read_all_runs

PACKAGE = Path(__file__).parents[2] / "prefect_heteroflow"
PLACES = [*PACKAGE.glob("attempts/*.py"), *PACKAGE.glob("orchestration/*.py")]
READS = ("read_flow_runs", "read_task_runs")
LIMITED = {"run_pages.py", "task_attempts.py"}
"""These page by themselves."""


class Pages:
    """A server with so many runs, and pages of 60."""

    def __init__(self, count: int) -> None:
        self.runs = [FlowRun.model_construct(id=number) for number in range(count)]
        self.asked: list[int] = []

    async def read_flow_runs(self, *, offset: int, **query: Any) -> list[FlowRun]:
        self.asked.append(offset)
        return self.runs[offset : offset + 60]


@pytest.mark.parametrize("count", [0, 59, 60, 61, 130])
async def test_runs_of_every_page_are_read(count: int) -> None:
    server = Pages(count)
    assert await read_all_runs(cast("PrefectClient", server)) == server.runs


async def test_one_look_reads_no_more_than_is_sensible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pages, "MOST_RUNS", 100)
    server = Pages(500)
    assert len(await read_all_runs(cast("PrefectClient", server))) == 120
    assert server.asked == [0, 60]


def test_parts_hold_every_id_once() -> None:
    parts = in_parts(list(range(250)))
    assert [len(part) for part in parts] == [100, 100, 50]
    assert [number for part in parts for number in part] == list(range(250))


@pytest.mark.parametrize("path", sorted(PLACES), ids=lambda path: path.name)
def test_module_reads_runs_page_by_page(path: Path) -> None:
    if path.name in LIMITED:
        return
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in READS
    ]
    assert calls == []
