"""Arguments that are the defaults of their signature: the other process has its own of them.

Prefect fills them in at home. A copy that came by pickle is another object, and a body that asks
`value is MISSING` would not know it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from prefect_heteroflow.task_runner.pickles import to_pickle

_ALWAYS_THE_SAME = (type(None), bool, int, float)
"""Nobody can tell a copy from its original, or there is none."""


def defaults_in(body: Callable[..., Any], parameters: dict[str, Any]) -> tuple[str, ...]:
    """Names of the parameters that have their default itself."""
    return tuple(
        name
        for name, parameter in inspect.signature(body).parameters.items()
        if type(parameter.default) not in _ALWAYS_THE_SAME
        and name in parameters
        and parameters[name] is parameter.default
    )


def with_own_defaults(
    body: Callable[..., Any], parameters: dict[str, Any], names: tuple[str, ...]
) -> dict[str, Any]:
    """The parameters, with the defaults of the body in this process.

    One that was sent all the same is kept where the own one is not like it: it was changed at
    home, or the module came to another value here.

    Args:
        body: The body in this process.
        parameters: What was sent.
        names: What `defaults_in` gave at home.
    """
    if not names:
        return parameters
    found = dict(parameters)
    signature = inspect.signature(body).parameters
    for name in names:
        own = signature[name].default if name in signature else inspect.Parameter.empty
        if own is inspect.Parameter.empty:
            continue
        if name not in parameters or _is_like(own, parameters[name]):
            found[name] = own
    ordered = [name for name in signature if name in found]
    return {name: found[name] for name in (*ordered, *(set(found) - set(ordered)))}


def _is_like(own: Any, sent: Any) -> bool:
    if type(own) is not type(sent):
        return False
    if isinstance(own, (str, bytes)):
        return bool(own == sent)
    try:
        return to_pickle(own) == to_pickle(sent)
    except Exception:  # pickling runs the value's own code
        return False
