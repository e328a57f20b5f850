"""What SIGTERM does to the process of a flow while the flow's body does not run.

A hook may run, or the process sleeps until a retry of the flow's own is due. Prefect takes the
signal for a crash there, and says so of the run. But the worker knows whether it was a cancel or a
node that goes away: the process leaves it word, and ends without a state of its own. In the body
the wrapper of the body sees to it (`engine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort
from prefect.flow_engine import load_flow_run
from prefect.flows import Flow
from prefect.logging.loggers import get_logger
from prefect.utilities.asyncutils import run_coro_as_sync

_REASON = "The worker takes over."
_logger = get_logger("heteroflow.engine")


class Termination:
    """SIGTERM of one process; all but `over` belongs to its main thread.

    Args:
        leave_word: Tells the worker; `False` if that cannot be done. Then Prefect's own handler has
            the signal.
    """

    def __init__(self, leave_word: Callable[[], bool]) -> None:
        self.came = False
        """The worker was told of it."""
        self._leave_word = leave_word
        self._over = False
        self._prefects: Any = None
        self._task: asyncio.Task[Any] | None = None

    def install(self) -> None:
        """Put the handler over the one of Prefect's engine, which has put its own by now."""
        if self._prefects is not None:
            return
        with contextlib.suppress(RuntimeError):  # a flow that is not async has no loop
            self._task = asyncio.current_task()
        self._prefects = signal.signal(signal.SIGTERM, self._on_sigterm)

    def over(self) -> None:
        """The end is on its way, and the worker was told: the signal changes nothing any more."""
        self._over = True

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Let Prefect's own handler have the signal: it raises in the body."""
        self.install()
        signal.signal(signal.SIGTERM, self._prefects)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: types.FrameType | None) -> None:
        if self._over:
            return
        if not self._leave_word():
            self._prefects(number, frame)
            return
        self._over = self.came = True
        task = self._task
        if task is None or asyncio.current_task(task.get_loop()) is task:
            raise Abort(_REASON)
        # Raised here it would leave through the event loop, past the engine that waits.
        task.get_loop().call_soon_threadsafe(task.cancel)

    @types.coroutine
    def aborting(self, flow: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await an async flow; when SIGTERM came its engine sees `Abort` where it waits.

        A cancelled task the engine would call a crash.
        """
        step: Callable[[], Any] = partial(flow.send, None)
        was_told = False
        while True:
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            try:
                yield awaited
                step = partial(flow.send, None)
            except GeneratorExit:
                flow.close()
                raise
            except BaseException as error:
                thrown = error
                if self.came and not was_told and isinstance(error, asyncio.CancelledError):
                    was_told, thrown = True, Abort(_REASON)
                step = partial(flow.throw, thrown)


def run_cancellation_hooks(flow: Flow[..., Any], flow_run: FlowRun) -> None:
    """Run them if the run is being cancelled; errors of theirs are logged."""
    hooks = flow.on_cancellation_hooks
    if not hooks:
        return
    try:
        run = load_flow_run(flow_run.id)
    except Exception:  # whatever the API does: the process ends anyway
        _logger.warning("Could not read the run's state; cancellation hooks do not run.")
        return
    if run.state is None or not run.state.is_cancelling():
        return
    for hook in hooks:
        try:
            outcome = hook(flow, run, run.state)
            if inspect.isawaitable(outcome):
                run_coro_as_sync(_awaited(outcome))
        except Exception:  # of the user's code; the next hook runs all the same
            _logger.exception("The cancellation hook %r failed.", hook)


async def _awaited(value: Any) -> Any:
    return await value
