"""A child process: runs one body after the other and says how each ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from typing import TYPE_CHECKING, Any

import prefect
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient
from prefect.logging.configuration import ensure_logging_setup
from prefect.logging.handlers import set_api_log_sink
from prefect.utilities.callables import call_with_parameters

import prefect_heteroflow
from prefect_heteroflow.exceptions_as_data import exception_info
from prefect_heteroflow.task_runner import contexts
from prefect_heteroflow.task_runner.bodies_sent import load_body
from prefect_heteroflow.task_runner.causes import with_causes
from prefect_heteroflow.task_runner.exceptions_sent import exception_bytes
from prefect_heteroflow.task_runner.frames import (
    Call,
    PartsSent,
    Reply,
    receive_call,
    send_frame,
    to_bytes,
)
from prefect_heteroflow.task_runner.modules_by_value import marks_by_value
from prefect_heteroflow.task_runner.pickles import to_pickle
from prefect_heteroflow.task_runner.script_names import offered

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.events import Event

LEFT = 0
CHANNEL_LOST = 71
"""Exit status of a child whose body closed the descriptor through which it answers."""

_CALLERS = tuple(
    f"{os.path.dirname(os.path.abspath(file))}{os.sep}"
    for file in (prefect.__file__, prefect_heteroflow.__file__, asyncio.__file__)
)
"""Folders of what stands between the start of this process and the body."""

_shared: dict[str, Any] = {}


def prepare_template() -> None:
    """Load what every child needs; opens no connection and starts no thread."""
    for module in ("prefect.flow_engine", "prefect.task_engine", "prefect.artifacts"):
        import_module(module)
    ensure_logging_setup()
    logging.getLogger("EventsWorker").addFilter(_is_worth_saying)
    marks_by_value()  # looks at all modules, once
    # The client alone takes 60 ms (TLS certificates); it connects when it is first used.
    _shared["client"] = get_client(sync_client=True)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Not that events are waited for: that is so after each body which emits some."""
    return not str(record.msg).startswith("Still processing items")


class Channel:
    """The child's end of its connection. Any thread may send; only the main thread receives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = _identity_of(descriptor)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._sends_in_main = False
        self._interrupted = False
        self._in_body = False
        signal.signal(signal.SIGINT, self._on_interrupt)

    def receive(self) -> Call | None:
        """The next call; `None` when the flow's process has closed the connection."""
        try:
            call = receive_call(self._descriptor)
        except (EOFError, OSError):
            return None
        self._interrupted = False
        return call

    def send(self, kind: str, payload: Any) -> None:
        """Send a message; nothing from a process that the body forked.

        Raises:
            OSError: The body closed the descriptor, or opened something else under its number.
        """
        if os.getpid() != self._pid:
            return
        data = to_bytes((kind, payload))
        in_main = threading.current_thread() is threading.main_thread()
        with self._lock:
            self._sends_in_main = in_main
            try:
                if _identity_of(self._descriptor) != self._identity:
                    raise OSError("the descriptor of the child's channel was closed")
                send_frame(self._descriptor, data)
            finally:
                self._sends_in_main = False
        if in_main and self._interrupted and self._in_body:
            self._interrupted = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def body_runs(self) -> Iterator[None]:
        """Interrupts are for the body, and only while it runs."""
        self._in_body = True
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            yield
        finally:
            self._in_body = False

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            return
        if not self._in_body or self._sends_in_main:
            # Before the body; or amid a message, half of which would end the conversation.
            self._interrupted = True
            return
        raise KeyboardInterrupt


class _EventQueue:
    """What Prefect's own forwarding client puts events into: they go to the flow's process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def put(self, item: tuple[str, Event]) -> None:
        with contextlib.suppress(OSError):
            self._channel.send("event", item[1])


def serve(descriptor: int) -> int:
    """Run bodies until the connection is closed; gives the exit status."""
    pid = os.getpid()
    channel = Channel(descriptor)

    def send_log(payload: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            channel.send("log", payload)

    set_api_log_sink(send_log)
    # Prefect emits events through clients of its own only, so it has to be this one.
    EventsWorker.set_client_override(
        ProcessPoolForwardingEventsClient, event_queue=_EventQueue(channel)
    )
    bodies: PartsSent[_Part] = PartsSent()
    flows: PartsSent[_Part] = PartsSent()
    while (call := channel.receive()) is not None:
        reply = _Runner(channel, _shared["client"], bodies, flows).run(call)
        if os.getpid() != pid:
            return LEFT  # a fork of the body came out of it: it has nothing to say
        if threading.active_count() > 1:  # without a thread of Prefect's there are no events
            EventsWorker.drain_all()
        _flush_output()
        try:
            channel.send("reply", reply)
        except OSError:
            return CHANNEL_LOST
    return LEFT


def _flush_output() -> None:
    """What the body printed is out, whatever becomes of this process; as files it is buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, gone, or something that the body put there
            stream.flush()


