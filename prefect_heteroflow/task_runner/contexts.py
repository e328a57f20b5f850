"""The contexts of a task run: taken apart in the flow's process, entered in the child."""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from prefect.context import AssetContext, FlowRunContext, TagsContext, TaskRunContext, tags
from prefect.flows import Flow
from prefect.futures import resolve_futures_to_states
from prefect.locking.memory import MemoryLockManager
from prefect.logging.loggers import patch_print
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_heteroflow.task_runner.default_arguments import defaults_in, with_own_defaults
from prefect_heteroflow.task_runner.exceptions_sent import WithExceptions
from prefect_heteroflow.task_runner.flow_parameters import names_sent, with_stand_ins
from prefect_heteroflow.task_runner.pickles import to_pickle

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, TaskRun
    from prefect.futures import PrefectConcurrentFuture
    from prefect.results import ResultStore


@dataclass(slots=True, kw_only=True)
class FlowPart:
    """What bodies see of their flow run; the same for all of its tasks."""

    name: str
    version: str | None
    flow_run: FlowRun | None
    parameters: dict[str, Any] | None
    """Those that are sent."""
    not_sent: tuple[str, ...]
    """Names of the others."""
    result_store: ResultStore
    log_prints: bool
    persist_result: bool
    stand_in: Flow[..., Any] | None = field(default=None)
    """In the child: a flow of that name, since the real one is not sent."""


@dataclass(slots=True, kw_only=True)
class RunPart:
    """What a body sees of its own task run."""

    task_run: TaskRun
    parameters: dict[str, Any]
    defaults: tuple[str, ...]
    """Parameters that have the default of their signature; some of them are not sent."""
    log_prints: bool
    persist_result: bool
    result_store: ResultStore
    tags: tuple[str, ...]
    asset_context: dict[str, Any] | None


