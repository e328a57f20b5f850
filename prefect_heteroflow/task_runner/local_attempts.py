"""Attempts on this node: the body goes to a child, and what happens to it becomes an outcome."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from prefect.context import AssetContext, FlowRunContext
from prefect.logging.loggers import get_run_logger

from prefect_heteroflow import environment
from prefect_heteroflow.core.failures import Evidence
from prefect_heteroflow.core.local_capacity import Wish
from prefect_heteroflow.task_runner import contexts
from prefect_heteroflow.task_runner.attempts_elsewhere import TaskCall, TaskOutcome
from prefect_heteroflow.task_runner.bodies_sent import BodyNotPortable, pack_body
from prefect_heteroflow.task_runner.children import (
    Child,
    Children,
    LeaseCancelled,
    Turn,
    visible_devices,
)
from prefect_heteroflow.task_runner.conversation import read_reply, stop_body
from prefect_heteroflow.task_runner.exceptions_sent import WithExceptions
from prefect_heteroflow.task_runner.flow_interpreter import arguments
from prefect_heteroflow.task_runner.flow_parameters import SENT_BYTES
from prefect_heteroflow.task_runner.frames import Call, Reply, send_call
from prefect_heteroflow.task_runner.inner_runs import InnerRuns
from prefect_heteroflow.task_runner.known_classes import load_at_home
from prefect_heteroflow.task_runner.large_bodies import LargeBodies
from prefect_heteroflow.task_runner.pickles import to_pickle
from prefect_heteroflow.task_runner.template import ChildNotStarted, absolute_path

if TYPE_CHECKING:
    from prefect_heteroflow.core.resources import Node

GPU_MAX_CALLS = 1
_CUDA = "CUDA_VISIBLE_DEVICES"
_FOREIGN = (
    "the body wrote into the file descriptor through which its child process answers; a body must"
    " not write to descriptors that it did not open"
)


class _NoChild(Exception):
    """There is no process to be had; the text says why."""


class LocalAttempts:
    """Runs bodies in the children of this node.

    Args:
        node: What this machine has.
        children: Its children.
        say_once: Gets the name of a task and what its author should know.
    """

    def __init__(
        self, node: Node, children: Children, say_once: Callable[[str, str], None]
    ) -> None:
        self._node = node
        self._large = LargeBodies(say_once)
        self._children = children
        self._flows: dict[str, bytes] = {}
        self._flows_lock = threading.Lock()

    def run(self, call: TaskCall) -> TaskOutcome:
        """Run the attempt and wait for its end; a failure is an outcome, not an exception.

        Raises:
            BodyNotPortable: The body cannot be sent to a child.
        """
        wish = Wish(
            reserved_mb=call.reserved_mb,
            gpu_count=call.resources.gpu_count,
            gpu_memory_mb=call.resources.gpu_memory_mb,
            shares_gpu=call.shares_gpu,
        )
        max_calls = call.max_calls
        if max_calls is None and call.resources.gpu_count:
            max_calls = GPU_MAX_CALLS
        try:
            with self._children.turn(wish, call.number, max_calls=max_calls) as turn:
                child, outcome = self._run_in_child_of(turn, call)
                if outcome.kind == "died" and not child.has_begun:
                    # It died while it was idle, or was killed by something else.
                    self._children.drop(turn)
                    _, outcome = self._run_in_child_of(turn, call)
                return outcome
        except _NotPickled as error:
            return self._outcome(kind="unportable", text=str(error))
        except LeaseCancelled:
            return self._outcome(kind="cancelled")
        except _NoChild as error:
            return self._outcome(
                kind="died",
                text=f"no child process could be started: {error}",
                evidence=Evidence(phase="start", engine_error=str(error)),
            )

    def expect_no_more(self, number: int) -> None:
        """The task with that number does not come here, or has ended."""
        self._children.expect_no_more(number)

    def _run_in_child_of(self, turn: Turn, call: TaskCall) -> tuple[Child, TaskOutcome]:
        # Not before the turn came: of all that wait, none holds a copy of its arguments.
        packed = _packed(call)
        self._large.look_at(call.task, len(packed.body))
        try:
            child = self._children.take(turn, call.resources.memory_mb)
        except (ChildNotStarted, OSError) as error:
            raise _NoChild(str(error)) from error
        outcome = self._run_in(child, call, packed)
        if outcome.kind == "unportable" and not child.has_begun:
            outcome = self._run_once_more(child, call) or outcome
        return child, outcome

    def _run_once_more(self, child: Child, call: TaskCall) -> TaskOutcome | None:
        """Send a call again that the child could not load; `None` if that is in vain."""
        # Python pickles exceptions that it cannot build anew.
        to_bytes = WithExceptions()
        try:
            packed = _packed(call, to_bytes)
        except (_NotPickled, BodyNotPortable):
            return None
        return self._run_in(child, call, packed) if to_bytes.has_met_one else None

    def _run_in(self, child: Child, call: TaskCall, packed: _Packed) -> TaskOutcome:
        started = _now()
        child.calls += 1
        child.has_begun = True
        sent_bytes = len(packed.run)
        message = self._message(child, call, packed)
        packed.body = packed.run = b""
        reply: Reply | None = None
        inner = InnerRuns()
        timed_out = foreign = False
        try:
            _send(child, message)
            reply = read_reply(child, inner, timeout_seconds=call.timeout_seconds)
        except TimeoutError:
            timed_out = True
            stop_body(child, inner)
        except ConnectionError:
            # So it is only if the child left a part of the call unread; after the call it gets no
            # more. One that dies in its body ends with EOF.
            child.has_begun = False
        except (EOFError, OSError):
            pass
        except Exception:  # foreign bytes, where a message of ours starts or within one
            foreign = True
            child.kill()
        except BaseException:  # the thread of the task run was told to stop
            child.kill()
            raise
        if reply is None:
            child.unusable = True
        else:
            child.has_begun = reply.has_begun
        ended = self._ended(child, call, reply, started=started, timed_out=timed_out)
        if reply is None:
            inner.end("The child process in which it ran has ended.")
        if foreign and ended.kind == "died":
            ended = replace(ended, text=_FOREIGN)
        return replace(ended, sent_bytes=sent_bytes)

    def _message(self, child: Child, call: TaskCall, packed: _Packed) -> Call:
        body_key = hashlib.blake2b(packed.body, digest_size=16).hexdigest()
        flow_key, flow = None, None
        if call.flow_context is not None:
            flow_key, flow = self._flow_part(call)
        return Call(
            body_key=body_key,
            body=None if body_key in child.bodies else packed.body,
            flow_key=flow_key,
            flow=None if flow_key in child.flows else flow,
            run=packed.run,
            variables=self._variables(child, call),
            folder=_working_folder(),
            path=None,
            argv=None,
            tells_start=call.timeout_seconds is not None,
        )

    def _flow_part(self, call: TaskCall) -> tuple[str, bytes]:
        context = call.flow_context
        assert context is not None
        key = "none" if context.flow_run is None else str(context.flow_run.id)
        with self._flows_lock:
            if key not in self._flows:
                self._flows[key] = contexts.pack_flow(context, on_not_sent=_say_not_sent)
            return key, self._flows[key]

    def _variables(self, child: Child, call: TaskCall) -> dict[str, str]:
        variables = dict(os.environ)
        variables.update(
            environment.attempt_variables(
                task_id=str(call.context.task_run.id),
                attempt=call.attempt,
                node=self._node.name,
                resources=call.resources,
                gpu_memory_mb=_smallest_gpu_mb(child),
                previous_failure=call.previous_failure,
            )
        )
        if child.gpus:
            variables[_CUDA] = visible_devices(child.gpus, self._node)
        elif self._node.gpus:
            variables[_CUDA] = ""  # who asks for no GPU shall not sit on somebody's
        return variables

    def _ended(
        self,
        child: Child,
        call: TaskCall,
        reply: Reply | None,
        *,
        started: str,
        timed_out: bool,
    ) -> TaskOutcome:
        peak = child.limit.peak_memory_mb() if child.calls == 1 or reply is None else None
        facts: dict[str, Any] = {
            "peak_memory_mb": peak,
            "gpu_memory_mb": _smallest_gpu_mb(child),
            "started": started,
        }
        if reply is not None and reply.kind == "returned" and not child.cancelled:
            return self._returned(reply, facts)
        evidence = self._evidence(child, call, reply, peak, timed_out=timed_out)
        facts.update(evidence=evidence, exit_code=evidence.exit_code, signal=evidence.signal)
        if child.cancelled:
            return self._outcome(kind="cancelled", **facts)
        if timed_out:
            return self._outcome(kind="timed_out", **facts)
        if reply is None:
            status = evidence.exit_code if evidence.signal is None else -evidence.signal
            return self._outcome(kind="died", text=_death(status), **facts)
        return self._failed(reply, facts)

    def _evidence(
        self,
        child: Child,
        call: TaskCall,
        reply: Reply | None,
        peak: int | None,
        *,
        timed_out: bool,
    ) -> Evidence:
        status = None
        if reply is None and not timed_out:
            # The connection can end a moment before the end of the process is told.
            if not child.process.ended.wait(10.0):
                child.kill()
                child.process.ended.wait(10.0)
            status = child.process.status
        kills = child.limit.oom_kill_count()
        if kills is not None:
            kills -= child.oom_kills
        elif status == -signal.SIGKILL and child.limit.limit_reached():
            kills = 1
        return Evidence(
            phase="run",
            own_limit_reached=child.limit.limit_reached() if kills else None,
            outer_limit_mb=child.limit.outer_limit_mb() if kills else None,
            exit_code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            oom_kill_count=kills,
            memory_limit_mb=call.resources.memory_mb,
            peak_memory_mb=peak,
            exception=reply.info if reply is not None else None,
            deadline_exceeded=timed_out,
            cancel_requested=child.cancelled,
            gpu_total_mb=_smallest_gpu_mb(child),
        )

    def _returned(self, reply: Reply, facts: dict[str, Any]) -> TaskOutcome:
        try:
            value = load_at_home(reply.value or b"")
        except Exception as error:
            text = f"its value cannot be rebuilt here: {type(error).__name__}: {error}"
            return self._outcome(kind="unportable", text=text, **facts)
        _add_assets(reply.assets)
        return self._outcome(kind="returned", value=value, **facts)

    def _failed(self, reply: Reply, facts: dict[str, Any]) -> TaskOutcome:
        if reply.kind == "unportable":
            return self._outcome(kind="unportable", text=reply.text, **facts)
        exception: BaseException | None = None
        if reply.value is not None:
            try:
                exception = load_at_home(reply.value)
            except Exception as error:
                reply.text = f"{reply.text} ({type(error).__name__}: {error})"
        return self._outcome(kind="raised", exception=exception, text=reply.text, **facts)

    def _outcome(self, **values: Any) -> TaskOutcome:
        return TaskOutcome(pool=self._node.pool, node=self._node.name, ended=_now(), **values)


def _send(child: Child, message: Call) -> None:
    known = child.process
    path, argv = list(sys.path), arguments()
    if path != known.known_path:
        message.path = absolute_path(path)
    if argv != known.known_argv:
        message.argv = argv
    send_call(known.connection.fileno(), message)
    # Only what was sent is known to the child; its own notes are in the same order.
    child.bodies.put(message.body_key, True)
    if message.flow_key is not None:
        child.flows.put(message.flow_key, True)
    known.known_path, known.known_argv = path, argv


def _working_folder() -> str:
    """That of this process, also where it is gone: then a way to it that is left."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd"


