"""A worker that is killed at any one of its steps: the run goes on by itself, and ends once.

A step is a request that changes something about the run. The worker is killed by SIGKILL when the
server has taken it and the answer is not back yet.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support import wait_until
from tests.support.counting_proxy import CountingProxy, Request
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, State, Worker

SIDE_BY_SIDE = 3
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
RUN = "/flow_runs/{id}"
PENDING, SUBMITTING, RUNNING, AWAITING_RETRY, ESCALATED, COMPLETED = (
    f"POST {RUN}/set_state ({name})"
    for name in ("Pending", "Submitting", "Running", "AwaitingRetry", "Escalated", "Completed")
)
STARTED = f"PATCH {RUN} (infrastructure_pid)"
FIRST_ROW, ROWS = "POST /artifacts/", "PATCH /artifacts/{id}"
PARENT_TASK_RUN, ATTEMPT_RUN = "POST /task_runs/", "POST /flow_runs/"


@dataclass(frozen=True)
class Story:
    """What happens to the run if nobody is killed."""

    name: str
    error: str
    job_variables: Mapping[str, object] = field(hash=False)


TRANSIENT = "requests.exceptions.ConnectTimeout: timed out"
TOO_MUCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
IN_PLACE = Story("in-place", TRANSIENT, {})
BY_THE_POOL = Story("by-the-pool", TRANSIENT, {"retry_delay": 3})
OTHER_POOL = Story("other-pool", TOO_MUCH, {"gpu_count": 1})


@dataclass(frozen=True)
class Case:
    """The worker is killed when the server has taken a request and before it hears so."""

    id: str
    story: Story
    step: str
    """Kind of the request."""
    nth: int = 1
    """Which one of its kind."""
    attempts: int = 2
    """How many there are in the end: one that may have run counts."""


CASES = [
    Case("the-run-is-taken", IN_PLACE, PENDING),
    Case("it-is-submitting", IN_PLACE, SUBMITTING),
    Case("attempt-1-is-started", IN_PLACE, STARTED),
    Case("attempt-1-runs", IN_PLACE, RUNNING),
    Case("attempt-1-has-a-row", IN_PLACE, FIRST_ROW),
    Case("the-decision-is-written", IN_PLACE, ROWS),
    Case("the-summary-is-written", IN_PLACE, FIRST_ROW, 2),
    Case("the-retry-is-told", IN_PLACE, AWAITING_RETRY),
    Case("the-run-is-taken-in-place", IN_PLACE, PENDING, 2),
    Case("it-is-submitting-in-place", IN_PLACE, SUBMITTING, 2, attempts=3),
    Case("attempt-2-is-started", IN_PLACE, STARTED, 2, attempts=3),
    Case("attempt-2-runs", IN_PLACE, RUNNING, 2, attempts=3),
    Case("attempt-2-has-a-row", IN_PLACE, ROWS, 2, attempts=3),
    Case("the-end-is-written", IN_PLACE, ROWS, 3),
    Case("the-end-is-told", IN_PLACE, COMPLETED),
    Case("the-retry-waits-in-the-pool", BY_THE_POOL, AWAITING_RETRY),
    Case("the-retry-is-taken", BY_THE_POOL, PENDING, 2),
    Case("the-retry-is-submitting", BY_THE_POOL, SUBMITTING, 2, attempts=3),
    Case("the-retry-is-started", BY_THE_POOL, STARTED, 2, attempts=3),
    Case("the-move-is-written", OTHER_POOL, ROWS),
    Case("the-run-is-parked", OTHER_POOL, ESCALATED),
    Case("the-attempt-run-has-a-parent", OTHER_POOL, PARENT_TASK_RUN),
    Case("the-attempt-run-is-created", OTHER_POOL, ATTEMPT_RUN),
]


@dataclass
class Outcome:
    """What became of the run of a case."""

    was_killed: bool
    end: State | None
    states: list[State]
    rows: list[dict[str, object]]
    executed: list[str]
    """The number of each attempt whose command ran, in their order."""
    left_behind: list[int]
    """Processes of the run."""


class Assassin:
    """Kills a worker once the server has taken one of its requests about a run."""

    def __init__(self, case: Case, run: str) -> None:
        self.worker: Worker | None = None
        self.was_killed = False
        self._case, self._run = case, run
        self._seen = 0
        self._lock = threading.Lock()

    def after(self, request: Request) -> None:
        """Called with each request whose answer has come."""
        if request.kind != self._case.step or not request.mentions(self._run):
            return
        with self._lock:
            self._seen += 1
            if self._seen != self._case.nth or self.was_killed:
                return
            self.was_killed = True
        assert self.worker is not None
        self.worker.kill()
        raise ConnectionAbortedError


def play(case: Case, server: PrefectServer, api: Api, root: Path) -> Outcome:
    """One run, whose worker is killed at the step and then started anew."""
    name, executed = f"crash-{case.id}", root / "executed"
    root.mkdir()
    command = (
        f"sh -c 'echo $HETEROFLOW_ATTEMPT >> {executed}; "
        f'[ $HETEROFLOW_ATTEMPT -gt 1 ] || (echo "{case.story.error}"; exit 1)\''
    )
    variables = {"memory_mb": 64, **case.story.job_variables, "command": command}
    api.create_pool(name, "heteroflow-process")
    run = api.submit(api.deploy("sleepy", name, name=name, job_variables=variables))
    assassin = Assassin(case, run)
    end: State | None = None
    with CountingProxy(port=server.port, after=assassin.after) as proxy:
        through = {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.port}/api"}
        worker = Worker(
            server, root, pool=name, node=name, memory_mb=512, gpus="8192", settings=through
        )
        assassin.worker = worker
        worker.start(wait=False)
        try:
            wait_until(
                lambda: assassin.was_killed or api.run(run)["state"]["type"] in FINAL,
                what=f"{case.step} of {case.id}",
                timeout_seconds=90,
            )
            if assassin.was_killed:
                worker.start(wait=False)
            end = api.wait_end(run)
        except Exception as error:  # told by the test of the case, the others go on
            print(f"--- {case.id}: {error}\n{worker.log()[-6000:]}")
        finally:
            worker.stop()
    return Outcome(
        was_killed=assassin.was_killed,
        end=end,
        states=api.states(run),
        rows=api.rows(run),
        executed=executed.read_text().split() if executed.exists() else [],
        left_behind=processes_of(run),
    )


def processes_of(run: str) -> list[int]:
    """Processes that were started for attempts of the run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HETEROFLOW_TASK_ID") == run:
                found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def other_nodes(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Where runs go that leave their node: never to that of another case, which ends with it."""
    with ExitStack() as stack:
        for name, gpus in (("crash-spare", "none"), ("crash-large", "81920")):
            api.create_pool(name, "heteroflow-process")
            root = tmp_path_factory.mktemp(name)
            node = Worker(server, root, pool=name, node=name, memory_mb=256, gpus=gpus)
            stack.enter_context(node)
        yield


@pytest.fixture(scope="module")
def playing(
    server: PrefectServer,
    api: Api,
    other_nodes: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Outcome]]]:
    """All cases, a few at a time: most of their time is the start of workers."""
    root = tmp_path_factory.mktemp("crash-points")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        yield {case.id: threads.submit(play, case, server, api, root / case.id) for case in CASES}


@pytest.fixture(params=CASES, ids=lambda case: case.id)
def played(
    request: pytest.FixtureRequest, playing: dict[str, Future[Outcome]]
) -> tuple[Case, Outcome]:
    """A case and what became of its run."""
    case: Case = request.param
    outcome = playing[case.id].result()
    print(outcome)
    assert outcome.was_killed, f"the worker never sent {case.step} no. {case.nth}"
    return case, outcome


def test_run_goes_on_by_itself_and_ends_once(played: tuple[Case, Outcome]) -> None:
    _, outcome = played
    assert [state.name for state in outcome.states if state.is_final] == ["Completed"]


def test_each_attempt_has_one_row_and_ran_once(played: tuple[Case, Outcome]) -> None:
    case, outcome = played
    numbers = [row["attempt"] for row in outcome.rows]
    assert numbers == list(range(1, case.attempts + 1))
    assert [row["status"] for row in outcome.rows] == ["failed"] * (len(numbers) - 1) + [
        "completed"
    ]
    assert len(outcome.executed) == len(set(outcome.executed))
    assert {int(number) for number in outcome.executed} <= set(numbers)


def test_nothing_of_it_is_left(played: tuple[Case, Outcome]) -> None:
    assert played[1].left_behind == []
