"""The children of one task runner: leased for one body each, started and ended as needed."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prefect_heteroflow.core.local_capacity import Free, Wish, next_grant
from prefect_heteroflow.core.resources import Gpu, Node
from prefect_heteroflow.infra.memory_limits import MemoryLimit, create_memory_limit
from prefect_heteroflow.task_runner.frames import PartsSent
from prefect_heteroflow.task_runner.submission_order import SubmissionOrder

if TYPE_CHECKING:
    from prefect_heteroflow.task_runner.template import ChildProcess, Template


PATIENCE_SECONDS = 1.0
"""How long a slot stays free for a task that was submitted earlier and has not come for it yet.
Prefect's engines of 128 tasks that start at once take about as long on two cores."""


class LeaseCancelled(Exception):
    """The flow is being cancelled: no further body starts."""


@dataclass(slots=True, kw_only=True, eq=False)
class Child:
    """One child process with its memory limit and its GPUs."""

    process: ChildProcess
    limit: MemoryLimit
    gpus: tuple[Gpu, ...]
    calls: int = 0
    oom_kills: int = 0
    """Processes killed for memory before the body that runs now."""
    cancelled: bool = False
    unusable: bool = False
    """It must not run another body."""
    has_begun: bool = False
    """The body of the newest call may have run."""
    bodies: PartsSent[bool] = field(default_factory=PartsSent)
    flows: PartsSent[bool] = field(default_factory=PartsSent)

    @property
    def kind(self) -> tuple[int, tuple[str, ...]]:
        """What has to be equal for two children to stand for each other."""
        return self.limit.memory_mb, tuple(gpu.uuid for gpu in self.gpus)

    def kill(self) -> None:
        """End the process and everything below it by force."""
        self.unusable = True
        self.process.send_signal(signal.SIGKILL)
        self.limit.kill_all()

    def interrupt(self, grace_seconds: float) -> None:
        """KeyboardInterrupt in the body, and force if it goes on; returns when it has stopped."""
        self.unusable = True
        self.process.send_signal(signal.SIGINT)
        if not self.process.ended.wait(grace_seconds):
            self.kill()

    def retire(self) -> None:
        """Let an idle child leave, and take its limit away."""
        self.process.close()
        if not self.process.ended.wait(2.0):
            self.kill()
            self.process.ended.wait(10.0)
        self.limit.close()


@dataclass(slots=True, eq=False)
class Turn:
    """The right to run one body, waited for or given."""

    wish: Wish
    number: int
    """Lower ones go first."""
    granted: threading.Event = field(default_factory=threading.Event)
    gpus: tuple[Gpu, ...] | None = None
    child: Child | None = None
    """Once `Children.take` gave one."""


