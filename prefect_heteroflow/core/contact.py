"""Whether an attempt that is watched from afar is alive, has ended, or is lost.

Only silence loses an attempt: unbroken, for the whole timeout, and heard over a line that works.
An attempt that answers is never ended for taking long. While our own line is down (the Prefect
API, the way to the Docker engine) or we did not look (a paused or suspended watcher), nothing can
be said about the attempt: that time does not count, and the silence before it is not continued.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.resources import Cluster, Node

LOOKS = 2
"""At how many a run must have stood still that seems left by a worker which no row names."""
_LOOKS_WITHOUT_LABELS = 8
"""The same where a live worker may have taken it and be about to say so."""


class Answer(str, Enum):
    """What one look at an attempt gave."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It ended without success; its evidence can be read."""
    ALIVE = "alive"
    """Queued, pending, starting or running."""
    SILENT = "silent"
    """Whoever should know of it was asked and has no sign of life."""
    LINE_DOWN = "line-down"
    """Nobody could be asked: it says nothing about the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """What is remembered between two looks. Times are seconds on the watcher's own clock."""

    looked_at: float | None = None
    """The last look; `None` before the first."""
    silent_since: float | None = None
    """First look of an unbroken silence."""
    line_down_since: float | None = None
    """First look of an outage of our own line."""
    heartbeat: float | None = None
    """Stamp of the newest heartbeat. Only compared with the next one, so whose clock it is does
    not matter."""
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Look again later."""

    note: str | None = None
    """A sentence for the run's log when something changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """It answered that it has ended."""

    succeeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """It counts as `NodeLost`. What it says later is not accepted."""

    reason: str


Judgement = Watch | Ended | Lost


def look(
    contact: Contact,
    answer: Answer,
    *,
    now: float,
    lost_contact_timeout: float,
    longest_pause: float,
    heartbeat: float | None = None,
) -> tuple[Contact, Judgement]:
    """What one more look says of the attempt, and what to remember.

    Args:
        contact: What was remembered; `Contact()` at first.
        answer: What this look gave.
        now: The time of this look, seconds on a clock that does not jump.
        lost_contact_timeout: Seconds of unbroken silence that lose it.
        longest_pause: Longest time between two looks, in seconds, that still counts as looking
            all the time: a few poll intervals.
        heartbeat: Stamp of the newest heartbeat of the run, if it sends any. A new one is a sign
            of life whatever the answer was.
    """
    if contact.lost:
        return contact, Lost(reason="It was given up as lost before.")
    if answer in (Answer.SUCCEEDED, Answer.FAILED):
        after = replace(contact, looked_at=now)
        return after, Ended(succeeded=answer is Answer.SUCCEEDED)
    beats = heartbeat is not None and (contact.heartbeat is None or heartbeat > contact.heartbeat)
    contact = replace(contact, heartbeat=heartbeat if beats else contact.heartbeat)
    if answer is Answer.ALIVE or beats:
        return _alive(contact, now)
    if answer is Answer.LINE_DOWN:
        return _line_down(contact, now)
    return _silent(contact, now, lost_contact_timeout, longest_pause)


def _alive(contact: Contact, now: float) -> tuple[Contact, Watch]:
    note = None
    if contact.line_down_since is not None:
        note = f"The line is back after {now - contact.line_down_since:.0f} s; the attempt lives."
    elif contact.silent_since is not None:
        note = f"The attempt answers again after {now - contact.silent_since:.0f} s of silence."
    after = replace(contact, looked_at=now, silent_since=None, line_down_since=None)
    return after, Watch(note=note)


def _line_down(contact: Contact, now: float) -> tuple[Contact, Watch]:
    note = None
    if contact.line_down_since is None:
        note = "Nobody can be asked about the attempt now; this is waited out, nothing is ended."
    since = now if contact.line_down_since is None else contact.line_down_since
    after = replace(contact, looked_at=now, silent_since=None, line_down_since=since)
    return after, Watch(note=note)


def _silent(
    contact: Contact, now: float, timeout: float, longest_pause: float
) -> tuple[Contact, Judgement]:
    looked_on = contact.looked_at is not None and now - contact.looked_at <= longest_pause
    since = contact.silent_since if looked_on else None
    if since is None:
        after = replace(contact, looked_at=now, silent_since=now, line_down_since=None)
        return after, Watch(note=f"No sign of life; it counts as lost after {timeout:.0f} s of it.")
    if now - since < timeout:
        return replace(contact, looked_at=now), Watch()
    after = replace(contact, looked_at=now, lost=True)
    return after, Lost(reason=f"It gave no sign of life for {now - since:.0f} s.")


