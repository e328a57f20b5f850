"""Messages between the flow's process and a child, and what both remember of what was sent."""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
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
    argv: list[str] | None
    """`sys.argv` of the flow, if it has changed."""
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
    has_begun: bool = True
    """`False` if the call could not be loaded, so that no line of the body ran."""


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


class ForeignBytes(Exception):
    """What came is no message of ours: the body wrote into the descriptor of its child."""


_HEADER = struct.Struct("!8sQ")
_COPIED_BYTES = 1 << 16
_MAGIC = b"\xf1hetero\n"


def send_frame(descriptor: int, data: bytes) -> None:
    """Write one message.

    Raises:
        OSError: The other end is gone.
    """
    header = _HEADER.pack(_MAGIC, len(data))
    # A large one is not copied for the sake of one system call.
    for part in (header + data,) if len(data) < _COPIED_BYTES else (header, data):
        left = memoryview(part)
        while left:
            left = left[os.write(descriptor, left) :]


def receive_frame(descriptor: int, deadline: float | None = None) -> bytearray:
    """The next message.

    Args:
        descriptor: Where to read.
        deadline: The latest time of `time.monotonic()`; `None` waits for ever.

    Raises:
        ForeignBytes: It is not ours. As soon as that is seen: a length in it means nothing, and
            its end may never come.
        TimeoutError: It was not there in time.
        EOFError: The other end is gone.
        OSError: The same.
    """
    header = bytearray(_HEADER.size)
    _fill(descriptor, header, deadline, starts_with=_MAGIC)
    data = bytearray(_HEADER.unpack(header)[1])
    _fill(descriptor, data, deadline)
    return data


def _fill(
    descriptor: int, buffer: bytearray, deadline: float | None, starts_with: bytes = b""
) -> None:
    size, filled = len(buffer), 0
    left = memoryview(buffer)
    while filled < size:
        if deadline is not None:
            _wait(descriptor, deadline)
        count = os.readv(descriptor, [left[filled:]])
        if not count:
            raise EOFError
        filled += count
        if buffer[: min(filled, len(starts_with))] != starts_with[:filled]:
            raise ForeignBytes("the body wrote into a file descriptor that it did not open")


def _wait(descriptor: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


_LARGE_PARTS = ("body", "flow", "run")


def send_call(descriptor: int, call: Call) -> None:
    """Send a call, and drop its large parts: the body may run for hours.

    They follow as messages of their own, for within the other one they would be copied.

    Raises:
        OSError: The other end is gone.
    """
    parts: dict[str, bytes] = {}
    for name in _LARGE_PARTS:
        part: bytes | None = getattr(call, name)
        if part is not None and len(part) >= _COPIED_BYTES:
            parts[name] = part
            setattr(call, name, b"")
    send_frame(descriptor, to_bytes((call, list(parts))))
    while parts:
        send_frame(descriptor, parts.pop(next(iter(parts))))


def receive_call(descriptor: int) -> Call:
    """The next call.

    Raises:
        EOFError: The other end is gone.
        OSError: The same.
    """
    call: Call
    call, following = from_bytes(receive_frame(descriptor))
    for name in following:
        setattr(call, name, receive_frame(descriptor))
    return call


def to_bytes(message: Any) -> bytes:
    """The message for the wire."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def from_bytes(data: bytes | bytearray) -> Any:
    """The message from the wire."""
    return pickle.loads(data)
