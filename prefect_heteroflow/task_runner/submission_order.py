"""The order in which tasks were submitted, and which of them are still to come for a child."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from prefect.futures import PrefectFuture
from prefect.utilities.annotations import BaseAnnotation

_LOOKED_AT = 16


class SubmissionOrder:
    """Numbers of submitted tasks; whoever uses it holds a lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._expected: OrderedDict[int, None] = OrderedDict()  # its first is found at once

    def next_number(self, *, is_expected: bool) -> int:
        """The number of the next task.

        Args:
            is_expected: It comes soon: later ones are to let it go first.
        """
        number = next(self._numbers)
        if is_expected:
            self._expected[number] = None
        return number

    def expect_no_more(self, number: int) -> bool:
        """It came, or it will not come; `False` if it was not expected."""
        return self._expected.pop(number, self) is None

    def expect_none_before(self, number: int) -> None:
        """Those that were submitted before it take too long: nobody waits for them."""
        while self._expected and (first := next(iter(self._expected))) < number:
            del self._expected[first]

    def is_first(self, number: int) -> bool:
        """No task that was submitted before it is expected."""
        return not self._expected or next(iter(self._expected)) >= number


def holds_futures(parameters: dict[str, Any]) -> bool:
    """Whether a task with these parameters first waits for others, as far as a short look tells.

    One that is deep within its parameters is not seen: others then wait a moment for that task.
    """
    return any(_is_future(part) for value in parameters.values() for part in _parts(value))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, BaseAnnotation):
        value = value.unwrap()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set)):
        return (value,)
    # What holds a million numbers is not searched for the sake of the order.
    return itertools.islice(value, _LOOKED_AT)


def _is_future(value: Any) -> bool:
    if isinstance(value, BaseAnnotation):
        value = value.unwrap()
    return isinstance(value, PrefectFuture)