def has_gone_on_without(attempt: int, rows: Sequence[Attempt]) -> bool:
    """Whether an attempt is lost by its row, and a later one was started.

    While nobody has started another, its end still counts.
    """
    own = next((row for row in rows if row.attempt == attempt), None)
    if own is None or own.failure != FailureClass.NODE_LOST.value:
        return False
    return any(row.attempt > attempt and row.status is not AttemptStatus.SCHEDULED for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodStill:
    """How long a run was seen in one and the same state."""

    state: Hashable
    looks: int
    counted_at: float
    """The last look that counted, seconds on the watcher's own clock."""


def seen_again(
    before: StoodStill | None, state: Hashable, *, now: float, apart_seconds: float
) -> StoodStill:
    """What one more look at a run's state says of it.

    A worker that starts looks twice within a second: a run that was just taken looks the same then.

    Args:
        before: What the last look said.
        state: Id of the run's state.
        now: The time of this look, seconds on a clock that does not jump.
        apart_seconds: A look counts only so long after the last that did.
    """
    if before is None or before.state != state:
        return StoodStill(state=state, looks=1, counted_at=now)
    if now - before.counted_at < apart_seconds:
        return before
    return StoodStill(state=state, looks=before.looks + 1, counted_at=now)


class Whose(Enum):
    """Whose worker it was that left a run."""

    OURS = "this node's"
    ANOTHERS = "another one's, which may be alive"
    NOBODYS = "of a worker that cannot be told and is not alive"


def whose(
    left_by: str | None,
    *,
    taken_on: object,
    taker: object,
    worker_name: str,
    node: Node,
    others: Sequence[Node],
    looks: int,
    looks_of_silence: int,
) -> Whose:
    """Who has to settle a run that nobody seems to look after.

    A worker that was killed before it could store row or labels cannot be told. A live one stores
    them soon; one that is only silent may be cut off from the API, with the attempt alive.

    Args:
        left_by: Name of the node, if a row tells.
        taken_on: Name of the node whose worker has taken it, if the run's labels tell.
        taker: Name of the worker, if the run's labels tell. Several workers may have one name.
        worker_name: This worker's.
        node: This worker's.
        others: All nodes that are known.
        looks: At how many the run stood still.
        looks_of_silence: How many of them make a silent worker a lost one.
    """
    if left_by is not None or taken_on is not None:
        return Whose.OURS if (left_by or taken_on) == node.name else Whose.ANOTHERS
    if taker not in (None, worker_name):
        return Whose.ANOTHERS
    may_be = [it for it in others if it.pool == node.pool and it.name != node.name]
    if taker is not None and not any(it.live for it in may_be):
        return Whose.OURS
    if all(it.stopped for it in may_be):
        return Whose.OURS
    needed = _LOOKS_WITHOUT_LABELS if any(it.live for it in may_be) else LOOKS
    if any(not it.live and not it.stopped for it in may_be):
        needed = max(needed, looks_of_silence)
    return Whose.NOBODYS if looks >= needed else Whose.ANOTHERS


ENDS_WITH_ITS_WORKER = "heteroflow-process"
"""The worker type whose attempts are children of the worker; containers outlast theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Nobody looks after what a node ran for a pool."""

    is_over: bool
    """It has ended with its worker, which is known to be gone."""
    moved_to: str | None = None
    """Pool of the worker that has the node's name now, or had it last."""

    @property
    def of_worker(self) -> str:
        """What is the matter, as the end of a sentence about the worker."""
        if self.moved_to is not None:
            return f"is gone, the node has one of pool {self.moved_to}"
        return "was stopped" if self.is_over else "is away"

    @property
    def of_node(self) -> str:
        """What is the matter, as the end of a sentence about the node."""
        if self.moved_to is not None:
            return f"has no worker of its pool any more, but one of pool {self.moved_to}"
        return "has no worker: it was stopped" if self.is_over else "is away"


def absence_of(name: str, pool: str, cluster: Cluster) -> Absence | None:
    """Why nobody looks after what that node ran for that pool; `None` if somebody does.

    A node's name belongs to one live worker at a time: one of another pool proves that the worker
    of before is gone. It settles what that one has left, if it can see it: children have ended
    with their worker, and containers are found by who starts containers itself. `None` too for a
    node of which nothing is known.

    Args:
        name: The node, by the attempt's row.
        pool: Where the attempt ran.
        cluster: The nodes and pools that are known.
    """
    node = next((it for it in cluster.nodes if it.name == name), None)
    if node is None:
        return None
    types = {it.name: it.worker_type for it in cluster.pools}
    are_children = types.get(pool) == ENDS_WITH_ITS_WORKER
    if node.pool == pool:
        return None if node.live else Absence(is_over=node.stopped and are_children)
    is_seen = are_children or types.get(node.pool) != ENDS_WITH_ITS_WORKER
    if node.live and pool in node.former_pools and is_seen:
        return None
    return Absence(is_over=are_children, moved_to=node.pool)
