"""A worker that is paused or cut off between two steps, while another one goes on with its run.

When it is back it must not make its next step over what came after it: the run would run twice.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.counting_proxy import CountingProxy, Request
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, State, Worker

PREFIX = "PREFECT_INTEGRATIONS_HETEROFLOW_"
QUICK = {
    f"{PREFIX}LOST_CONTACT_TIMEOUT": "15",
    f"{PREFIX}NODE_LIVENESS_SECONDS": "20",
    "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",  # three of them missing: `OFFLINE` for the server
}
SUBMITTING = "POST /flow_runs/{id}/set_state (Submitting)"
NAMING = "PATCH /flow_runs/{id}/labels"


@dataclass(frozen=True)
class Case:
    """The first worker is stopped or cut off when the server has taken a request of it."""

    id: str
    how: str
    """`paused` (SIGSTOP) or `cut off` (from the API alone)."""
    step: str
    fails: bool = False
    """Attempt 1 ends soon, by an error that is retried."""
    is_named: bool = False
    """The name of the first worker was stored with the run before; else it may or may not be."""


CASES = [
    Case("paused-when-it-had-taken-the-run", "paused", SUBMITTING),
    Case("cut-off-when-it-had-taken-the-run", "cut off", SUBMITTING),
    Case("cut-off-when-its-name-was-known", "cut off", SUBMITTING, is_named=True),
    Case("paused-when-it-had-decided", "paused", "PATCH /artifacts/{id}", fails=True),
]


class Interruption:
    """Keeps a worker from its next step, from a certain request until it is let go on."""

    def __init__(self, case: Case, run: str) -> None:
        self.worker: Worker | None = None
        self.proxy: CountingProxy | None = None
        self.began = threading.Event()
        self._case, self._run = case, run
        self._is_named = False

    def before(self, request: Request) -> None:
        """Called with each request: the run is not taken sooner than the case wants."""
        if self._case.is_named and request.kind == SUBMITTING and not self._is_named:
            raise ConnectionAbortedError  # core tries again

    def after(self, request: Request) -> None:
        """Called with each request whose answer has come."""
        if request.kind == NAMING and request.mentions(self._run):
            self._is_named = True
        wanted = request.kind == self._case.step and request.mentions(self._run)
        if not wanted or self.began.is_set():
            return
        assert self.worker is not None
        assert self.proxy is not None
        if self._case.how == "paused":
            os.kill(self.worker.pid, signal.SIGSTOP)
        else:
            self.proxy.is_cut = True
        self.began.set()

    def end(self) -> None:
        """The worker goes on."""
        assert self.worker is not None
        assert self.proxy is not None
        self.proxy.is_cut = False
        if self._case.how == "paused":
            os.kill(self.worker.pid, signal.SIGCONT)


@dataclass
class Outcome:
    """What became of the run of a case."""

    end: State
    states: list[State]
    rows: list[dict[str, object]]
    executed: list[str]
    """Number and node of each attempt that ran, in their order."""
    log: str
    """Of the worker that was interrupted."""


def play(case: Case, server: PrefectServer, api: Api, root: Path) -> Outcome:
    """One run, which the second worker goes on with while the first one is interrupted."""
    root.mkdir()
    executed, go_on = root / "executed", root / "go-on"
    fails = f'echo 1 first >> {executed}; echo "ConnectTimeout: timed out"; exit 1'
    goes_on = f"echo $HETEROFLOW_ATTEMPT $HETEROFLOW_NODE >> {executed}; "
    goes_on += f"until [ -e {go_on} ]; do sleep 0.2; done"
    first = f"if [ $HETEROFLOW_ATTEMPT = 1 ]; then {fails}; fi; " if case.fails else ""
    command = f"sh -c '{first}{goes_on}'"
    variables = {"memory_mb": 64, "command": command, "retry_delay": 0, "retry_jitter": 0}
    name = f"over-{case.id}"
    api.create_pool(name, "heteroflow-process")
    run = api.submit(api.deploy("sleepy", name, name=name, job_variables=variables))
    interruption = Interruption(case, run)

    def nodes_of_runs() -> list[str]:
        return executed.read_text().split()[1::2] if executed.exists() else []

    with CountingProxy(
        port=server.port, before=interruption.before, after=interruption.after
    ) as proxy:
        through = {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.port}/api", **QUICK}
        one = Worker(
            server, root, pool=name, node=f"{name}-1", memory_mb=512, gpus="none", settings=through
        )
        two = Worker(
            server,
            root,
            pool=name,
            node=f"{name}-2",
            memory_mb=512,
            gpus="none",
            settings=QUICK,
            other_machine=True,
        )
        interruption.worker, interruption.proxy = one, proxy
        try:
            one.start(wait=False)
            assert interruption.began.wait(60), f"{case.id}: it never sent {case.step}"
            two.start()
            wait_until(
                lambda: two.node in nodes_of_runs(),
                what=f"attempt of the second worker of {case.id}",
                timeout_seconds=150,
            )
            seen = len(one.log())
            interruption.end()
            wait_until(
                lambda: "gone on with" in one.log()[seen:] or len(nodes_of_runs()) > 2,
                what=f"next step of the first worker of {case.id}",
                timeout_seconds=90,
            )
            go_on.touch()
            end = api.wait_end(run)
        except Exception:
            print(f"--- {case.id}:\n{one.log()[-6000:]}\n---\n{two.log()[-6000:]}")
            raise
        finally:
            interruption.end()
            go_on.touch()
            one.stop()
            two.stop()
    return Outcome(
        end=end,
        states=api.states(run),
        rows=api.rows(run),
        executed=nodes_of_runs(),
        log=one.log(),
    )


@pytest.fixture(scope="module")
def playing(
    server: PrefectServer, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All cases side by side: they wait for time-outs most of the time."""
    root = tmp_path_factory.mktemp("overtaken")
    with ThreadPoolExecutor(len(CASES)) as threads:
        yield {case.id: threads.submit(play, case, server, api, root / case.id) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_interrupted_worker_does_not_start_what_another_one_runs(
    case: Case, playing: dict[str, Future[Outcome]]
) -> None:
    outcome = playing[case.id].result()
    print(outcome)
    assert [state.name for state in outcome.states if state.is_final] == ["Completed"]
    ran = [f"over-{case.id}-2"]
    assert outcome.executed == (["first", *ran] if case.fails else ran)
    assert outcome.rows[-1]["status"] == "completed"
    assert outcome.rows[-1]["node"] == ran[0]
