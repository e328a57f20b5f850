"""Exceptions whose constructors want more than pickle gives them arrive as what they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow, task

from prefect_heteroflow import HeteroTaskError, HeteroTaskRunner
from tests.support.conformance_tasks import note
from tests.support.prefect_server import PrefectServer
from tests.support.runner_bed import flows_run_here


@pytest.fixture(autouse=True)
def home(server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows run in this process, and nothing waits 30 s for a retry."""
    monkeypatch.setenv("PREFECT_INTEGRATIONS_HETEROFLOW_RETRY_DELAY", "0")
    monkeypatch.setenv("PREFECT_INTEGRATIONS_HETEROFLOW_RETRY_JITTER", "0")
    with flows_run_here(server):
        yield


def run_flow(body: Callable[[], Any]) -> Any:
    return flow(task_runner=HeteroTaskRunner())(body)()


class KeywordError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class LockedError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code, self.lock = code, threading.Lock()


class TwoPartError(Exception):
    """Pickle passes one argument."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(f"{text} {number}")


@task
def get(status: int, folder: str | None = None) -> None:
    if folder is not None:
        note(folder, "body")
    request = httpx.Request("GET", "http://host/")
    httpx.Response(status, request=request).raise_for_status()


def test_http_error_is_caught_in_the_flow_with_its_response() -> None:
    def body() -> Any:
        try:
            get.submit(404).result()
        except httpx.HTTPStatusError as error:
            return error, error.response.status_code, str(error.request.url)

    error, *facts = run_flow(body)
    assert facts == [404, "http://host/"]
    assert isinstance(error, HeteroTaskError)
    assert "raise_for_status" in error.remote_traceback


def retry_handler(task: Any, task_run: Any, state: Any) -> bool:
    """From Prefect's documentation."""
    try:
        state.result()
    except httpx.HTTPStatusError as exc:
        do_not_retry_on_these_codes = [401, 404]
        return exc.response.status_code not in do_not_retry_on_these_codes
    except httpx.ConnectError:
        return False
    return True


@pytest.mark.parametrize(("status", "bodies"), [(404, 1), (503, 3)], ids=["hit", "near miss"])
def test_retry_condition_of_the_documentation_reads_the_status(
    status: int, bodies: int, tmp_path: Path
) -> None:
    """404 is not worth a retry, 503 is."""
    asking = get.with_options(retries=2, retry_delay_seconds=0, retry_condition_fn=retry_handler)
    run_flow(lambda: asking.submit(status, str(tmp_path)).wait())
    assert (tmp_path / "notes").read_text().split() == ["body"] * bodies


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: KeywordError(code=5), KeywordError, "code 5"),
        (lambda: TwoPartError("one", 1), TwoPartError, "one 1"),
    ],
    ids=["keyword", "two"],
)
def test_exception_whose_constructor_pickle_cannot_call_keeps_its_type(
    make: Callable[[], Exception],
    kind: type[Exception],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And nothing is missing."""

    @task
    def fail() -> None:
        raise make()

    error = run_flow(lambda: fail.submit().result(raise_on_failure=False))
    assert isinstance(error, kind)
    assert isinstance(error, HeteroTaskError)
    assert (str(error), type(error.cause)) == (text, kind)
    assert "cannot be sent" not in caplog.text


def test_attribute_that_cannot_travel_is_named_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @task
    def fail() -> None:
        raise LockedError(code=5)

    error = run_flow(lambda: fail.submit().result(raise_on_failure=False))
    assert isinstance(error, LockedError)
    assert (error.code, hasattr(error, "lock")) == (5, False)
    said = [text for text in caplog.messages if "LockedError.lock" in text]
    assert len(said) == 1


def test_keyword_exception_that_another_was_raised_from_arrives_with_it() -> None:
    @task
    def fail() -> None:
        try:
            raise KeywordError(code=5)
        except KeywordError as error:
            raise ValueError("near") from error

    error = run_flow(lambda: fail.submit().result(raise_on_failure=False))
    assert isinstance(error, ValueError)
    assert (type(error.__cause__), str(error.__cause__)) == (KeywordError, "code 5")


@pytest.mark.parametrize(
    ("kind", "bodies"), [(TimeoutError, 2), (ValueError, 1)], ids=["hit", "near miss"]
)
def test_transient_type_is_retried_by_the_policy_and_its_words_in_another_type_are_not(
    kind: type[Exception], bodies: int, tmp_path: Path
) -> None:
    """For a task that says nothing of retries."""

    @task
    def fetch(folder: str) -> None:
        if note(folder, "body") == 1:
            raise kind("Read timed out")

    run_flow(lambda: fetch.submit(str(tmp_path)).wait())
    assert (tmp_path / "notes").read_text().split() == ["body"] * bodies
