"""Stored results that cannot be read any more: the task that made one runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State

from prefect_heteroflow import HeteroTaskRunner, LostResultError, requires
from prefect_heteroflow.task_runner.stored_results import ResultRecordMetadata
from tests.support import wait_until
from tests.support.conformance_tasks import note
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here, task_runs_of
from tests.support.workers import Api

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, and nothing waits 30 s for a retry."""
    monkeypatch.setenv(f"{PREFIX}RETRY_DELAY", "0")
    monkeypatch.setenv(f"{PREFIX}RETRY_JITTER", "0")
    with flows_run_here(server):
        yield


def run_flow(body: Callable[[], Any]) -> Any:
    """What the body returns, run as a flow with our runner."""
    return flow(task_runner=HeteroTaskRunner(max_workers=2))(body)()


def counted(folder: Path, name: str) -> int:
    """How often the body of that name ran."""
    notes = folder / "notes"
    return notes.read_text().splitlines().count(name) if notes.exists() else 0


def stored_in(folder: Path) -> Path:
    return folder / "results"


def lose(folder: Path) -> None:
    """Delete all results, not the keys of the cache."""
    for path in _files(folder):
        path.unlink()


def _files(folder: Path) -> list[Path]:
    files = [path for path in (folder / "results").rglob("*") if path.is_file()]
    assert files
    return files


def spoil(folder: Path) -> None:
    """The results are there, and nothing can load them."""
    for path in _files(folder):
        path.write_bytes(b"not what was stored")


# ---- results behind keys that lie elsewhere ------------------------------------------------------


