"""What a task asks for and how it is retried, as far as its author says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from prefect_heteroflow.core.policy import POLICY_RANGES, STRATEGIES, RetryStrategy
from prefect_heteroflow.core.ranges import Range
from prefect_heteroflow.core.resources import RESOURCE_RANGES

_RANGES: Mapping[str, Range] = {
    "memory_mb": RESOURCE_RANGES["memory_mb"],
    "gpu_count": RESOURCE_RANGES["gpu_count"],
    "gpu_memory_mb": RESOURCE_RANGES["gpu_memory_mb"],
    "max_retries": POLICY_RANGES["max_retries"],
    "max_calls": Range(least=1, whole=True, note="bodies that one child process runs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What is said about a task; `None` in a field means that nothing is said.

    Args:
        memory_mb: Memory limit of an attempt in MiB, at least 6.
        gpu_count: Number of GPUs, 0 for none; 1 if only `gpu_memory_mb` is given.
        gpu_memory_mb: Least total memory of each GPU in MiB.
        shares_gpu: The attempt may share its GPUs with others that may too.
        max_retries: Retries after the first attempt; -1 never gives up, 0 is off.
        retry_exceptions: Whether exceptions of the body are retried: never, always, or for these
            type names.
        max_calls: A child process leaves after so many bodies, 1 or more.
        retry_strategy: Where a retry may run.

    Raises:
        ValueError: A value is out of its range; the text names the value and what is allowed.
    """

    memory_mb: int | None = None
    gpu_count: int | None = None
    gpu_memory_mb: int | None = None
    shares_gpu: bool | None = None
    max_retries: int | None = None
    retry_exceptions: bool | tuple[str, ...] | None = None
    max_calls: int | None = None
    retry_strategy: str | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} {value!r}: allowed is {rule.allowed}"
            for name, rule in _RANGES.items()
            if (value := getattr(self, name)) is not None and not rule.holds(value)
        ]
        if self.retry_strategy is not None:
            try:
                object.__setattr__(self, "retry_strategy", RetryStrategy(self.retry_strategy).value)
            except ValueError:
                problems.append(f"retry_strategy {self.retry_strategy!r}: allowed is {STRATEGIES}")
        if self.shares_gpu not in (True, False, None):
            problems.append(f"shares_gpu {self.shares_gpu!r}: allowed is True or False")
        if problems:
            raise ValueError("; ".join(problems))

    def over(self, base: Requirements) -> Requirements:
        """These, and where they say nothing, those of `base`."""
        merged = {
            field.name: value
            if (value := getattr(self, field.name)) is not None
            else getattr(base, field.name)
            for field in fields(self)
        }
        return Requirements(**merged)

    def job_values(self) -> dict[str, object]:
        """What is said, under the names of the job variables."""
        names = ("memory_mb", "gpu_count", "gpu_memory_mb", "max_retries", "retry_strategy")
        values = {name: getattr(self, name) for name in names}
        if self.gpu_memory_mb is not None and self.gpu_count is None:
            values["gpu_count"] = 1
        exceptions = self.retry_exceptions
        values["retry_exceptions"] = (
            list(exceptions) if isinstance(exceptions, tuple) else exceptions
        )
        return {name: value for name, value in values.items() if value is not None}


def exception_names(
    exceptions: bool | Sequence[type[BaseException] | str] | None,
) -> bool | tuple[str, ...] | None:
    """`retry_exceptions` with types as their dotted names.

    Raises:
        ValueError: It is neither a bool nor a list of exception types and names.
    """
    if exceptions is None or isinstance(exceptions, bool):
        return exceptions
    expected = "retry_exceptions: allowed is True, False, or a list of exception types and names"
    if isinstance(exceptions, str) or not isinstance(exceptions, Sequence):
        raise ValueError(f"{expected}; it is {exceptions!r}")
    names: list[str] = []
    for item in exceptions:
        if isinstance(item, type) and issubclass(item, BaseException):
            local = "<locals>" in item.__qualname__
            names.append(item.__name__ if local else f"{item.__module__}.{item.__qualname__}")
        elif isinstance(item, str) and item:
            names.append(item)
        else:
            raise ValueError(f"{expected}; one of them is {item!r}")
    return tuple(names)
