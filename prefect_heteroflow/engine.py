"""Runs one flow run as the main process of an attempt: `python -m prefect_heteroflow.engine`.

It is `python -m prefect.engine` with one difference: the body of the flow is wrapped, so that an
exception is diagnosed while it is still an object with its type and causes.

- A failure that will be retried elsewhere leaves a report and raises `prefect.exceptions.Abort`:
  the run stays `Running`, no hook runs, and the worker takes over.
- A failure that ends the run for a reason of ours is returned as a `Failed` state with that name
  and reason; Prefect runs its hooks.
- Any other exception fails the Prefect way.
- SIGTERM never makes the run `Crashed` by itself: the worker knows whether it was a cancel.

Workers copy this module with the rest of the package into containers, so that it works in every
image that has Prefect, and always speaks the worker's own protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import random
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.engine import handle_engine_signals
from prefect.exceptions import Abort, TerminationSignal
from prefect.flow_engine import load_flow, load_flow_run, run_flow
from prefect.flows import Flow
from prefect.futures import PrefectFuture
from prefect.logging.loggers import flow_run_logger, get_logger
from prefect.states import exception_to_failed_state
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow import environment
from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.decide import decide
from prefect_heteroflow.core.endings import message_with_line
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.policy import Decision, Ending, Retry, Stop
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.rule_lines import RuleLines
from prefect_heteroflow.core.user_rules import combine_user_rules, is_by_user_rule
from prefect_heteroflow.entry_files import forget_report, read_context, write_report
from prefect_heteroflow.exceptions_as_data import exception_info
from prefect_heteroflow.fence import stop_if_given_up
from prefect_heteroflow.infra.own_cgroup import read_own_oom_kill_count, read_own_peak_memory_mb
from prefect_heteroflow.own_output import heard_by
from prefect_heteroflow.termination import Termination, run_cancellation_hooks

_logger = get_logger("heteroflow.engine")


class FlowBody:
    """Wraps the function of a flow for one attempt."""

    def __init__(
        self, flow: Flow[..., Any], flow_run: FlowRun, context: environment.AttemptContext
    ) -> None:
        self._flow = flow
        self._flow_run = flow_run
        self._context = context
        self._rules = combine_user_rules(retry_on=context.retry_on, stop_on=context.stop_on)
        self._said = RuleLines(self._rules)
        self._oom_kills_before = read_own_oom_kill_count()
        self._report = environment.EngineReport()
        self.termination = Termination(self._say_terminated)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """For the user's rules: an exception alone does not say what the flow has printed."""
        with heard_by(self._said) if self._said.are_wanted else contextlib.nullcontext():
            yield

    def wrapped_flow(self) -> Flow[..., Any]:
        """A copy of the flow whose function reports before it fails."""
        fn = self._flow.fn
        wrapper: Callable[..., Any]
        if inspect.isasyncgenfunction(fn):
            wrapper = self._async_generator(fn)
        elif inspect.isgeneratorfunction(fn):
            wrapper = self._generator(fn)
        elif inspect.iscoroutinefunction(fn):
            wrapper = self._coroutine(fn)
        else:
            wrapper = self._function(fn)
        flow = copy.copy(self._flow)
        flow.fn = functools.wraps(fn)(wrapper)
        flow.on_running_hooks = [self._hook(hook) for hook in flow.on_running_hooks]
        return flow

    def _hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, with SIGTERM in our hands: it runs before the body, or after a wait."""

        @functools.wraps(hook)
        def run(*args: Any) -> Any:
            self._begin()
            return hook(*args)

        return run

    def _begin(self) -> None:
        forget_report()
        self._report = environment.EngineReport()
        self.termination.install()

    def _say_terminated(self) -> bool:
        """Beside what the body had raised, if anything: the worker knows which of both counts."""
        return write_report(
            dataclasses.replace(self._report, aborted=True, signal=int(signal.SIGTERM))
        )

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def body(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                with self.termination.body():
                    result = fn(*args, **kwargs)
            except TerminationSignal:
                # The end is on its way: a second SIGTERM must not make it a crash.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self._leave_for_the_worker(
                    environment.EngineReport(aborted=True, signal=signal.SIGTERM)
                )
                raise
            except (Exception, SystemExit) as error:
                return self._end(error)
            return self._checked(result)

        return body

    def _generator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def body(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            self._begin()
            try:
                with self.termination.body():
                    result = yield from fn(*args, **kwargs)
            except TerminationSignal:
                self._leave_for_the_worker(
                    environment.EngineReport(aborted=True, signal=signal.SIGTERM)
                )
                raise
            except (Exception, SystemExit) as error:
                return self._end(error)
            stop_if_given_up(self._flow_run)
            return result

        return body

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def body(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            # Prefect's handler raises inside the event loop, where the engine can only see a
            # cancelled task and calls it a crash. Ours cancels the body alone.
            terminated = False
            loop = asyncio.get_running_loop()

            async def guarded() -> tuple[Any, BaseException | None]:
                # These would leave through the event loop, past the engine that waits for us.
                try:
                    return await fn(*args, **kwargs), None
                except (SystemExit, KeyboardInterrupt) as error:
                    return None, error

            task = loop.create_task(guarded())

            def on_sigterm() -> None:
                nonlocal terminated
                terminated = True
                task.cancel()

            previous = signal.getsignal(signal.SIGTERM)
            loop.add_signal_handler(signal.SIGTERM, on_sigterm)
            try:
                result, interrupt = await task
                if interrupt is not None:
                    raise interrupt
            except asyncio.CancelledError:
                if not terminated:
                    task.cancel()
                    raise
                self._leave_for_the_worker(
                    environment.EngineReport(aborted=True, signal=signal.SIGTERM)
                )
                raise
            except (Exception, SystemExit) as error:
                return await asyncio.to_thread(self._end, error)
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
                # As in `_function`: a second SIGTERM must not make the end a crash.
                signal.signal(signal.SIGTERM, signal.SIG_IGN if terminated else previous)
            return await asyncio.to_thread(self._checked, result)

        return body

    def _async_generator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def body(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            self._begin()
            try:
                async for item in fn(*args, **kwargs):
                    yield item
            except (Exception, SystemExit) as error:
                # An async generator cannot return a state: what is not retried is raised.
                self._end(error)
                raise
            await asyncio.to_thread(stop_if_given_up, self._flow_run)

        return body

    def _checked(self, result: Any) -> Any:
        """The result, unless it is a failed future or state whose exception we would retry."""
        error = _exception_of_result(result)
        if error is not None:
            outcome = self._end(error, returned=True)
            if outcome is not None:
                return outcome
        stop_if_given_up(self._flow_run)
        return result

    def _end(self, error: Exception | SystemExit, *, returned: bool = False) -> State[Any] | None:
        stop_if_given_up(self._flow_run)
        diagnosis, decision = self._decide(error)
        if isinstance(error, SystemExit) and not is_by_user_rule(diagnosis):
            raise error  # Prefect says `Crashed`
        message = f"Flow run encountered an exception: {type(error).__name__}: {error}"
        report = environment.EngineReport(
            diagnosis=diagnosis, aborted=isinstance(decision, Retry), state_message=message[:2000]
        )
        if isinstance(decision, Retry):
            _logger.error("%s", "".join(traceback.format_exception(error)).rstrip())
            self._leave_for_the_worker(report)
        self._report = report
        write_report(report)
        if not isinstance(decision, Stop) or _is_prefects_own(diagnosis, decision):
            if returned:
                return None
            raise error
        context = FlowRunContext.get()
        logger = flow_run_logger(self._flow_run, self._flow)
        logger.error("Encountered exception during execution: %r", error, exc_info=error)
        state: State[Any] = run_coro_as_sync(
            exception_to_failed_state(
                error,
                result_store=None if context is None else context.result_store,
                write_result=True,
                name=decision.ending.value,
            )
        )
        assert diagnosis is not None
        message = message_with_line(decision.reason, diagnosis)
        return state.model_copy(update={"message": message, "type": StateType.FAILED})

    def _decide(self, error: BaseException) -> tuple[Diagnosis | None, Decision | None]:
        """What the worker will conclude too; `(…, None)` when it cannot be known here."""
        context = self._context
        kills = read_own_oom_kill_count()
        before = self._oom_kills_before
        evidence = Evidence(
            phase="run",
            exception=exception_info(error),
            oom_kill_count=None if kills is None or before is None else kills - before,
            memory_limit_mb=context.resources.memory_mb,
            peak_memory_mb=read_own_peak_memory_mb(),
            gpu_total_mb=context.gpu_memory_mb,
            log=self._said.text() or None,
        )
        diagnosis = diagnose(
            evidence, user_rules=self._rules, retry_exceptions=context.retry_exceptions
        )
        if diagnosis is None:
            return None, None
        decision = decide(
            diagnosis,
            policy=context.policy,
            resources=context.resources,
            pool=context.pool,
            node=context.node,
            history=context.history,
            cluster=_read_cluster(context),
            jitter_fraction=random.random(),
            gpu_memory_mb=context.gpu_memory_mb,
            containers=context.containers,
        )
        return diagnosis, decision

    def _leave_for_the_worker(self, report: environment.EngineReport) -> None:
        """End the process without a state of its own.

        Raises:
            Abort: Always, unless the report could not be written: then the caller goes on in
                Prefect's own way.
        """
        if not write_report(report):
            return
        self.termination.over()
        if report.signal is not None:
            run_cancellation_hooks(self._flow, self._flow_run)
        raise Abort("The worker takes over.")


def _is_prefects_own(diagnosis: Diagnosis | None, decision: Stop) -> bool:
    """An application error ends as Prefect itself would end it."""
    return (
        diagnosis is not None
        and diagnosis.failure is FailureClass.APPLICATION_ERROR
        and decision.ending is Ending.FAILED
    )


def _exception_of_result(result: Any) -> Exception | None:
    """The exception of the first failed future or state in what a flow returned."""
    items = result if isinstance(result, list | tuple | set) else [result]
    for item in items:
        state = item.state if isinstance(item, PrefectFuture) else item
        if isinstance(item, PrefectFuture):
            item.wait()
            state = item.state
        if not isinstance(state, State) or not (state.is_failed() or state.is_crashed()):
            continue
        error = state.result(raise_on_failure=False, _sync=True)  # type: ignore[call-overload]
        if isinstance(error, Exception):
            return error
    return None


def _read_cluster(context: environment.AttemptContext) -> Cluster:
    """The nodes that are known now; none when the API does not answer."""
    from prefect_heteroflow.orchestration.nodes import read_cluster

    async def read() -> Cluster:
        async with get_client() as client:
            return await read_cluster(client, liveness_seconds=context.liveness_seconds)

    try:
        cluster: Cluster | None = run_coro_as_sync(read())
    except Exception:
        _logger.warning("The nodes could not be read; the worker decides.", exc_info=True)
        return Cluster()
    return cluster or Cluster()


def _drive(result: Any, body: FlowBody | None) -> None:
    """Run what `run_flow` only prepared: coroutines and generators."""
    if inspect.isasyncgen(result):

        async def consume() -> None:
            async for _ in result:
                pass

        asyncio.run(_await_flow(consume(), body))
    elif inspect.isgenerator(result):
        for _ in result:
            pass
    elif asyncio.iscoroutine(result):
        asyncio.run(_await_flow(result, body))


async def _await_flow(flow: Coroutine[Any, Any, Any], body: FlowBody | None) -> None:
    await (flow if body is None else body.termination.aborting(flow))


def main() -> None:
    """Run the flow run that `PREFECT__FLOW_RUN_ID` names."""
    text = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PREFECT__FLOW_RUN_ID", "")
    try:
        flow_run_id = UUID(text)
    except ValueError:
        _logger.error("PREFECT__FLOW_RUN_ID is %r, expected a flow run's id.", text)
        sys.exit(1)
    with handle_engine_signals(flow_run_id):
        flow_run = load_flow_run(flow_run_id)
        logger = flow_run_logger(flow_run)
        try:
            flow = load_flow(flow_run)
        except Exception as error:
            logger.error("The flow could not be loaded.", exc_info=True)
            write_report(
                environment.EngineReport(
                    diagnosis=diagnose(Evidence(phase="run", exception=exception_info(error))),
                    phase="load",
                    state_message=f"The flow could not be loaded: {type(error).__name__}: {error}",
                )
            )
            raise
        context = read_context()
        body = None if context is None else FlowBody(flow, flow_run, context)
        if body is not None:
            flow = body.wrapped_flow()
        # The adapter itself: its records name the run, for the API and for the console.
        error_logger: Any = logger
        try:
            with contextlib.nullcontext() if body is None else body.listening():
                _drive(run_flow(flow, flow_run=flow_run, error_logger=error_logger), body)
        except Abort:
            if body is not None and body.termination.came:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                run_cancellation_hooks(flow, flow_run)
            raise


if __name__ == "__main__":
    main()