class Children:
    """At most `max_children` child processes, each busy with one body or idle and warm.

    Args:
        template: Gives the template process to fork from.
        node: What this machine has.
        max_children: Bodies that run at once, 1 or more.
        cancel_grace_seconds: Between the interrupt of a body and its end by force.
        on_limit: Told of the first memory limit, for the log.
    """

    def __init__(
        self,
        template: Callable[[], Template],
        node: Node,
        *,
        max_children: int,
        cancel_grace_seconds: float,
        on_limit: Callable[[MemoryLimit], None] | None = None,
    ) -> None:
        self._template = template
        self._node = node
        self._max_children = max_children
        self._cancel_grace_seconds = cancel_grace_seconds
        self._on_limit = on_limit
        self._lock = threading.Lock()
        self._order = SubmissionOrder()
        self._waiting: list[Turn] = []
        """By number."""
        self._busy: dict[Child | Turn, Wish] = {}
        self._exclusive: set[str] = set()
        self._shared: Counter[str] = Counter()
        self._idle: list[Child] = []
        self._numbers = itertools.count(1)
        self._token = uuid.uuid4().hex[:12]
        self._cancelled = False

    def next_number(self, *, is_expected: bool) -> int:
        """The number of the next task that is submitted.

        Args:
            is_expected: It will soon come for its turn: until then later ones wait a little for it,
                where there is but one child. Several run beside each other in any case.
        """
        waits = is_expected and self._max_children == 1
        with self._lock:
            return self._order.next_number(is_expected=waits)

    def expect_no_more(self, number: int) -> None:
        """The task has ended, or needs no child: nobody waits for it."""
        with self._lock:
            if self._order.expect_no_more(number):
                self._grant()

    @contextlib.contextmanager
    def turn(self, wish: Wish, number: int, *, max_calls: int | None) -> Iterator[Turn]:
        """A slot for one body, with GPUs of its own; `take` gives the child for it.

        Waits until it comes, in the order of the numbers. A child that was taken is kept warm
        afterwards, unless it ran `max_calls` bodies, was cancelled, or died.

        Raises:
            LeaseCancelled: The flow is cancelled before its turn came.
        """
        turn = Turn(wish, number)
        with self._lock:
            if self._cancelled:
                raise LeaseCancelled
            self._order.expect_no_more(number)
            bisect.insort(self._waiting, turn, key=lambda waiting: waiting.number)
            self._grant()
        if not turn.granted.wait(PATIENCE_SECONDS):
            with self._lock:
                self._order.expect_none_before(number)
                self._grant()
            turn.granted.wait()
        if turn.gpus is None:
            raise LeaseCancelled
        try:
            yield turn
        finally:
            self._give_back(turn, max_calls)

    def cancel(self) -> None:
        """Interrupt all bodies, then end by force what goes on; nothing starts any more."""
        with self._lock:
            self._cancelled = True
            waiting, self._waiting = self._waiting, []
            busy = [child for child in self._busy if isinstance(child, Child)]
            for child in busy:
                child.cancelled = True
        for turn in waiting:
            turn.granted.set()
        threads = [
            threading.Thread(target=child.interrupt, args=(self._cancel_grace_seconds,))
            for child in busy
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Let the idle children leave. No body runs any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.process.close()
        for child in idle:
            child.retire()

    def _grant(self) -> None:
        """Let those in line start for whom there is room; the lock is held."""
        while grant := next_grant([turn.wish for turn in self._waiting], self._free()):
            if not self._order.is_first(self._waiting[grant.index].number):
                return  # the one that comes before it calls this
            turn = self._waiting.pop(grant.index)
            turn.gpus = grant.gpus
            self._busy[turn] = turn.wish
            for gpu in grant.gpus:
                if turn.wish.shares_gpu:
                    self._shared[gpu.uuid] += 1
                else:
                    self._exclusive.add(gpu.uuid)
            turn.granted.set()

    def _free(self) -> Free:
        reserved = sum(wish.reserved_mb for wish in self._busy.values())
        return Free(
            slots=self._max_children - len(self._busy),
            memory_mb=self._node.memory_mb - reserved,
            gpus=self._node.gpus,
            exclusive=frozenset(self._exclusive),
            shared=self._shared,
        )

    def take(self, turn: Turn, memory_mb: int) -> Child:
        """The child for it under that limit: an idle one, or a new one.

        Raises:
            LeaseCancelled: The flow is cancelled.
            ChildNotStarted: There is no process to be had.
        """
        gpus = turn.gpus or ()
        wanted = memory_mb, tuple(gpu.uuid for gpu in gpus)
        retired: list[Child] = []
        with self._lock:
            child = next((child for child in self._idle if child.kind == wanted), None)
            if child is not None:
                self._idle.remove(child)
            else:
                retired = self._make_room(gpus)
        for old in retired:
            old.retire()
        if child is None or child.process.ended.is_set():
            if child is not None:
                child.retire()
            child = self._start(memory_mb, gpus)
        with self._lock:
            child.cancelled = self._cancelled
            turn.child = child
            self._busy[child] = self._busy.pop(turn)
        if child.cancelled:
            raise LeaseCancelled
        child.oom_kills = child.limit.oom_kill_count() or 0
        return child

    def drop(self, turn: Turn) -> None:
        """Let its child go, which died before the body began; `take` gives another one."""
        child = turn.child
        assert child is not None
        child.retire()
        with self._lock:
            self._busy[turn] = self._busy.pop(child)
            turn.child = None

    def _make_room(self, gpus: tuple[Gpu, ...]) -> list[Child]:
        """Idle children that have to leave for a new one; the lock is held."""
        taken = {gpu.uuid for gpu in gpus}
        # An idle child may still hold memory of a GPU that is somebody else's now.
        leaving = [child for child in self._idle if taken & {gpu.uuid for gpu in child.gpus}]
        kept = [child for child in self._idle if child not in leaving]
        while kept and len(self._busy) + len(kept) > self._max_children:
            leaving.append(kept.pop(0))
        self._idle = kept
        return leaving

    def _start(self, memory_mb: int, gpus: tuple[Gpu, ...]) -> Child:
        name = f"task-{self._token}-{next(self._numbers)}"
        limit = create_memory_limit(name, memory_mb)
        try:
            process = self._template().fork()
        except BaseException:
            limit.close()
            raise
        assert process.pid is not None
        try:
            limit.enter(process.pid)
        except BaseException:
            process.close()
            limit.close()
            raise
        if self._on_limit is not None:
            self._on_limit(limit)
            self._on_limit = None
        return Child(process=process, limit=limit, gpus=gpus)

    def _give_back(self, turn: Turn, max_calls: int | None) -> None:
        child = turn.child
        keep = (
            child is not None
            and not child.unusable
            and not child.cancelled
            and not child.process.ended.is_set()
            and (max_calls is None or child.calls < max_calls)
        )
        if child is not None and not keep:
            child.retire()
        with self._lock:
            wish = self._busy.pop(turn if child is None else child)
            if child is not None and keep:
                self._idle.append(child)
            for gpu in turn.gpus or ():
                if wish.shares_gpu:
                    self._shared[gpu.uuid] -= 1
                else:
                    self._exclusive.discard(gpu.uuid)
            self._grant()


def visible_devices(gpus: tuple[Gpu, ...], node: Node) -> str:
    """What CUDA is to see: UUIDs of real GPUs, numbers of declared ones."""
    uuids = [gpu.uuid for gpu in gpus]
    if all(found.startswith(("GPU-", "MIG-")) for found in uuids):
        return ",".join(uuids)
    numbers = {gpu.uuid: str(index) for index, gpu in enumerate(node.gpus)}
    return ",".join(numbers[found] for found in uuids)
