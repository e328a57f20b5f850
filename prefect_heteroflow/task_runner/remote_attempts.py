"""Attempts on other pools: the body goes through the flow's result storage to a run of ours there.

The run is a subflow of the task run, so the task's page shows it. It is not retried by its own
worker: what follows is decided in the flow's process, as for attempts at home.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import cloudpickle
import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging.loggers import get_run_logger
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow import environment
from prefect_heteroflow.core.attempts import Attempt, signal_in
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.orchestration.insisting import is_passing
from prefect_heteroflow.task_runner import contexts
from prefect_heteroflow.task_runner.attempts_elsewhere import TaskCall, TaskOutcome
from prefect_heteroflow.task_runner.bodies_sent import Body, pack_body
from prefect_heteroflow.task_runner.exceptions_sent import WithExceptions
from prefect_heteroflow.task_runner.known_classes import load_at_home
from prefect_heteroflow.task_runner.remote_body import RemoteCall
from prefect_heteroflow.task_runner.remote_runs import (
    cancel_run,
    create_run,
    is_conflict,
    read_run,
    rows_of,
    was_given_up,
)
from prefect_heteroflow.task_runner.sealed_storage import (
    SealBroken,
    SealedStorage,
    StorageNotShared,
    new_seal,
    storage_of,
)
from prefect_heteroflow.task_runner.sign_of_life import SignOfLife
from prefect_heteroflow.task_runner.wait_for_node import WaitForNode
from prefect_heteroflow.task_runner.waiting_out import wait_out

if TYPE_CHECKING:
    from prefect import Task

    from prefect_heteroflow.core.policy import Retry
    from prefect_heteroflow.core.resources import Cluster
    from prefect_heteroflow.task_runner.frames import Reply

_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.25, 5.0
_PARENT_WAIT_SECONDS = 60.0
"""After that the run is created without its place under the task run; its label names it still."""
_ENDED_BECAUSE = {
    "cancelled": "Its task was cancelled.",
    "timed_out": "Its task ran out of time.",
    "no_node": "No node of its pool took runs while it waited.",
}


class OtherPools:
    """Runs attempts of tasks on the pools that `route` names.

    Args:
        read_cluster: The nodes as they are now; it may raise `httpx.HTTPError`.
        lost_contact_timeout: Seconds for which no node of a pool may take runs while an attempt
            waits there.
    """

    def __init__(self, read_cluster: Callable[[], Cluster], *, lost_contact_timeout: float) -> None:
        self._read_cluster = read_cluster
        self._lost_contact_timeout = lost_contact_timeout
        self._cancelled = threading.Event()
        self._sign = SignOfLife()

    def cancel(self) -> None:
        """End every attempt that runs."""
        self._cancelled.set()

    def run(self, call: TaskCall, decision: Retry) -> TaskOutcome:
        """Run the attempt where the decision says, and wait for its end.

        Raises:
            BodyNotPortable: The body cannot be sent to another process at all.
        """
        pool = decision.place.pool
        seal, key = new_seal(), f"heteroflow-{call.context.task_run.id}-{call.attempt}"
        call_key, reply_key = f"{key}-call", f"{key}-reply"
        try:
            storage, address = storage_of(call.context.result_store)
            packed = _packed(call)
            storage.put(call_key, packed, seal)
        except StorageNotShared as error:
            return _outcome(pool, kind="refused", text=str(error))
        except Exception as error:
            text = f"its arguments cannot be pickled: {type(error).__name__}: {error}"
            return _outcome(pool, kind="unportable", text=text)
        parameters = {
            "call_key": call_key,
            "reply_key": reply_key,
            "storage": address,
            "seal": seal,
        }
        try:
            with self._sign:
                run = self._create(call, decision, parameters)
                if run is None:
                    return _outcome(pool, kind="cancelled")
                logger = get_run_logger(call.context)
                logger.info(
                    "Attempt %d runs on pool %s as flow run '%s'.", call.attempt, pool, run.name
                )
                waiting = WaitForNode(
                    pool,
                    self._read_cluster,
                    timeout_seconds=self._lost_contact_timeout,
                    resources=decision.resources,
                    say=lambda why: logger.warning("Attempt %d: %s.", call.attempt, why),
                )
                ended, why = self._wait(run, call.timeout_seconds, waiting)
            rows = wait_out(
                lambda: run_coro_as_sync(rows_of(run.id)), is_over=self._cancelled.is_set
            )
            outcome = _judge(pool, ended, why, rows, _reply(storage, reply_key, seal, ended))
            return replace(outcome, sent_bytes=len(packed))
        except (StorageNotShared, SealBroken) as error:
            return _outcome(pool, kind="unportable", text=str(error))
        except httpx.HTTPError as error:
            text = f"the attempt on pool {pool} could not be created: {error}"
            evidence = Evidence(phase="start", engine_error=text)
            return _outcome(pool, kind="died", text=text, evidence=evidence)
        finally:
            storage.forget(call_key, reply_key)

    def _create(self, call: TaskCall, decision: Retry, given: dict[str, Any]) -> FlowRun | None:
        """The run, told again while the API is away; `None` if it was cancelled before.

        Prefect tells of task runs by events: a busy server may learn of the parent only later, and
        refuses the run until then.
        """
        pause_seconds, parent_until = _FIRST_POLL_SECONDS, time.monotonic() + _PARENT_WAIT_SECONDS
        while not self._cancelled.is_set():
            has_parent = time.monotonic() < parent_until
            try:
                creating = create_run(
                    call, decision, given, sign=self._sign.name, has_parent=has_parent
                )
                run: FlowRun = run_coro_as_sync(creating)
                return run
            except httpx.HTTPError as error:
                if not is_passing(error) and not (has_parent and is_conflict(error)):
                    raise
            self._cancelled.wait(pause_seconds)
            pause_seconds = min(_LONGEST_POLL_SECONDS, 1.5 * pause_seconds)
        return None

    def _wait(
        self, run: FlowRun, timeout_seconds: float | None, waiting: WaitForNode
    ) -> tuple[FlowRun, str | None]:
        """The ended run, and why we ended it, if we did."""
        pause_seconds = _FIRST_POLL_SECONDS
        why: str | None = None
        began: float | None = None
        is_told = False
        while True:
            try:
                now: FlowRun = run_coro_as_sync(read_run(run.id))
            except httpx.HTTPError:
                now = run  # the API is away: the attempt goes on without it
            state = now.state
            if state is not None and state.is_final():
                return now, why or ("given_up" if self._was_given_up(now) else None)
            if state is not None and state.type is StateType.RUNNING and began is None:
                began = time.monotonic()
            if why is None:
                if self._cancelled.is_set():
                    why = "cancelled"
                elif timeout_seconds is not None and began is not None:
                    why = "timed_out" if time.monotonic() - began > timeout_seconds else None
                elif state is not None and state.type is StateType.SCHEDULED:
                    why = "no_node" if waiting.is_in_vain(time.monotonic()) else None
            if why is not None and not is_told:
                is_told = _told_to_end(run, why)
            if why is None:
                self._cancelled.wait(pause_seconds)
            else:
                time.sleep(pause_seconds)
            pause_seconds = min(_LONGEST_POLL_SECONDS, 1.5 * pause_seconds)

    def _was_given_up(self, run: FlowRun) -> bool:
        try:
            return bool(run_coro_as_sync(was_given_up(run)))
        except httpx.HTTPError:
            return False


def _told_to_end(run: FlowRun, why: str) -> bool:
    """`False` if the API did not answer: the run goes on until it is told again."""
    try:
        run_coro_as_sync(cancel_run(run.id, _ENDED_BECAUSE[why]))
    except httpx.HTTPError:
        return False
    return True


def _packed(call: TaskCall) -> bytes:
    variables = {
        environment.TASK_ID: str(call.context.task_run.id),
        environment.ATTEMPT: str(call.attempt),
    }
    if call.previous_failure is not None:
        variables[environment.PREVIOUS_FAILURE] = call.previous_failure
    with _by_value(call.task):
        body = pack_for_elsewhere(call.task)
        return pickle.dumps(
            RemoteCall(
                body=body.data,
                flow=None if call.flow_context is None else contexts.pack_flow(call.flow_context),
                run=contexts.pack_run(
                    call.context, defaults_are_sent=body.is_by_value, to_bytes=WithExceptions()
                ),
                folder=_folder(),
                paths=tuple(path for path in sys.path if os.path.isabs(path)),
                variables=variables,
            )
        )


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it is gone: there is no such folder elsewhere either
        return "/"


def pack_for_elsewhere(task: Task[..., Any]) -> Body:
    """The task by value: its module need not be there.

    Raises:
        BodyNotPortable: It refers to something that cannot be pickled.
    """
    try:
        return Body(contexts.pack_value(task, to_bytes=WithExceptions()), is_by_value=True)
    except Exception:
        return pack_body(task)  # by its place, if it has one; the module has to be there then


@contextmanager
def _by_value(task: Task[..., Any]) -> Iterator[None]:
    """While it lasts, the module of the task is pickled with it, if it is the user's own."""
    module = sys.modules.get(getattr(task.fn, "__module__", "") or "")
    file = getattr(module, "__file__", None) or ""
    is_own = module is not None and "site-packages" not in file and file != ""
    registry: Any = cloudpickle
    known = registry.list_registry_pickle_by_value()
    if not is_own or module is None or module.__name__ in known:
        yield
        return
    registry.register_pickle_by_value(module)
    try:
        yield
    finally:
        registry.unregister_pickle_by_value(module)