class _Part:
    """Something that was sent once: its bytes, until they could be loaded."""

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data
        self._value: Any = None

    def loaded(self, load: Callable[[bytes], Any]) -> Any:
        if self._data is not None:
            self._value, self._data = load(self._data), None
        return self._value


def _noted(parts: PartsSent[_Part], key: str, sent: bytes | None) -> _Part:
    part = parts.get(key)
    if sent is not None:
        part = _Part(sent)
        parts.put(key, part)
    assert part is not None
    return part


class _Runner:
    def __init__(
        self,
        channel: Channel,
        client: SyncPrefectClient,
        bodies: PartsSent[_Part],
        flows: PartsSent[_Part],
    ) -> None:
        self._channel = channel
        self._client = client
        self._bodies = bodies
        self._flows = flows

    def run(self, call: Call) -> Reply:
        """Run the body; how it ended, whatever it does."""
        if call.path is not None:
            sys.path[:] = call.path + [path for path in sys.path if path not in call.path]
            invalidate_caches()
        if call.argv is not None:
            sys.argv[:] = call.argv
        try:
            task, flow, run = self._load(call)
        except BaseException as error:
            return Reply(
                kind="unportable",
                text=f"what was sent cannot be loaded in the child process: {_words(error)}",
                info=exception_info(error),
                has_begun=False,
            )
        set_environment(call)
        assets: dict[str, dict[str, Any]] = {}
        try:
            with contexts.entered(task, flow, run, self._client, assets):
                if call.tells_start:
                    self._channel.send("started", None)
                value = self._call_body(task, run.parameters)
        except KeyboardInterrupt as error:
            return raised_reply(error, kind="interrupted")
        except BaseException as error:
            return raised_reply(error)
        return value_reply(value, assets)

    def _load(
        self, call: Call
    ) -> tuple[Task[..., Any], contexts.FlowPart | None, contexts.RunPart]:
        # Both are noted before one is loaded: the flow knows that they are here in any case.
        body = _noted(self._bodies, call.body_key, call.body)
        part = None if call.flow_key is None else _noted(self._flows, call.flow_key, call.flow)
        task: Task[..., Any] = body.loaded(load_body)
        flow: contexts.FlowPart | None = None if part is None else part.loaded(pickle.loads)
        return task, flow, contexts.load_run(call.run, task)

    def _call_body(self, task: Task[..., Any], parameters: dict[str, Any]) -> Any:
        with self._channel.body_runs():
            return value_of_body(task, parameters)


async def _awaited(value: Any) -> Any:
    return await value


def set_environment(call: Call) -> None:
    """Environment variables and working folder of this body, whatever the last one did to them."""
    if dict(os.environ) != call.variables:
        for name in set(os.environ) - set(call.variables):
            del os.environ[name]
        os.environ.update(call.variables)
    with contextlib.suppress(OSError):
        if _folder() != call.folder:
            os.chdir(call.folder)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the last body was in a folder that is gone
        return None


def value_reply(value: Any, assets: dict[str, dict[str, Any]]) -> Reply:
    """The reply of a body that returned."""
    try:
        return Reply(kind="returned", value=to_pickle(value), assets=assets)
    except BaseException as error:
        return Reply(
            kind="unportable",
            text=f"its value, a {type(value).__qualname__}, cannot be pickled: {_words(error)}",
            info=exception_info(error),
        )


def value_of_body(task: Task[..., Any], parameters: dict[str, Any]) -> Any:
    """What the body returns, awaited if it has to be; called within its contexts."""

    def call() -> Any:
        value = call_with_parameters(task.fn, parameters)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    with offered(task.fn, parameters):
        return contexts.value_of(call)


def raised_reply(error: BaseException, *, kind: Any = "raised") -> Reply:
    """The reply of a body that raised."""
    begin_at_body(error)
    info = exception_info(error)
    try:
        data = with_causes(exception_bytes(error), error)
    except BaseException as problem:
        return Reply(kind=kind, text=f"{_words(error)} ({_words(problem)})", info=info)
    return Reply(kind=kind, value=data, text=_words(error), info=info)


def begin_at_body(error: BaseException) -> None:
    """Let the traceback begin with the user's code: what called it says nothing to its author.

    A traceback without any such code stays as it is.
    """
    here = error.__traceback__
    while here is not None and here.tb_frame.f_code.co_filename.startswith(_CALLERS):
        here = here.tb_next
    if here is not None:
        error.__traceback__ = here


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a broken `__str__` must not hide the failure
        return type(error).__name__


def _identity_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