class _MemoryLocks(MemoryLockManager):
    """Stands for the one of the process that loads it, without the locks of this one."""

    def __new__(cls) -> _MemoryLocks:
        return object.__new__(cls)

    def __init__(self) -> None:
        """Has no locks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryLockManager, ()


def _without_own(store: ResultStore) -> ResultStore:
    """The store without what is only of this process: results in memory, and locks there.

    The former would be all results of the flow, with each of its tasks.
    """
    changes: dict[str, Any] = {"cache": type(store.cache)(maxsize=store.cache.maxsize)}
    if type(store.lock_manager) is MemoryLockManager:
        changes["lock_manager"] = _MemoryLocks()
    return store.model_copy(update=changes)


def pack_flow(
    context: FlowRunContext, *, on_not_sent: Callable[[tuple[str, ...]], None] | None = None
) -> bytes:
    """The flow's part as bytes, with those of its parameters that are sent.

    Args:
        context: Of the flow run.
        on_not_sent: Told of the names of the others, if there are any.
    """
    flow, run = context.flow, context.flow_run
    sent = names_sent(context.parameters or {})
    not_sent = tuple(name for name in context.parameters or {} if name not in sent)
    if run is not None and not_sent:  # it has them once more, as JSON
        known = {name: value for name, value in run.parameters.items() if name not in not_sent}
        run = run.model_copy(update={"parameters": known})
    if not_sent and on_not_sent is not None:
        on_not_sent(not_sent)
    part = FlowPart(
        name=flow.name if flow is not None else "",
        version=flow.version if flow is not None else None,
        flow_run=run,
        parameters=_of(context.parameters, sent),
        not_sent=not_sent,
        result_store=_without_own(context.result_store),
        log_prints=context.log_prints,
        persist_result=context.persist_result,
    )
    # Where an exception in it could not be loaded, no task of the flow could run.
    return WithExceptions()(part)


def _of(parameters: dict[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    return None if parameters is None else {name: parameters[name] for name in names}


def pack_run(
    context: TaskRunContext,
    *,
    defaults_are_sent: bool = False,
    to_bytes: Callable[[Any], bytes] = to_pickle,
) -> bytes:
    """The task run's part as bytes.

    Args:
        context: Of the task run.
        defaults_are_sent: The defaults of the signature go with the body itself.
        to_bytes: Pickles it.

    Raises:
        Exception: Some parameter cannot be pickled; of whatever type pickle or the value raises.
    """
    assets = AssetContext.get()
    seen = TagsContext.get()
    part = RunPart(
        task_run=context.task_run,
        parameters=context.parameters,
        defaults=defaults_in(context.task.fn, context.parameters),
        log_prints=context.log_prints,
        persist_result=context.persist_result,
        result_store=_without_own(context.result_store),
        tags=tuple(sorted(seen.current_tags)) if seen is not None else (),
        asset_context=assets.serialize() if assets is not None and _tells(assets) else None,
    )
    if part.defaults and not defaults_are_sent:
        try:
            return to_bytes(part)
        except Exception:  # perhaps a default that lives in its process only, such as a lock
            pass
    part.parameters = {
        name: value for name, value in part.parameters.items() if name not in part.defaults
    }
    return to_bytes(part)


def load_run(data: bytes, task: Task[..., Any]) -> RunPart:
    """The task run's part in the process that runs the body.

    Args:
        data: From `pack_run`.
        task: The task in this process.
    """
    part: RunPart = pickle.loads(data)
    part.parameters = with_own_defaults(task.fn, part.parameters, part.defaults)
    return part


def _tells(assets: AssetContext) -> bool:
    return bool(assets.downstream_assets or assets.direct_asset_dependencies)


@contextmanager
def entered(
    task: Task[..., Any],
    flow: FlowPart | None,
    run: RunPart,
    client: SyncPrefectClient,
    assets: dict[str, dict[str, Any]],
) -> Iterator[None]:
    """The contexts in which Prefect's engine runs the body, as far as a child can have them.

    Tasks that the body submits run in threads of the child, under its memory limit.

    Args:
        task: The task.
        flow: Its flow run's part, `None` outside of a flow.
        run: Its own part.
        client: The child's client.
        assets: Takes up the metadata that the body adds to its assets.
    """
    with ExitStack() as stack:
        if run.log_prints:
            stack.enter_context(patch_print())
        if flow is not None:
            stack.enter_context(_flow_context(stack, flow, client))
        stack.enter_context(
            TaskRunContext(
                task=task,
                task_run=run.task_run,
                client=client,
                parameters=run.parameters,
                log_prints=run.log_prints,
                persist_result=run.persist_result,
                result_store=run.result_store,
            )
        )
        if run.tags:
            stack.enter_context(tags(*run.tags))
        if run.asset_context is not None:
            found = stack.enter_context(AssetContext(**run.asset_context))
            stack.callback(lambda: assets.update(found.materialization_metadata))
        yield


def _flow_context(stack: ExitStack, flow: FlowPart, client: SyncPrefectClient) -> FlowRunContext:
    if flow.stand_in is None:
        flow.stand_in = Flow(_nothing, name=flow.name, version=flow.version)
    runner = stack.enter_context(_InnerTasks())
    return FlowRunContext(
        flow=flow.stand_in,
        flow_run=flow.flow_run,
        client=client,
        task_runner=runner,
        parameters=with_stand_ins(flow.parameters, flow.not_sent),
        result_store=flow.result_store,
        log_prints=flow.log_prints,
        persist_result=flow.persist_result,
        detached=True,
    )


class _InnerTasks(ThreadPoolTaskRunner[Any]):
    """Runs what a body submits, and knows what of that still runs."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[concurrent.futures.Future[Any]] = set()
        self.was_used = False

    def submit(self, *arguments: Any, **keywords: Any) -> PrefectConcurrentFuture[Any]:
        self.was_used = True
        future = super().submit(*arguments, **keywords)
        self._running.add(future.wrapped_future)
        future.wrapped_future.add_done_callback(self._running.discard)
        return future

    def wait(self) -> None:
        """Until all that was submitted has ended, and what that submitted."""
        while running := self._running.copy():
            concurrent.futures.wait(running)


def value_of(body: Callable[[], Any]) -> Any:
    """The value of the body, within its contexts, when the tasks that it submitted have ended.

    As with threads, a body need not wait for them. Its futures mean nothing in another process;
    in the value they become what they become in the value of a flow: states.

    Args:
        body: Calls it.
    """
    flow = FlowRunContext.get()
    inner = flow.task_runner if flow is not None else None
    if not isinstance(inner, _InnerTasks):
        return body()
    try:
        value = body()
    except (KeyboardInterrupt, CancelledError):
        raise  # it is to end at once
    except BaseException:
        inner.wait()
        raise
    if inner.was_used:
        inner.wait()
        value = resolve_futures_to_states(value)
    return value


def _nothing() -> None:
    """The body of the stand-in flow; nobody calls it."""


def slim(task: Task[..., Any]) -> Task[..., Any]:
    """A copy of the task without what only the engine needs, so that less can fail to pickle."""
    light: Any = copy.copy(task)
    light.on_failure_hooks = []
    light.on_completion_hooks = []
    light.on_running_hooks = []
    light.on_commit_hooks = []
    light.on_rollback_hooks = []
    light.retry_condition_fn = None
    light.cache_key_fn = None
    light.cache_policy = None
    light.task_run_name = None
    return cast("Task[..., Any]", light)


def pack_value(task: Task[..., Any], *, to_bytes: Callable[[Any], bytes] = to_pickle) -> bytes:
    """The task by value.

    Raises:
        Exception: It refers to something that cannot be pickled.
    """
    return pickle.dumps(("value", to_bytes(slim(task))))
