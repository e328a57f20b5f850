"""Parameters of the flow as its bodies see them: the small ones, and stand-ins for the others.

Hardly a body asks for any, but each child would have them all, under the memory limit of its task.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from prefect_heteroflow.task_runner.exceptions_sent import WithExceptions

SENT_BYTES = 1 << 20
"""So much is sent of them in all, as pickles."""


class NotSent:
    """Stands for a parameter of the flow in `prefect.runtime.flow_run.parameters` of a body.

    It cannot be pickled: a cache key of it would be the same for all of its values.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return (
            f"<parameter {self._name!r} of the flow is not sent to bodies: it is larger than"
            f" {SENT_BYTES >> 20} MiB or cannot be pickled; give it to the task as an argument>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(repr(self))


class _TooLarge(Exception):
    """The pickle grew beyond what is sent."""


class _Bounded(io.BytesIO):
    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.tell() > SENT_BYTES:
            raise _TooLarge
        return written


def names_sent(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters that bodies are to see: the smallest, `SENT_BYTES` of them.

    What is larger is never pickled as a whole, and what cannot be pickled is not among them.
    """
    to_bytes = WithExceptions(_Bounded)
    sizes: dict[str, int] = {}
    for name, value in parameters.items():
        try:
            sizes[name] = len(to_bytes(value))
        except Exception:  # too large; or it lives in its process only
            continue
    left = SENT_BYTES
    found: list[str] = []
    for name in sorted(sizes, key=sizes.__getitem__):
        left -= sizes[name]
        if left < 0:
            break
        found.append(name)
    return tuple(found)


def with_stand_ins(
    parameters: dict[str, Any] | None, not_sent: Iterable[str]
) -> dict[str, Any] | None:
    """The parameters in the child, with something that says why in the place of each other one."""
    if parameters is None:
        return None
    return parameters | {name: NotSent(name) for name in not_sent}