def _reply(storage: SealedStorage, key: str, seal: str, ended: FlowRun) -> Reply | None:
    try:
        data = storage.get(key, seal)
    except StorageNotShared:
        if ended.state is not None and ended.state.is_completed():
            raise
        # A body that died left no reply, and a bucket says so in its own library's words.
        data = None
    if data is None:
        return None
    reply: Reply = pickle.loads(data)
    return reply


def _judge(
    pool: str, run: FlowRun, why: str | None, rows: list[Attempt], reply: Reply | None
) -> TaskOutcome:
    row = rows[-1] if rows else None
    facts: dict[str, Any] = {}
    if row is not None:
        facts = {
            "node": row.node,
            "peak_memory_mb": row.peak_memory_mb,
            "gpu_memory_mb": row.gpu_memory_mb,
            "exit_code": None if signal_in(row.exit_code) else row.exit_code,
            "signal": signal_in(row.exit_code),
            "started": row.started,
        }
    state = run.state
    assert state is not None
    if why == "timed_out":
        late = Evidence(phase="run", deadline_exceeded=True)
        return _outcome(pool, kind="timed_out", evidence=late, **facts)
    if why == "given_up":  # we do wait, but a worker did not hear of us for a while
        text = f"its run '{run.name}' on pool {pool} was ended for want of a sign of life"
        lost = Diagnosis(failure=FailureClass.NODE_LOST, rule="taken-for-gone", reason=text)
        return _outcome(pool, kind="died", text=text, diagnosis=lost, **facts)
    if why == "no_node" and state.type is StateType.CANCELLED:
        text = (
            f"its run '{run.name}' waited, and no node of pool {pool} took runs: each is cordoned"
            " or not heard of"
        )
        gone = Diagnosis(failure=FailureClass.NODE_LOST, rule="no-node-takes-it", reason=text)
        return _outcome(pool, kind="died", text=text, diagnosis=gone, **facts)
    if why == "cancelled" or state.type is StateType.CANCELLED:
        return _outcome(pool, kind="cancelled", **facts)
    if reply is not None:
        evidence = Evidence(phase="run", exception=reply.info) if reply.info else None
        if reply.kind == "returned" and reply.value is not None:
            return _outcome(pool, kind="returned", value=load_at_home(reply.value), **facts)
        if reply.kind == "unportable":
            return _outcome(pool, kind="unportable", text=reply.text, **facts)
        return _outcome(pool, kind="raised", evidence=evidence, **_exception_of(reply), **facts)
    text = f"its run '{run.name}' on pool {pool} ended as {state.name}"
    if row is None or row.reason is None:  # else the state's message is that, and what it decided
        text = f"{text}: {state.message}"
    return _outcome(pool, kind="died", text=text, diagnosis=_diagnosis(row, text), **facts)


def _exception_of(reply: Reply) -> dict[str, Any]:
    if reply.value is None:
        return {"text": reply.text}
    try:
        return {"exception": load_at_home(reply.value), "text": reply.text}
    except Exception as error:
        return {"text": f"{reply.text} ({type(error).__name__}: {error})"}


def _diagnosis(row: Attempt | None, text: str) -> Diagnosis:
    """What the other side found out."""
    if row is not None and row.failure in {failure.value for failure in FailureClass}:
        return Diagnosis(
            failure=FailureClass(row.failure),
            rule=row.rule or "seen-elsewhere",
            reason=row.reason or text,
        )
    return Diagnosis(failure=FailureClass.UNKNOWN_ERROR, rule="no-final-state", reason=text)


def _outcome(pool: str, **values: Any) -> TaskOutcome:
    # By this machine's clock, as Prefect stamps the states of task runs, which stand beside it.
    ended = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return TaskOutcome(pool=pool, ended=ended, **values)
