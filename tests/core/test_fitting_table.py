"""Tables for a terminal: names stay whole, whatever has to give way for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from prefect_heteroflow.cli.attempt_table import attempt_parts, task_attempt_parts
from prefect_heteroflow.cli.fitting_table import show
from prefect_heteroflow.cli.nodes import nodes_parts
from prefect_heteroflow.cli.pools import pools_table
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.resources import Gpu, Node, Pool
from prefect_heteroflow.core.task_attempts import TaskAttempt
from prefect_heteroflow.orchestration.node_values import Holder, NodeRecord
from prefect_heteroflow.orchestration.nodes import Registry

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
NODE = "ip-10-20-30-40.eu-west-1.compute.internal"
POOL = "gpu-80gb-training"
Parts = Callable[[str, str], list[RenderableType]]
NAMES = st.text(alphabet="abcdefghij-0123456789", min_size=1, max_size=34)


def record(name: str, pool: str) -> NodeRecord:
    gpus = tuple(Gpu(uuid=f"{n}", name="NVIDIA A100-SXM4-80GB", memory_mb=81920) for n in range(8))
    node = Node(name=name, pool=pool, memory_mb=65536, gpus=gpus, live=True, cordoned=True)
    holder = Holder(instance_id="w")
    return NodeRecord(node=node, holder=holder, heartbeat_at=NOW - timedelta(seconds=7))


def nodes(name: str, pool: str) -> list[RenderableType]:
    return nodes_parts([record(name, pool)], now=NOW)


def pools(name: str, pool: str) -> list[RenderableType]:
    declared = Pool(name=pool, worker_type="heteroflow", gpu_memory_mb=81920, memory_mb=65536)
    registry = Registry(nodes=(record(name, pool),), pools=(declared,), descriptions={})
    return [pools_table(registry)]


def attempts(name: str, pool: str) -> list[RenderableType]:
    row = Attempt(
        attempt=1,
        flow_run_id="run",
        status=AttemptStatus.FAILED,
        pool=pool,
        node=name,
        memory_mb=16384,
        peak_memory_mb=16000,
        gpu_memory_mb=81920,
        exit_code=137,
        failure="SharedMemoryExhausted",
        reason="The output was long. " * 20,
        cleanup="It was cleaned up.",
    )
    return attempt_parts([row])


def task_attempts(name: str, pool: str) -> list[RenderableType]:
    row = Attempt(
        attempt=1,
        flow_run_id="run",
        status=AttemptStatus.FAILED,
        node="node-1",
        memory_mb=16384,
        failure="ResourceLimitExceeded",
        reason="It needs [too] much.",
        decision="Stopped: no node has so much",
    )
    found = TaskAttempt(
        task_run_id="task", name=name, row=row, error_type="TASK_EXECUTION_EXCEPTION"
    )
    return task_attempt_parts([found])


def on_terminal(parts: Sequence[RenderableType], *, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    for part in parts:
        console.print(part)
    return file.getvalue()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (nodes, (NODE, POOL)),
        (pools, (NODE, POOL)),
        (attempts, (NODE,)),
        (task_attempts, (NODE, "ResourceLimitExceeded", "TASK_EXECUTION_EXCEPTION:")),
    ],
    ids=["nodes", "pools", "attempts", "attempts of tasks"],
)
def test_long_names_stay_whole_within_80_columns(parts: Parts, names: tuple[str, ...]) -> None:
    """They can be copied from any terminal."""
    lines = on_terminal(parts(NODE, POOL)).splitlines()
    assert max(map(len, lines)) <= 80
    for name in names:
        assert any(name in line.split() for line in lines)


@given(name=NAMES, pool=NAMES)
def test_no_name_is_shortened(name: str, pool: str) -> None:
    """Whatever fits into 80 columns by itself is shown as it is."""
    assert {name, pool} <= set(on_terminal(nodes(name, pool)).split())
    assert {name, pool} <= set(on_terminal(pools(name, pool)).split())
    assert name in on_terminal(attempts(name, pool)).split()
    assert name in on_terminal(task_attempts(name, pool)).split()


def test_columns_that_were_left_out_are_named() -> None:
    """Nobody takes them for things that there are not."""
    output = on_terminal(nodes(NODE, POOL))
    assert "No room for: memory, GPUs." in output
    assert "65536" not in output


def test_short_names_leave_out_no_column() -> None:
    """The near miss: the same table with ordinary names."""
    for parts in (nodes, pools, attempts, task_attempts):
        assert "No room for" not in on_terminal(parts("node-1", "gpu-8gb"))


@pytest.mark.parametrize("parts", [nodes, pools, attempts])
def test_what_is_no_terminal_gets_each_row_on_one_line(
    parts: Parts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`heteroflow nodes | grep NODE` finds all of it."""
    monkeypatch.setenv("COLUMNS", "80")
    show(*parts(NODE, POOL))
    output = capsys.readouterr().out
    assert "No room for" not in output
    row = next(line for line in output.splitlines() if NODE in line)
    assert POOL in row


def test_failed_attempt_of_a_task_is_told_with_its_error_type_reason_and_what_followed() -> None:
    """The table has only the class."""
    lines = on_terminal(task_attempts("train-0", POOL), width=100).splitlines()
    assert [line.strip() for line in lines if line.strip().startswith("train-0 1:")] == [
        "train-0 1: TASK_EXECUTION_EXCEPTION: It needs [too] much.",
        "train-0 1: Then: no node has so much",
    ]


@pytest.mark.parametrize("parts", [nodes, pools, attempts, task_attempts])
def test_what_is_no_terminal_gets_no_blanks_at_the_end_of_a_line(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    """One long reason does not pad every other line."""
    show(*parts(NODE, POOL))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_name_wider_than_the_terminal_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal breaks the line, which a copy does not see."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    name = "n" * 100
    show(*nodes(name, POOL))
    assert any(name in line for line in capsys.readouterr().out.splitlines())
