"""What Prefect defines is the same under `ThreadPoolTaskRunner` and under ours."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.runtime import flow_run as current_flow_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from prefect_heteroflow import HeteroTaskRunner
from tests.support import wait_until
from tests.support.conformance_flows import CASES
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of

# Task runs of a case, where there are more than one. The server hears of them one by one.
RUNS = {
    "async": 2,
    "cached_by_function": 2,
    "cached_by_inputs": 3,
    "cached_by_source": 3,
    "cached_callables": 12,
    "changed_options": 4,
    "closure": 2,
    "default_arguments": 4,
    "dependencies": 3,
    "exceptions_in_arguments": 2,
    "hooks": 2,
    "hooks_see_the_task": 2,
    "map": 3,
    "nested": 5,
    "plain_exception": 2,
    "returned_states": 3,
    "rollback": 2,
    "timeout": 3,
    "uncached": 2,
    "upstream_failed": 3,
    "values": 3,
}
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(autouse=True)
def home(server: PrefectServer) -> Iterator[None]:
    with flows_run_here(server):
        yield


def observed(name: str, runner: TaskRunner[Any], folder: Path) -> dict[str, Any]:
    """All that can be seen of one case: values, notes of bodies and hooks, task runs, logs."""
    folder.mkdir()
    case = CASES[name]

    @flow(name=f"conformance-{name}", task_runner=runner)
    def conformance(count: int = 1) -> Any:
        return case(str(folder)), current_flow_run.id

    value, flow_run_id = conformance()
    runs = task_runs_of(flow_run_id, count=RUNS.get(name, 1))
    names = {run.id: run.name.split("-")[0] for run in runs}
    notes = folder / "notes"
    return {
        "value": _without_ids(value),
        "notes": notes.read_text().splitlines() if notes.exists() else [],
        "runs": sorted(_run(run, names) for run in runs),
        "logs": _logs(flow_run_id) if name == "logs" else None,
    }


def _without_ids(value: Any) -> str:
    return _ID.sub("<id>", repr(value))


def _edges(inputs: dict[str, Any]) -> dict[str, Any]:
    """What tasks got from others, and the tasks within which they were submitted.

    Prefect takes one that an argument comes from for such a task too while it still runs: with
    either runner that is a matter of moments.
    """
    given = [
        source for name, sources in inputs.items() if name != "__parents__" for source in sources
    ]
    parents = [it for it in inputs.get("__parents__", ()) if it not in given]
    edges = {name: sources for name, sources in inputs.items() if name != "__parents__"}
    return {**edges, "__parents__": parents} if parents else edges


def _run(run: Any, names: dict[Any, str]) -> tuple[Any, ...]:
    """Everything of a task run but its ids and times."""
    edges = sorted(
        (parameter, sorted(names.get(getattr(source, "id", None), "?") for source in sources))
        for parameter, sources in _edges(run.task_inputs).items()
    )
    return (
        names[run.id],
        run.state.name,
        _without_ids(run.state.message),
        run.run_count,
        str(edges),
        sorted(run.tags),
        str(run.empirical_policy.retries),
        run.task_version is None,
    )


def _logs(flow_run_id: Any) -> list[str]:
    with get_client(sync_client=True) as client:

        def read() -> list[str]:
            found = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])))
            ours = (log.message for log in found if log.task_run_id)
            return sorted(message for message in ours if "hello" in message)

        return wait_until(lambda: found if len(found := read()) >= 2 else None, what="two logs")


@pytest.mark.parametrize("name", CASES)
def test_case_is_the_same_as_with_threads(name: str, tmp_path: Path, server: PrefectServer) -> None:
    """Values, states with their messages, run counts, hooks, cache hits and dependency edges."""
    expected = observed(name, ThreadPoolTaskRunner(), tmp_path / "case")
    (tmp_path / "case").rename(tmp_path / "threads")
    # The same folder for both: it is an input, and stands in cache keys. So the cache goes.
    shutil.rmtree(server.root / "results", ignore_errors=True)
    ours = observed(name, HeteroTaskRunner(), tmp_path / "case")
    assert ours == expected
