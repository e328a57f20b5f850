"""A Python exception as plain data, so that it can be diagnosed where it is no longer an object."""

from __future__ import annotations

import traceback

from prefect_heteroflow.core.failures import ExceptionInfo

_MAX_MESSAGE = 20_000
_MAX_TRACEBACK = 60_000
_MAX_CAUSES = 20


def exception_info(exc: BaseException) -> ExceptionInfo:
    """`exc` with its type names, message, causes and traceback; never raises.

    Groups (`ExceptionGroup`) count as caused by their members, the first one deepest.
    """
    causes = tuple(_one(cause) for cause in _causes(exc))
    return ExceptionInfo(
        type_names=_type_names(exc),
        message=_message(exc),
        causes=causes,
        traceback=_traceback(exc),
    )


def _causes(exc: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    seen = {id(exc)}
    here: BaseException | None = exc
    while here is not None and len(found) < _MAX_CAUSES:
        members = getattr(here, "exceptions", None)
        following = here.__cause__
        if following is None and not here.__suppress_context__:
            following = here.__context__
        if isinstance(members, (tuple, list)):
            for member in reversed(members[:_MAX_CAUSES]):
                if isinstance(member, BaseException) and id(member) not in seen:
                    seen.add(id(member))
                    found.append(member)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        found.append(following)
        here = following
    return found[:_MAX_CAUSES]


def _one(exc: BaseException) -> ExceptionInfo:
    return ExceptionInfo(type_names=_type_names(exc), message=_message(exc))


def _type_names(exc: BaseException) -> tuple[str, ...]:
    return tuple(
        f"{kind.__module__}.{kind.__qualname__}" for kind in type(exc).__mro__ if kind is not object
    )


def _message(exc: BaseException) -> str:
    try:
        return str(exc)[:_MAX_MESSAGE]
    except Exception as error:  # A broken `__str__` must not hide the failure.
        return f"<message unreadable: {type(error).__name__}>"


def _traceback(exc: BaseException) -> str | None:
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception:  # The same: a hostile `__repr__` inside the chain.
        return None
    return text if len(text) <= _MAX_TRACEBACK else text[-_MAX_TRACEBACK:]