def _say_not_sent(names: tuple[str, ...]) -> None:
    text = "Bodies of tasks see no parameter %s of the flow: they get those of %d MiB in all."
    get_run_logger(FlowRunContext.get()).info(text, ", ".join(map(repr, names)), SENT_BYTES >> 20)


def _add_assets(metadata: dict[str, dict[str, Any]]) -> None:
    context = AssetContext.get()
    if context is not None:
        for key, values in metadata.items():
            context.add_asset_metadata(key, values)


def _smallest_gpu_mb(child: Child) -> int | None:
    return min((gpu.memory_mb for gpu in child.gpus), default=None)


def _death(status: int | None) -> str:
    if status is None:
        return "the child process is gone, and nobody saw how it ended"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the child process was ended by {name}"
    if status == 71:
        return (
            "the body closed the file descriptor through which its child process answers"
            " (exit code 71); a body must not close descriptors that it did not open"
        )
    return f"the child process left with exit code {status} before the body was done"


def _now() -> str:
    # By this machine's clock, as Prefect stamps the states of task runs, which stand beside it.
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


# --- what is sent, as bytes ----------------------------------------------------------------------


@dataclass(slots=True)
class _Packed:
    body: bytes
    run: bytes
    """The task run, its parameters and the rest that differs from call to call."""


class _NotPickled(Exception):
    """The arguments cannot be pickled; the text says why."""


def _packed(call: TaskCall, to_bytes: Callable[[Any], bytes] = to_pickle) -> _Packed:
    body = pack_body(call.task, to_bytes=to_bytes)
    try:
        run = contexts.pack_run(call.context, defaults_are_sent=body.is_by_value, to_bytes=to_bytes)
        return _Packed(body.data, run)
    except Exception as error:  # pickling runs the arguments' own code
        text = f"its arguments cannot be pickled: {type(error).__name__}: {error}"
        raise _NotPickled(text) from error
