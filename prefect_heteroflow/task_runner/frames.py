"""Messages between the flow's process and a child, and what both remember of what was sent."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

Kept = TypeVar("Kept")

REMEMBERED_PARTS = 64

ReplyKind = Literal["returned", "raised", "interrupted", "unportable"]


@dataclass(slots=True, kw_only=True)
class Call:
    """One body to run. Parts that the child has already are `None`."""

    body_key: str
    body: bytes | None
    flow_key: str | None
    flow: bytes | None
    run: bytes
    """The task run, its parameters and the rest that differs from call to call."""
    variables: dict[str, str]
    """The whole environment of the body."""
    folder: str
    """Working folder."""
    path: list[str] | None
    """`sys.path` of the flow, if it has changed."""
    tells_start: bool
    """The child says when the body starts: its time limit counts from then, not from imports."""


@dataclass(slots=True, kw_only=True)
class Reply:
    """How a body ended, as seen by its child."""

    kind: ReplyKind
    value: bytes | None = None
    """The pickled value or exception; `None` if it cannot be pickled."""
    text: str = ""
    """Why it cannot be, or the exception in words."""
    info: Any = None
    """`ExceptionInfo` of an exception."""
    assets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metadata that the body added to assets."""


Message = tuple[Literal["log", "event", "started", "reply"], Any]


class PartsSent(Generic[Kept]):
    """The last parts that went to one child, by key.

    Both ends keep one and use it in the same order, so they agree on what the child still has.
    """

    def __init__(self, limit: int = REMEMBERED_PARTS) -> None:
        self._limit = limit
        self._parts: OrderedDict[str, Kept] = OrderedDict()

    def get(self, key: str) -> Kept | None:
        """The part, or `None` if it has to be sent; asking makes it the newest."""
        part = self._parts.get(key)
        if part is not None:
            self._parts.move_to_end(key)
        return part

    def __contains__(self, key: object) -> bool:
        """Whether the part is there; unlike `get`, this changes nothing."""
        return key in self._parts

    def put(self, key: str, part: Kept) -> None:
        """Remember a part that was sent, as the newest."""
        self._parts[key] = part
        self._parts.move_to_end(key)
        while len(self._parts) > self._limit:
            self._parts.popitem(last=False)


def to_bytes(message: Any) -> bytes:
    """The message for the wire."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def from_bytes(data: bytes) -> Any:
    """The message from the wire."""
    return pickle.loads(data)
