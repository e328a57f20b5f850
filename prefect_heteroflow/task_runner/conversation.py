"""What a child says while a body runs in it, up to its reply."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import emit_api_log

from prefect_heteroflow.task_runner.frames import Reply, from_bytes, receive_frame

if TYPE_CHECKING:
    from prefect_heteroflow.task_runner.children import Child
    from prefect_heteroflow.task_runner.inner_runs import InnerRuns

TIMEOUT_GRACE_SECONDS = 5.0
"""Between the interrupt of a body that ran into its time limit and its end by force."""


def read_reply(
    child: Child,
    inner: InnerRuns,
    *,
    deadline: float | None = None,
    timeout_seconds: float | None = None,
) -> Reply:
    """Hand on what the body logs, until the reply comes.

    Args:
        child: The child.
        inner: Takes up what the child tells of the tasks that the body submits.
        deadline: The latest time of `time.monotonic()`.
        timeout_seconds: How long the body may run; counts when the child says that it starts.

    Raises:
        TimeoutError: It took longer.
        ForeignBytes: The body wrote into the connection.
        EOFError: The child is gone.
    """
    descriptor = child.process.connection.fileno()
    while True:
        kind, payload = from_bytes(receive_frame(descriptor, deadline))
        if kind == "log":
            emit_api_log(payload)
        elif kind == "event":
            inner.note(payload)
            EventsWorker.instance().send(payload)
        elif kind == "started":
            if timeout_seconds is not None:
                deadline = time.monotonic() + timeout_seconds
        else:
            reply: Reply = payload
            return reply


def stop_body(child: Child, inner: InnerRuns) -> None:
    """Interrupt a body that ran out of time, and end its process if it goes on."""
    child.unusable = True
    child.process.send_signal(signal.SIGINT)
    try:
        read_reply(child, inner, deadline=time.monotonic() + TIMEOUT_GRACE_SECONDS)
    except EOFError:
        pass
    except Exception:  # no answer in time, or none that can be read
        child.kill()
