"""What a task that ran in a child process raises in the flow's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from prefect.exceptions import PrefectException

from prefect_heteroflow.task_runner.exception_parts import Parts, built, parts_of

if TYPE_CHECKING:
    from prefect_heteroflow.core.failures import Diagnosis

__all__ = [
    "HeteroTaskError",
    "LostResultError",
    "TaskNotPortableError",
    "WorkerDiedError",
    "as_task_error",
]


_ORIGIN = "_heteroflow_origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an error came from."""

    node: str | None = None
    attempt: int | None = None
    """1 for the first."""
    remote_traceback: str | None = None
    cause: BaseException | None = None


class _FromOrigin:
    """An attribute read from the error's origin.

    Not a property: an exception that has an attribute of the same name keeps its own.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, error: BaseException | None, owner: type) -> Any:
        if error is None:
            return self
        return getattr(origin_of(error), self._name)


class HeteroTaskError(Exception):
    """A task's body failed in a child process or on another node.

    An exception of the body arrives as an instance of its own type *and* of this one, so both
    `except ValueError` and `except HeteroTaskError` catch it. A type that cannot be subclassed or
    rebuilt here arrives as a plain `HeteroTaskError` with its text.

    Attributes:
        node: Name of the node on which it happened.
        attempt: Number of the attempt, 1 for the first.
        remote_traceback: The traceback of the process that ran the body, as text.
        cause: The exception of the body itself, `None` if it could not be sent.
    """

    node = _FromOrigin()
    attempt = _FromOrigin()
    remote_traceback = _FromOrigin()
    cause = _FromOrigin()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in self.__dict__.items() if name != _ORIGIN}
        return _rebuild_plain, (type(self), self.args, _portable(self), fields)


class WorkerDiedError(HeteroTaskError):
    """The child process that ran the body died: killed, crashed, or left without an answer.

    Attributes:
        exit_code: Exit code of the process, `None` if a signal ended it or nobody knows.
        signal: Number of the signal that ended it, `None` otherwise.
        diagnosis: Why it died, as far as that was seen.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        diagnosis: Diagnosis | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.diagnosis = diagnosis


class TaskNotPortableError(HeteroTaskError, TypeError):
    """An argument or the value of a task cannot be sent between processes."""


class LostResultError(HeteroTaskError, PrefectException):
    """The stored result of an upstream task run cannot be read, and was not made again."""


def origin_of(error: BaseException) -> Origin:
    """Where the error came from; an empty origin if nothing was noted."""
    found = error.__dict__.get(_ORIGIN)
    return found if isinstance(found, Origin) else Origin()


def with_origin(error: HeteroTaskError, origin: Origin) -> HeteroTaskError:
    """The error itself, with its origin noted on it."""
    error.__dict__[_ORIGIN] = origin
    return error


def as_task_error(cause: BaseException, origin: Origin) -> BaseException:
    """The exception of a body, as its own type and as `HeteroTaskError` in one.

    What is no `Exception` (`SystemExit`, `KeyboardInterrupt`, Prefect's own signals) comes back as
    it is, with its origin noted on it: it has a meaning that must not change.

    Args:
        cause: The exception of the body, rebuilt in this process.
        origin: Where it came from.
    """
    if isinstance(cause, HeteroTaskError):
        return cause
    if not isinstance(cause, Exception):
        cause.__dict__[_ORIGIN] = origin  # it is the body's word, not a signal to us
        return cause
    origin = Origin(
        node=origin.node,
        attempt=origin.attempt,
        remote_traceback=origin.remote_traceback,
        cause=cause,
    )
    both = _as_both(cause, origin)
    if both is not None:
        return both
    kind = type(cause)
    try:
        said = str(cause)
    except Exception as error:  # a broken `__str__` must not hide the failure
        said = f"its text cannot be read ({type(error).__name__})"
    text = f"{kind.__module__}.{kind.__qualname__}: {said}"
    plain = with_origin(HeteroTaskError(text), origin)
    plain.__cause__ = cause
    return plain


def _as_both(cause: Exception, origin: Origin) -> HeteroTaskError | None:
    """The exception as both types; `None` if its type cannot be subclassed or built anew."""
    try:
        kind = _both_types(type(cause))
    except Exception:  # a final class, an own metaclass
        return None
    both = _copied(kind, cause)
    if both is None:
        both = _made_anew(kind, cause)
    if both is None:
        return None
    both.__cause__ = cause.__cause__
    both.__context__ = cause.__context__
    both.__suppress_context__ = cause.__suppress_context__
    for note in getattr(cause, "__notes__", ()):
        if note not in getattr(both, "__notes__", ()) and hasattr(both, "add_note"):
            both.add_note(note)
    return with_origin(both, origin)


def _copied(kind: type[HeteroTaskError], cause: Exception) -> HeteroTaskError | None:
    """The exception with another type; its constructor is not called."""
    try:
        both = built(kind, parts_of(cause))
        return both if str(both) == str(cause) else None
    except Exception:  # a class of an extension that keeps its fields for itself
        return None


def _made_anew(kind: Callable[..., HeteroTaskError], cause: Exception) -> HeteroTaskError | None:
    """What pickle does to rebuild it, with the other type: it has just worked for `cause`."""
    try:
        make, arguments, *rest = cast("tuple[Any, ...]", cause.__reduce_ex__(2))
        if make is not type(cause):
            return None
        both = kind(*arguments)
        state = rest[0] if rest else None
        if state is not None:
            set_state = getattr(both, "__setstate__", None)
            set_state(state) if set_state is not None else both.__dict__.update(state)
        return both if str(both) == str(cause) else None
    except Exception:  # an `__init__` with effects
        return None


_kinds: dict[type, type[HeteroTaskError]] = {}


def _both_types(kind: type[Exception]) -> type[HeteroTaskError]:
    found = _kinds.get(kind)
    if found is None:
        # Python allows no class whose bases name one of them before what is made of it.
        is_base = issubclass(HeteroTaskError, kind)  # `Exception` itself
        found = type(
            kind.__name__,
            (HeteroTaskError,) if is_base else (kind, HeteroTaskError),
            {
                "__module__": kind.__module__,
                "__qualname__": kind.__qualname__,
                "__doc__": kind.__doc__,
                "__reduce__": _reduce_both,
                "__reduce_ex__": lambda self, protocol: _reduce_both(self),
            },
        )
        _kinds[kind] = found
    return found


def _reduce_both(error: HeteroTaskError) -> tuple[Any, ...]:
    origin = origin_of(error)
    cause = origin.cause
    assert cause is not None  # only `as_task_error` makes one that is both
    try:
        parts = parts_of(cause)
    except Exception:  # pickle may know how
        return as_task_error, (cause, origin)
    return _both_from_parts, (type(cause), parts, _portable(error))


def _both_from_parts(kind: type[Exception], parts: Parts, origin: Origin) -> BaseException:
    return as_task_error(built(kind, parts), origin)


def _portable(error: HeteroTaskError) -> Origin:
    origin = origin_of(error)
    return Origin(
        node=origin.node, attempt=origin.attempt, remote_traceback=origin.remote_traceback
    )


def _rebuild_plain(
    kind: type[HeteroTaskError],
    arguments: tuple[Any, ...],
    origin: Origin,
    fields: dict[str, Any] | None = None,
) -> HeteroTaskError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields or {})
    return with_origin(error, origin)
