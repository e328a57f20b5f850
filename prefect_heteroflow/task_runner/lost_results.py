"""Results that cannot be read any more: the task that made one runs again.

The values of a flow's own futures stay in its memory. What has to be read are the results behind
states that came from the API, given as arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture
from prefect.task_engine import run_task_async, run_task_sync
from prefect.utilities.annotations import BaseAnnotation, quote
from prefect.utilities.collections import StopVisiting, visit_collection
from pydantic import PrivateAttr

from prefect_heteroflow.task_runner.errors import LostResultError
from prefect_heteroflow.task_runner.stored_results import ResultRecordMetadata, read_result

if TYPE_CHECKING:
    from prefect import Task
    from prefect.context import TaskRunContext

Value = TypeVar("Value")

REMEMBERED_BYTES = 64 * 1024 * 1024
"""Arguments of so much, pickled, are kept for running their tasks again; the oldest go first."""
_READ = ()
"""Stands for the result of what is only waited for."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A task run of this flow that can run again."""

    task_run_id: UUID
    size_bytes: int
    """Of its arguments, pickled."""
    run_again: Callable[[str], State[Any]]
    """Run it, for the reason given; gives its final state with the value in memory."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Producers:
    """The task runs of one runner whose results are stored, as far as they are remembered.

    Args:
        most_bytes: What their arguments may have together, pickled.
    """

    def __init__(self, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._producers: OrderedDict[UUID, Producer] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, producer: Producer) -> None:
        """Keep it, and forget the oldest ones that are too much."""
        with self._lock:
            self._forget(producer.task_run_id)
            self._producers[producer.task_run_id] = producer
            self._bytes += producer.size_bytes
            while self._bytes > self._most_bytes:
                self._forget(next(iter(self._producers)))

    def _forget(self, task_run_id: UUID) -> None:
        known = self._producers.pop(task_run_id, None)
        if known is not None:
            self._bytes -= known.size_bytes

    def find(self, task_run_id: UUID | None) -> Producer | None:
        """The producer with that task run, if it is remembered."""
        with self._lock:
            return None if task_run_id is None else self._producers.get(task_run_id)

    def read(self, state: State[Any]) -> Any:
        """The result of a final state; a lost one is made again.

        Raises:
            LostResultError: It cannot be read, and could not be made again; says why.
        """
        try:
            # `_sync` stands in no overload, and decides whether a value or a coroutine comes.
            return state.result(raise_on_failure=False, _sync=True)  # type: ignore[call-overload]
        except Exception as error:  # a storage block raises whatever its library does
            problem = error
        key = state.data.storage_key
        said = f"The result of task run {state.state_details.task_run_id} (storage key {key})"
        try:
            read_result(state.data)
        except Exception as error:  # the same
            lost = f"{said} is lost: {type(error).__name__}: {error}"
        else:
            raise LostResultError(
                f"{said} is there, but cannot be loaded: {type(problem).__name__}: {problem}."
                " Install here what it needs, or use another result serializer."
            ) from problem
        producer = self.find(state.state_details.task_run_id) if state.is_completed() else None
        if producer is None:
            raise LostResultError(
                f"{lost}. This flow run cannot make it again: it did not run that task, or has"
                " forgotten its arguments. Run the flow that made it again."
            ) from problem
        with producer.lock:  # of those who miss it at once, the first one makes it
            with contextlib.suppress(Exception):
                options: Any = {"raise_on_failure": False, "_sync": True}
                return state.result(retry_result_failure=False, **options)
            again = producer.run_again(lost)
        if not again.is_completed():
            raise LostResultError(
                f"{lost}. The task ran again and ended as {again.name}: {again.message}"
            ) from problem
        return cast("Any", again).result(raise_on_failure=False, _sync=True)

    def readable(self, parameters: Value) -> Value:
        """The same, with states whose results are made again when they are lost."""
        return _with_states(parameters, lambda state: _readable(state, self))


def not_read(waited_for: Value) -> Value:
    """The same, with states whose results nobody reads: they are only waited for."""
    return _with_states(waited_for, lambda state: state.model_copy(update={"data": _READ}))


class ReadableState(State[Any]):
    """A state from the API whose result is made again when it is lost."""

    _producers: Producers = PrivateAttr()
    _original: State[Any] = PrivateAttr()

    def result(self, *_: Any, **__: Any) -> Any:
        """See `Producers.read`; Prefect's engine asks without raising failures."""
        return self._producers.read(self._original)


def _readable(state: State[Any], producers: Producers) -> ReadableState:
    changed = ReadableState.model_construct(**dict(state))
    changed._producers, changed._original = producers, state
    return changed


class FutureInMemory(PrefectConcurrentFuture[Any]):
    """A future whose state, once it is final, is the one in memory and not the API's.

    Only the former has the value with it. Prefect remembers it only in `wait` and `result`.
    """

    @property
    def state(self) -> State[Any]:
        """The final state with its value, or what the API says."""
        done = self.wrapped_future
        if self._final_state is None and done.done() and not done.cancelled():
            found: Any = None if done.exception() is not None else done.result()
            self._final_state = found if isinstance(found, State) else None
        return super().state


def run_again(task: Task[..., Any], context: TaskRunContext, around: Context) -> State[Any]:
    """Run Prefect's engine once more for a task run that has ended, and give its final state.

    Args:
        task: The task.
        context: Of its last run; the parameters are resolved.
        around: What the task was submitted in.
    """
    arguments: dict[str, Any] = {
        "task": task,
        "task_run": context.task_run.model_copy(update={"end_time": None}),
        "parameters": {name: quote(value) for name, value in context.parameters.items()},
        "return_type": "state",
        "context": {"cancel_event": threading.Event()},
    }

    def work() -> Any:
        if task.isasync:
            return asyncio.run(run_task_async(**arguments))
        return run_task_sync(**arguments)

    # The reader may be inside of an event loop.
    with ThreadPoolExecutor(max_workers=1) as thread:
        state: State[Any] = thread.submit(around.copy().run, work).result()
    return state


def _with_states(value: Value, change: Callable[[State[Any]], Any]) -> Value:
    if not _may_hold_states(value):
        return value

    def visit(found: Any, seen: dict[str, Any]) -> Any:
        if isinstance(seen.get("annotation"), quote):
            raise StopVisiting
        if isinstance(found, State) and isinstance(found.data, ResultRecordMetadata):
            return change(found)
        return found

    return cast("Value", visit_collection(value, visit, return_data=True, context={}))


def _may_hold_states(value: Any) -> bool:
    """A fast first look: large lists of numbers and text are the common case."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, quote):
        return False
    if kind in (list, tuple, set):
        return any(type(item) not in _ATOMS and _may_hold_states(item) for item in value)
    if kind is dict:
        return any(type(item) not in _ATOMS and _may_hold_states(item) for item in value.values())
    if isinstance(value, BaseAnnotation):
        return _may_hold_states(value.unwrap())
    return (
        isinstance(value, State)
        or hasattr(value, "__dataclass_fields__")
        or hasattr(value, "model_fields")
    )
