"""Rows of the attempt history, and what is told from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.attempts import (
    COLUMNS,
    ERROR_TITLES,
    Attempt,
    AttemptStatus,
    ending_row,
    error_title,
    exit_status,
    from_row,
    infrastructure_retries_used,
    retries_report,
    retries_used,
    signal_in,
    to_markdown,
    to_row,
)
from prefect_heteroflow.core.failures import FailureClass

# What no database takes does not come through, on purpose: see test_valid_text.py.
storable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
text = st.none() | st.text(storable, max_size=20)
size = st.none() | st.integers(0, 2**40)
attempts = st.builds(
    Attempt,
    attempt=st.integers(1, 1000),
    flow_run_id=st.text(storable, min_size=1),
    status=st.sampled_from(AttemptStatus),
    **dict.fromkeys(
        ("pool", "node", "failure", "rule", "reason", "decision", "log", "cleanup"), text
    ),
    **dict.fromkeys(("started", "ended"), text),
    **dict.fromkeys(("memory_mb", "shm_mb", "gpu_count", "gpu_memory_mb"), size),
    **dict.fromkeys(("peak_memory_mb", "exit_code"), size),
    never_started=st.booleans(),
)


def row(number: int = 1, **values: Any) -> Attempt:
    some: dict[str, Any] = {
        "attempt": number,
        "flow_run_id": "run",
        "status": AttemptStatus.FAILED,
        "pool": "gpu-8gb",
        "node": "node-1",
    }
    return Attempt(**{**some, **values})


OOM = row(
    1,
    failure="CpuOutOfMemory",
    memory_mb=4096,
    peak_memory_mb=4090,
    reason="The kernel killed it.",
    decision="memory 4096 -> 8192 MB",
    started="2026-01-01T00:00:00Z",
    ended="2026-01-01T00:01:00Z",
)


@given(attempts)
def test_row_keeps_everything_through_json(attempt):
    """What is written to the artifact is what is read from it."""
    assert from_row(json.loads(json.dumps(to_row(attempt)))) == attempt


def test_row_has_the_columns_of_the_design_first():
    """The order in which a person sees them; every field is a column once."""
    assert list(to_row(OOM)) == list(COLUMNS)
    assert ", ".join(COLUMNS[:14]) == (
        "attempt, pool, node, status, failure, reason, decision, memory_mb, gpu_memory_mb, "
        "peak_memory_mb, exit_code, started, ended, log"
    )
    assert sorted(COLUMNS) == sorted(Attempt.__dataclass_fields__)


def test_row_of_another_version_can_be_read():
    """Columns that are unknown are left aside, missing ones are nothing."""
    read = from_row({"attempt": 2.0, "flow_run_id": "r", "status": "running", "later": [1]})
    assert read == Attempt(attempt=2, flow_run_id="r", status=AttemptStatus.RUNNING)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attempt": None}, "attempt None"),
        ({"attempt": 0}, "attempt 0"),
        ({"attempt": "1"}, "attempt '1'"),
        ({"attempt": True}, "attempt True"),
        ({"status": "lost"}, "status 'lost': allowed is one of scheduled, running"),
        ({"status": None}, "status None"),
        ({"status": []}, r"status \[\]"),
        ({"flow_run_id": ""}, "flow_run_id ''"),
        ({"flow_run_id": None}, "flow_run_id None"),
        ({"memory_mb": 1.5}, "memory_mb 1.5"),
        ({"memory_mb": float("nan")}, "memory_mb nan"),
        ({"exit_code": "137"}, "exit_code '137'"),
        ({"node": 7}, "node 7"),
        ({"never_started": "no"}, "never_started 'no'"),
    ],
)
def test_bad_row_is_refused_by_name(change, message):
    """The text names the column and its value."""
    with pytest.raises(ValueError, match=message):
        from_row({**to_row(OOM), **change})


def test_budgets_count_failed_attempts_apart():
    """Lost, preempted and never started here, all else there; what did not fail, nowhere."""
    history = [
        row(1, failure="NodeLost"),
        row(2, failure="Preempted"),
        row(3, failure="ContainerRuntimeError", never_started=True),
        row(4, failure="CpuOutOfMemory"),
        row(5, failure="ProcessCrashed"),
        row(6, failure=None),
        row(7, status=AttemptStatus.SUSPENDED),
        row(8, status=AttemptStatus.RUNNING),
    ]
    assert infrastructure_retries_used(history) == 3
    assert retries_used(history) == 3
    assert retries_used([]) == infrastructure_retries_used([]) == 0


@pytest.mark.parametrize(
    ("exit_code", "signal", "status"),
    [
        pytest.param(0, None, 0, id="success"),
        pytest.param(3, None, 3, id="exit-code"),
        pytest.param(None, 9, 137, id="killed"),
        pytest.param(None, 64, 192, id="last-real-time-signal"),
        pytest.param(None, None, None, id="not-observed"),
    ],
)
def test_end_of_a_process_is_one_number_as_in_a_shell(exit_code, signal, status):
    assert exit_status(exit_code, signal) == status
    assert signal_in(status) == signal


@pytest.mark.parametrize("status", [1, 127, 128, 193, 255])
def test_number_that_no_signal_gives_stays_an_exit_code(status):
    assert signal_in(status) is None


def test_every_class_has_a_title():
    """And a class of a later version is its own title."""
    assert set(ERROR_TITLES) == {failure.value for failure in FailureClass}
    assert error_title("CpuOutOfMemory") == "OOM Killed"
    assert error_title("GpuOutOfMemory") == "CUDA Out of Memory"
    assert error_title("ImageNotFound") == "Image Not Found"
    assert error_title("OfALaterVersion") == "OfALaterVersion"
    assert error_title(None) is None


def test_report_has_the_keys_of_the_design():
    """`heteroflow retries RUN --json`, in the order of the attempts."""
    report = retries_report("run", [row(2, status=AttemptStatus.RUNNING, started="later"), OOM])
    assert report == {
        "task_id": "run",
        "retries": [
            {
                "attempt": 1,
                "node_id": "node-1",
                "error": "OOM Killed",
                "memory_mb": 4096,
                "status": "failed",
                "timestamp": "2026-01-01T00:01:00Z",
                "failure": "CpuOutOfMemory",
                "reason": "The kernel killed it.",
                "decision": "memory 4096 -> 8192 MB",
            },
            {
                "attempt": 2,
                "node_id": "node-1",
                "error": None,
                "memory_mb": None,
                "status": "running",
                "timestamp": "later",
                "failure": None,
                "reason": None,
                "decision": None,
            },
        ],
    }
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        ([], "No attempt has started yet."),
        ([OOM], "Attempt 1 failed on node-1 (pool gpu-8gb): OOM Killed."),
        (
            [OOM, row(2, failure="CpuOutOfMemory"), row(3, failure="NodeLost")],
            "Attempt 3 failed on node-1 (pool gpu-8gb): Node Lost. Before: OOM Killed (2x).",
        ),
        (
            [OOM, row(2, failure="CpuOutOfMemory")],
            "Attempt 2 failed on node-1 (pool gpu-8gb): OOM Killed. Before: OOM Killed.",
        ),
        (
            [OOM, row(2, status=AttemptStatus.COMPLETED, node="node-2", pool="gpu-24gb")],
            "Attempt 2 completed on node-2 (pool gpu-24gb), after OOM Killed.",
        ),
        (
            [row(1, status=AttemptStatus.RUNNING)],
            "Attempt 1 is running on node-1 (pool gpu-8gb).",
        ),
        (
            [OOM, row(2, status=AttemptStatus.SCHEDULED, node=None)],
            "Attempt 2 waits for its turn in pool gpu-8gb, after OOM Killed.",
        ),
        (
            [row(1, status=AttemptStatus.CANCELLED, pool=None)],
            "Attempt 1 was cancelled on node-1.",
        ),
        ([row(1, pool=None, node=None)], "Attempt 1 failed."),
    ],
)
def test_page_begins_with_one_sentence_of_how_it_stands(rows, headline):
    """A person reads this line and may stop."""
    assert to_markdown(rows).splitlines()[0] == f"**{headline}**"


def test_page_is_short_and_leaves_out_columns_without_a_word():
    """Facts, then one line per attempt."""
    page = to_markdown([OOM], {"Deployment": "train/nightly_run"})
    assert page == (
        "**Attempt 1 failed on node-1 (pool gpu-8gb): OOM Killed.**\n"
        "\n"
        "- Deployment: train/nightly\\_run\n"
        "\n"
        "| # | where | memory | what happened | then |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| 1 | on node-1 (pool gpu-8gb) | 4096 MB, peak 4090 MB |"
        " OOM Killed: The kernel killed it. | memory 4096 -> 8192 MB |\n"
    )


def test_page_shows_text_as_text():
    """Output of a job can neither break the table nor draw links and tags."""
    page = to_markdown([row(reason="a | b\n<script>[x](http://y)", failure="UnknownError")])
    assert "a \\| b \\<script>\\[x\\](http://y)" in page
    assert len(page.splitlines()) == 5


@given(st.lists(attempts, max_size=4))
def test_page_can_be_drawn_for_any_history(rows):
    """Every row is one line with as many cells as the head."""
    lines = to_markdown(rows).splitlines()
    table = [line for line in lines if line.startswith("|")]
    bars = {line.replace("\\\\", "").replace("\\|", "").count("|") for line in table}
    assert len(table) == (len(rows) + 2 if rows else 0)
    assert len(bars) <= 1


def test_planned_row_needs_no_run_yet() -> None:
    """It is written before the attempt run on the other pool is created."""
    planned = Attempt(attempt=2, flow_run_id="", status=AttemptStatus.SCHEDULED, pool="gpu-24gb")
    assert from_row(to_row(planned)) == planned


def test_what_was_cleaned_up_before_an_attempt_shows_on_the_page():
    """And takes no room where nothing was."""
    cleaned = row(2, status=AttemptStatus.RUNNING, cleanup="Cleaned up: removed a.lock (3 bytes).")
    assert "Cleaned up: removed a.lock (3 bytes)." in to_markdown([OOM, cleaned])
    assert "before it started" not in to_markdown([OOM, row(2)])


def ended(attempt: int, *, ended_task: bool = True, **values: Any) -> Attempt:
    status = AttemptStatus.CANCELLED if values.get("never_started") else AttemptStatus.FAILED
    return Attempt(
        attempt=attempt, flow_run_id="run", status=status, ended_task=ended_task, **values
    )


@pytest.mark.parametrize(
    ("rows", "attempt"),
    [
        pytest.param([], None, id="no-attempt"),
        pytest.param([ended(1, ended_task=False)], None, id="goes-on"),
        pytest.param([ended(1, ended_task=False), ended(2)], 2, id="the-last"),
        pytest.param([ended(1), ended(2, ended_task=False)], None, id="begun-again"),
        pytest.param([ended(1), ended(2, never_started=True)], 1, id="needless-one-behind-it"),
        pytest.param([ended(1), ended(2)], 2, id="begun-again-and-ended"),
        pytest.param(
            [ended(1), ended(2, never_started=True, ending="Failed")], 2, id="ends-unstarted"
        ),
        pytest.param([ended(1, never_started=True)], 1, id="ends-unstarted-at-once"),
        pytest.param(
            [ended(1, ended_task=False), ended(2, never_started=True)], 2, id="cancelled-unstarted"
        ),
    ],
)
def test_ending_row_is_that_of_the_attempt_with_which_the_task_ended(
    rows: list[Attempt], attempt: int | None
) -> None:
    found = ending_row(rows)
    assert (None if found is None else found.attempt) == attempt
