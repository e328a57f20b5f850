"""`HeteroTaskRunner`: tasks that survive being killed, and grow."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, ExternalSignal
from prefect.logging.loggers import get_run_logger
from prefect.settings.context import get_current_settings
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import ValidationError

from prefect_heteroflow.core.job_values import JobValueError
from prefect_heteroflow.core.resources import Cluster
from prefect_heteroflow.core.task_places import room_for_bodies
from prefect_heteroflow.core.task_requirements import Requirements, exception_names
from prefect_heteroflow.orchestration.nodes import read_cluster
from prefect_heteroflow.settings import HeteroflowSettings, settings_problem
from prefect_heteroflow.task_runner.children import Children
from prefect_heteroflow.task_runner.errors import origin_of
from prefect_heteroflow.task_runner.home import (
    flow_share_mb,
    own_pool,
    read_given_delays,
    read_home,
)
from prefect_heteroflow.task_runner.local_attempts import LocalAttempts
from prefect_heteroflow.task_runner.lost_results import FutureInMemory, Producers, not_read
from prefect_heteroflow.task_runner.next_attempt import Places
from prefect_heteroflow.task_runner.remote_attempts import OtherPools
from prefect_heteroflow.task_runner.requirements import requirements_of
from prefect_heteroflow.task_runner.retry_rules import RetryRules, retry_rules
from prefect_heteroflow.task_runner.submission_order import holds_futures
from prefect_heteroflow.task_runner.task_life import TaskLife
from prefect_heteroflow.task_runner.template import Template, template_for
from prefect_heteroflow.task_runner.waiting_out import wait_out
from prefect_heteroflow.user_rules_file import load_user_rules

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import RunInput
    from prefect.futures import PrefectConcurrentFuture, PrefectFuture

    from prefect_heteroflow.core.user_rules import UserRule
    from prefect_heteroflow.infra.memory_limits import MemoryLimit
    from prefect_heteroflow.task_runner.attempts_elsewhere import RemoteAttempts

_ENGINE_THREADS_PER_CHILD = 16
"""Task runs that wait (for inputs, for a retry) hold a thread, not a child."""
_LEAST_ENGINE_THREADS = 128


class HeteroTaskRunner(ThreadPoolTaskRunner[Any]):
    """Runs the bodies of tasks in warm child processes that may die without harm to the others.

    Prefect's engine (states, retries, caching, transactions, hooks, results) runs in threads of the
    flow's process, as with `ThreadPoolTaskRunner`. A body that is killed, crashes or runs out of
    memory fails alone and is retried by the retry policy, with more memory where that was the
    reason.

    ```python
    @task
    @requires(memory_mb=2048)
    def load(day: str) -> int: ...

    @flow(task_runner=HeteroTaskRunner())
    def nightly(days: list[str]) -> list[int]:
        return load.map(days).result()
    ```

    Everything that is not given comes from the settings of `prefect-heteroflow`. What a task says
    itself (`retries`, `retry_delay_seconds`, `retry_condition_fn`, `requires`) counts before both.

    Args:
        max_workers: Bodies that run at once, 1 or more; by default the CPUs and 4, at most 32.
        max_retries: Retries after the first attempt for tasks without `retries`; -1 never gives up,
            0 is off. Default 3.
        retry_exceptions: Whether exceptions of a body are retried: False, True, or a list of types
            and their names. Default False.
        retry_strategy: `retry_new_node`, `retry_same_node` or `no_retry`.
        max_calls: A child process leaves after so many bodies. By default it stays, and with a GPU
            it leaves after each.
        memory_mb: Memory limit of the first attempt in MiB. Default 2048, or
            what the flow itself may use if that is less.
        cancel_grace_seconds: Between the interrupt of a body and its end by force. Default 30.

    Raises:
        ValueError: An option is out of its range; the text names it and what is allowed.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        max_retries: int | None = None,
        retry_exceptions: bool | Sequence[type[BaseException] | str] | None = None,
        retry_strategy: str | None = None,
        max_calls: int | None = None,
        memory_mb: int | None = None,
        cancel_grace_seconds: float | None = None,
    ) -> None:
        if max_workers is not None and (isinstance(max_workers, bool) or max_workers < 1):
            raise ValueError(f"max_workers {max_workers!r}: allowed is a whole number, 1 or more")
        if cancel_grace_seconds is not None and not 0 <= cancel_grace_seconds <= 86400:
            raise ValueError(
                f"cancel_grace_seconds {cancel_grace_seconds!r}: allowed is 0 to 86400 seconds"
            )
        self._requirements = Requirements(
            max_retries=max_retries,
            retry_exceptions=exception_names(retry_exceptions),
            retry_strategy=retry_strategy,
            max_calls=max_calls,
            memory_mb=memory_mb,
        )
        self._max_children = default_max_workers() if max_workers is None else max_workers
        self._cancel_grace_seconds = cancel_grace_seconds
        threads = max(_LEAST_ENGINE_THREADS, _ENGINE_THREADS_PER_CHILD * self._max_children)
        super().__init__(max_workers=threads)
        self._forget()

    def _forget(self) -> None:
        """The state of a runner that is not started."""
        self._start_lock = threading.Lock()
        self._places: Places | None = None
        self._children: Children | None = None
        self._defaults: dict[str, Any] = {}
        self._file_rules: tuple[UserRule, ...] = ()
        self._rules: dict[tuple[Requirements, int], RetryRules] = {}
        self._said: set[tuple[str, str]] = set()
        self._ends_by_force = False

    @property
    def remote(self) -> RemoteAttempts | None:
        """Runs attempts on other pools; `None` before the first submit."""
        return None if self._places is None else self._places.remote

    def duplicate(self) -> HeteroTaskRunner:
        """A runner with the same options, not started."""
        requirements = self._requirements
        return type(self)(
            max_workers=self._max_children,
            max_retries=requirements.max_retries,
            retry_exceptions=requirements.retry_exceptions,
            retry_strategy=requirements.retry_strategy,
            max_calls=requirements.max_calls,
            memory_mb=requirements.memory_mb,
            cancel_grace_seconds=self._cancel_grace_seconds,
        )

    def submit(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> PrefectConcurrentFuture[Any]:
        """Submit a task: its engine to a thread, its body to a child.

        Args:
            task: The task.
            parameters: Its parameters.
            wait_for: Futures that it depends on.
            dependencies: Inputs for the tracking of dependencies.

        Raises:
            ValueError: A setting cannot be used.
            RuntimeError: The runner is not started.
        """
        if not self._started:
            raise RuntimeError("Task runner is not started")
        if task.isgenerator:
            self._say_once(task.name, "it is a generator, so it runs in the flow's own process")
            return super().submit(task, parameters, wait_for, dependencies)
        places = self._started_places()
        requirements = requirements_of(task.fn, self._requirements)
        refusal: JobValueError | None = None
        try:
            rules = self._rules_of(requirements, task.retries)
        except JobValueError as error:
            # What one task asks for is an error of that task; the flow goes on.
            refusal, rules = error, self._rules_of(Requirements(), 0)
        assert self._children is not None  # as the places
        expect_no_more = self._children.expect_no_more
        number = self._children.next_number(
            is_expected=not wait_for and not holds_futures(parameters)
        )
        life = TaskLife(task, rules, requirements, places, number, refusal=refusal)
        future = super().submit(
            life.engine_task,
            places.producers.readable(parameters),
            None if wait_for is None else not_read(wait_for),
            dependencies,
        )
        future.wrapped_future.add_done_callback(lambda _: expect_no_more(number))
        return FutureInMemory(future.task_run_id, future.wrapped_future)

    def cancel_all(self) -> None:
        """Start nothing any more, and wait for what runs; if the flow is cancelled, end it."""
        if self._ends_by_force and self._children is not None:
            for event in self._cancel_events.values():
                event.set()
            self._children.cancel()
            if self.remote is not None:
                self.remote.cancel()
        super().cancel_all()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self._ends_by_force = _asks_for_the_end(exc_value)
        try:
            super().__exit__(exc_type, exc_value, traceback)
        finally:
            if self._children is not None:
                self._children.close()
            self._forget()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeteroTaskRunner):
            return False
        return self._options() == other._options()

    __hash__ = None  # type: ignore[assignment]

    def _options(self) -> tuple[Any, ...]:
        return self._requirements, self._max_children, self._cancel_grace_seconds

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for name in ("_start_lock", "_places", "_children", "_executor", "_cancel_events"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._executor = None
        self._cancel_events = {}
        self._started = False
        self._forget()

    def _rules_of(self, requirements: Requirements, retries: int) -> RetryRules:
        """The same for all tasks of a `map`, so they are read once."""
        key = (requirements, retries)
        found = self._rules.get(key)
        if found is None:
            assert self._places is not None  # made at the first submit
            found = retry_rules(
                requirements,
                self._defaults,
                self._file_rules,
                task_retries=retries,
                home_memory_mb=self._places.home.memory_mb,
            )
            self._rules[key] = found
        return found

    # ---- the first submit ----------------------------------------------------------------------

    def _started_places(self) -> Places:
        with self._start_lock:
            if self._places is None:
                self._places = self._start()
            return self._places

    def _start(self) -> Places:
        try:
            settings = HeteroflowSettings()
        except ValidationError as error:
            raise ValueError(settings_problem(error)) from error
        self._defaults = settings.model_dump() | read_given_delays()
        if settings.rules_file is not None:
            self._file_rules = load_user_rules(settings.rules_file)
        home = read_home(settings, own_pool())
        room = room_for_bodies(home, flow_share_mb())
        grace = self._cancel_grace_seconds
        self._children = Children(
            _template_maker(),
            room,
            max_children=self._max_children,
            cancel_grace_seconds=settings.cancel_grace_seconds if grace is None else grace,
            on_limit=self._say_limit,
        )
        return Places(
            home=home,
            room=room,
            local=LocalAttempts(home, self._children, self._say_once),
            remote=OtherPools(
                lambda: _read_cluster(settings.node_liveness_seconds),
                lost_contact_timeout=settings.lost_contact_timeout,
            ),
            producers=Producers(),
            read_cluster=lambda: wait_out(
                lambda: _read_cluster(settings.node_liveness_seconds),
                is_over=lambda: self._ends_by_force,
            ),
            say_once=self._say_once,
        )

    def _say_limit(self, limit: MemoryLimit) -> None:
        notes = "".join(f"; {note}" for note in limit.notes)
        self.logger.debug("Memory limits of tasks are kept by %s%s.", limit.kind, notes)

    def _say_once(self, name: str, text: str) -> None:
        if (name, text) in self._said:
            return
        self._said.add((name, text))
        context = FlowRunContext.get()
        logger = self.logger if context is None else get_run_logger(context)
        logger.warning("Task %r: %s.", name, text)


def default_max_workers() -> int:
    """Bodies that run at once when nothing is said: the CPUs and 4, at most 32."""
    return min(32, (os.cpu_count() or 1) + 4)


_SIGNALS = (KeyboardInterrupt, ExternalSignal, asyncio.CancelledError, Abort)
"""Ctrl-C, SIGTERM, a timeout or SIGTERM within an event loop, and a run that goes on elsewhere."""


def _asks_for_the_end(error: BaseException | None) -> bool:
    """Whether tasks shall not outlive a flow that ends like that.

    What else a flow raises lets them end, as with threads: its exceptions, `sys.exit`, and what a
    body raised, as the result of a task.
    """
    return isinstance(error, _SIGNALS) and origin_of(error).attempt is None


def _template_maker() -> Callable[[], Template]:
    """Gives the template for the Prefect settings as they are now."""
    values = get_current_settings().to_environment_variables(
        exclude_unset=True, include_secrets=True
    )
    context = FlowRunContext.get()
    if "PREFECT_API_URL" not in values and context is not None:
        # A temporary server that this process started: children shall not start another.
        values["PREFECT_API_URL"] = str(context.client.api_url).rstrip("/")
    template_for(values)  # its imports take seconds: they begin now
    return lambda: template_for(values)


def _read_cluster(liveness_seconds: float) -> Cluster:
    async def read() -> Cluster:
        async with get_client() as client:
            return await read_cluster(client, liveness_seconds=liveness_seconds)

    found: Cluster = run_coro_as_sync(read())
    return found