def cached(folder: Path, name: str, *, is_async: bool = False) -> Any:
    """A task whose cache keys lie apart from its results."""
    options: Any = {
        "name": name,
        "persist_result": True,
        "result_storage": stored_in(folder),
        "cache_policy": INPUTS.configure(key_storage=folder / "keys"),
    }

    def body(number: int) -> int:
        return 10 * number + note(folder, name)

    async def async_body(number: int) -> int:
        return 10 * number + note(folder, name)

    return task(async_body if is_async else body, **options)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_lost_result_of_a_cache_hit_is_made_again_and_its_consumer_completes(
    tmp_path: Path, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Stock Prefect fails the producer: the key says that there is a result."""
    make = cached(tmp_path, "make", is_async=is_async)
    double = task(lambda number: 2 * number, name="double")

    def body() -> tuple[str, int]:
        made = make.submit(1)
        value = double.submit(made).result()
        return made.state.name, value

    assert run_flow(body) == ("Completed", 22)
    lose(tmp_path)
    assert run_flow(body) == ("Completed", 24)
    assert "is lost" in caplog.text
    # Once per loss: now it is there again.
    assert run_flow(body) == ("Cached", 24)
    assert counted(tmp_path, "make") == 2


def test_cached_result_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """The near miss."""
    make = cached(tmp_path, "make")

    def body() -> tuple[int, str]:
        future = make.submit(1)
        return future.result(), future.state.name

    assert run_flow(body) == (11, "Completed")
    assert run_flow(body) == (11, "Cached")
    assert counted(tmp_path, "make") == 1


def test_producer_whose_own_upstream_is_lost_too_gets_it_again(tmp_path: Path) -> None:
    """All along the chain, each once."""
    first, second = cached(tmp_path, "first"), cached(tmp_path, "second")

    def body() -> int:
        return second.submit(first.submit(1)).result()

    assert run_flow(body) == 111
    lose(tmp_path)
    # The second has another input now, which is no loss of its own.
    assert run_flow(body) == 122
    assert run_flow(body) == 122
    assert (counted(tmp_path, "first"), counted(tmp_path, "second")) == (2, 2)


def test_cached_result_that_cannot_be_loaded_fails_its_task_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not lost: making it again would hide that something is wrong."""
    make = cached(tmp_path, "make")
    assert run_flow(lambda: make.submit(1).result()) == 11
    spoil(tmp_path)

    def body() -> str:
        future = make.submit(1)
        future.wait()
        return future.state.name

    with requires(max_retries=0):
        assert run_flow(body) == "Failed"
    assert "is there but cannot be loaded" in caplog.text
    assert counted(tmp_path, "make") == 1


# ---- results behind states that came from the API ------------------------------------------------


def from_api(future: Any) -> State[Any]:
    """The state as the API has it: with a reference to the result, without its value."""
    future.wait()
    with get_client(sync_client=True) as client:

        def completed() -> State[Any] | None:
            state = client.read_task_run(future.task_run_id).state
            return state if state is not None and state.is_completed() else None

        state = wait_until(completed, what="completed task run")
    assert isinstance(state.data, ResultRecordMetadata)
    return state


def stored(folder: Path, name: str = "make") -> Any:
    """A task whose result is stored."""

    @task(name=name, persist_result=True, result_storage=stored_in(folder))
    def body(number: int) -> int:
        return 10 * number + note(folder, name)

    return body


@task
def add(left: Any, right: int) -> Any:
    return (sum(left) if isinstance(left, list) else left) + right


def run_id() -> Any:
    from prefect.runtime import flow_run

    return flow_run.id


def test_lost_argument_is_made_again_as_an_attempt_of_its_producer(
    tmp_path: Path, api: Api
) -> None:
    """The same task run runs once more; its page shows both attempts."""
    make = stored(tmp_path)

    def body() -> tuple[int, Any, Any]:
        future = make.submit(1)
        state = from_api(future)
        lose(tmp_path)
        return add.submit(state, 100).result(), future.task_run_id, run_id()

    value, task_run_id, flow_run_id = run_flow(body)
    assert value == 112
    assert counted(tmp_path, "make") == 2

    def counts() -> list[int] | None:
        found = {run.id: run for run in task_runs_of(flow_run_id, count=2)}
        return [found[task_run_id].run_count] if found[task_run_id].run_count == 2 else None

    wait_until(counts, what="the second run of the producer")
    first, second = api.rows(str(task_run_id))
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert "is lost" in first["decision"]


def test_argument_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """The near miss."""
    make = stored(tmp_path)
    assert run_flow(lambda: add.submit(from_api(make.submit(1)), 100).result()) == 111
    assert counted(tmp_path, "make") == 1


def test_two_consumers_of_one_lost_result_make_it_again_once(tmp_path: Path) -> None:
    """Whoever comes second reads what the first has stored."""
    make = stored(tmp_path)

    def body() -> list[int]:
        state = from_api(make.submit(1))
        lose(tmp_path)
        return [future.result() for future in [add.submit([state], n) for n in (100, 200)]]

    assert run_flow(body) == [112, 212]
    assert counted(tmp_path, "make") == 2


def test_result_lost_twice_is_made_again_twice(tmp_path: Path) -> None:
    """Once per loss."""
    make = stored(tmp_path)

    def body() -> list[int]:
        state = from_api(make.submit(1))
        values = []
        for _ in range(2):
            lose(tmp_path)
            values.append(add.submit(state, 100).result())
        return values

    assert run_flow(body) == [112, 113]


def test_lost_result_that_is_only_waited_for_is_not_made_again(tmp_path: Path) -> None:
    """Nobody needs its value."""
    make = stored(tmp_path)

    def body() -> int:
        state = from_api(make.submit(1))
        lose(tmp_path)
        return add.submit(1, 2, wait_for=[state]).result()

    assert run_flow(body) == 3
    assert counted(tmp_path, "make") == 1


def test_result_in_memory_needs_no_storage(tmp_path: Path) -> None:
    """A future of the flow has its value, however it is asked for."""
    make = stored(tmp_path)

    def body() -> tuple[int, int, int]:
        future = make.submit(1)
        from_api(future)
        lose(tmp_path)
        return future.state.result(), future.result(), add.submit(future, 100).result()

    assert run_flow(body) == (11, 11, 111)


def test_producer_that_is_killed_while_it_runs_again_is_retried(tmp_path: Path) -> None:
    """Its retries are those of any attempt."""
    storage = stored_in(tmp_path)

    @task(persist_result=True, result_storage=storage, retries=1)
    def make() -> int:
        import os
        import signal

        count = note(tmp_path, "make")
        if count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def body() -> int:
        state = from_api(make.submit())
        lose(tmp_path)
        return add.submit(state, 100).result()

    assert run_flow(body) == 103


def error_of(body: Callable[[], Any]) -> str:
    with pytest.raises(LostResultError) as caught:
        run_flow(body)
    return str(caught.value)


def test_producer_that_fails_when_it_runs_again_is_named_by_its_consumers_error(
    tmp_path: Path,
) -> None:
    """Nothing is tried without end."""

    @task(persist_result=True, result_storage=stored_in(tmp_path))
    def make() -> int:
        if note(tmp_path, "make") > 1:
            raise RuntimeError("the source is gone")
        return 1

    def body() -> int:
        state = from_api(make.submit())
        lose(tmp_path)
        return add.submit(state, 100).result()

    text = error_of(body)
    assert "is lost" in text
    assert "ran again and ended as Failed" in text
    assert "the source is gone" in text
    assert counted(tmp_path, "make") == 2


def test_lost_result_of_another_flow_run_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Its arguments are not known here."""
    make = stored(tmp_path)
    state = run_flow(lambda: from_api(make.submit(1)))
    lose(tmp_path)
    text = error_of(lambda: add.submit(state, 100).result())
    assert str(state.state_details.task_run_id) in text
    assert "Run the flow that made it again" in text


def test_result_that_cannot_be_loaded_is_an_error_and_is_not_made_again(tmp_path: Path) -> None:
    """The file is there; another attempt would hide what is wrong with it."""
    make = stored(tmp_path)

    def body() -> int:
        state = from_api(make.submit(1))
        spoil(tmp_path)
        return add.submit(state, 100).result()

    assert "is there, but cannot be loaded" in error_of(body)
    assert counted(tmp_path, "make") == 1
