"""Job variables and settings of a user, read into a retry policy and resources, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from prefect_heteroflow.core.cleanup import DEFAULT_PATTERNS, hook_command, parse_cleanup_patterns
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.inference_images import is_gpu_inference_image
from prefect_heteroflow.core.policy import POLICY_RANGES, STRATEGIES, RetryPolicy, RetryStrategy
from prefect_heteroflow.core.progress import MAX_FILE_CHARACTERS
from prefect_heteroflow.core.ranges import Range
from prefect_heteroflow.core.resources import (
    BOOSTED_GPU_INFERENCE_MEMORY_MB,
    DEFAULT_MEMORY_MB,
    RESOURCE_RANGES,
    Resources,
)

POLICY_NAMES = (
    "retry_strategy",
    "max_retries",
    "infrastructure_retries",
    "retry_delay",
    "backoff_multiplier",
    "max_retry_delay",
    "retry_jitter",
    "escalation_delay",
    "oom_memory_limit",
    "retry_on",
    "stop_on",
    "retry_exceptions",
    "cleanup_patterns",
    "cleanup_hook",
)
"""Job variables that a setting of the same name is the default of."""
DELAY_NAMES = (
    "retry_delay",
    "backoff_multiplier",
    "max_retry_delay",
    "retry_jitter",
    "escalation_delay",
)
"""Job variables that say when a retry begins."""
RESOURCE_NAMES = ("memory_mb", "shm_mb", "gpu_count", "gpu_memory_mb")
"""Job variables that say what the first attempt gets."""
JOB_VARIABLE_NAMES = (*RESOURCE_NAMES, *POLICY_NAMES, "progress_file", "placement")
"""All job variables of ours."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
)
_TYPE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_BOOLEANS = {"true": True, "false": False}
_LONGEST_SHOWN = 80
_RANGES: dict[str, Range] = {**POLICY_RANGES, **RESOURCE_RANGES}
_POLICY = RetryPolicy()
_FIX = "Correct this in the deployment, the run, the work pool or the settings, and run it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobValues:
    """What a user set for one run, over the defaults."""

    policy: RetryPolicy
    resources: Resources
    retry_exceptions: bool | tuple[str, ...] = False
    """Whether application exceptions are retried, or the names of the types that are."""
    retry_on: tuple[object, ...] = ()
    """Rules of the user, as given; the parser of rules reads them."""
    stop_on: tuple[object, ...] = ()
    cleanup_patterns: tuple[str, ...] = DEFAULT_PATTERNS
    """Files of the scratch folder that go before a retry on the same node."""
    cleanup_hook: str | None = None
    """What of the user's runs before such a retry; see `core.cleanup.hook_command`."""


class JobValueError(ValueError):
    """Values that cannot be used. The text names each, what is allowed, and what to do."""

    failure: FailureClass
    """`InvalidConfig`, or `ResourceLimitExceeded` where every value is sound but too large."""

    def __init__(self, message: str, failure: FailureClass = FailureClass.INVALID_CONFIG) -> None:
        super().__init__(message)
        self.failure = failure


def parse_job_values(
    values: Mapping[str, object],
    defaults: Mapping[str, object] = MappingProxyType({}),
    *,
    way_out: str = _FIX,
) -> JobValues:
    """The policy and resources that `values` ask for.

    A value that is missing or `None` is taken from `defaults`, and then from the policy's own
    defaults. Numbers may be given as text (`"4096"`), as a command line gives them. Names that
    are not ours are ignored.

    Args:
        values: What is said for this run.
        defaults: What counts where it says nothing.
        way_out: Where a person corrects it: the last sentence of the error.

    Raises:
        JobValueError: At least one value cannot be used.
    """
    reader = _Reader({**_set(defaults), **_without_empty_hook(_set(values))})
    policy = RetryPolicy(
        retry_strategy=reader.strategy(),
        max_retries=reader.whole("max_retries", _POLICY.max_retries),
        infrastructure_retries=reader.whole(
            "infrastructure_retries", _POLICY.infrastructure_retries
        ),
        retry_delay=reader.decimal("retry_delay", _POLICY.retry_delay),
        backoff_multiplier=reader.decimal("backoff_multiplier", _POLICY.backoff_multiplier),
        max_retry_delay=reader.decimal("max_retry_delay", _POLICY.max_retry_delay),
        retry_jitter=reader.decimal("retry_jitter", _POLICY.retry_jitter),
        escalation_delay=reader.number("escalation_delay"),
        oom_memory_limit=reader.whole("oom_memory_limit", _POLICY.oom_memory_limit),
    )
    resources = Resources(
        memory_mb=reader.whole("memory_mb", DEFAULT_MEMORY_MB),
        shm_mb=reader.whole_or_none("shm_mb"),
        gpu_count=reader.whole("gpu_count", 0),
        gpu_memory_mb=reader.whole_or_none("gpu_memory_mb"),
    )
    retry_exceptions = reader.exceptions()
    retry_on, stop_on = reader.listed("retry_on"), reader.listed("stop_on")
    cleanup_patterns, cleanup_hook = reader.patterns(), reader.hook()
    reader.progress_file()
    too_large = _above_limit(reader, policy, resources)
    asks_for_gpu_memory = values.get("gpu_memory_mb") is not None
    reader.problems += _without_gpu(reader, resources) if asks_for_gpu_memory else []
    if reader.problems or too_large:
        failure = (
            FailureClass.INVALID_CONFIG if reader.problems else FailureClass.RESOURCE_LIMIT_EXCEEDED
        )
        text = "; ".join(reader.problems + too_large)
        raise JobValueError(f"Values that cannot be used: {text}. {way_out}", failure)
    return JobValues(
        policy=policy,
        resources=resources,
        retry_exceptions=retry_exceptions,
        retry_on=retry_on,
        stop_on=stop_on,
        cleanup_patterns=cleanup_patterns,
        cleanup_hook=cleanup_hook,
    )


def default_problem(name: str, value: object) -> str | None:
    """Why the value cannot be the default of that job variable; `None` if it can.

    Args:
        name: Name of a job variable of ours.
        value: Its default; `None` says nothing.
    """
    reader = _Reader(_set({name: value}))
    read: dict[str, Callable[[], object]] = {
        "retry_strategy": reader.strategy,
        "retry_exceptions": reader.exceptions,
        "retry_on": partial(reader.listed, "retry_on"),
        "stop_on": partial(reader.listed, "stop_on"),
        "cleanup_patterns": reader.patterns,
        "cleanup_hook": reader.hook,
    }
    read.get(name, partial(reader.number, name))()
    return "; ".join(reader.problems) or None


def boost_gpu_inference_memory(
    image: str | None,
    resources: Resources,
    memory_mb_was_set: bool,
    limit_mb: int | None = None,
) -> Resources | None:
    """The resources with more memory for an image that serves models; `None` for no change.

    Args:
        image: Image reference, `None` for a process.
        resources: What the attempt would be given.
        memory_mb_was_set: The user set `memory_mb`; it is left alone then, also at the default.
        limit_mb: `oom_memory_limit`, MiB; the boost does not pass it.
    """
    left_alone = memory_mb_was_set or resources.memory_mb != DEFAULT_MEMORY_MB
    if image is None or left_alone or not is_gpu_inference_image(image):
        return None
    boosted = BOOSTED_GPU_INFERENCE_MEMORY_MB
    boosted = boosted if limit_mb is None else min(boosted, limit_mb)
    return replace(resources, memory_mb=boosted) if boosted > resources.memory_mb else None


def _set(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _without_empty_hook(values: dict[str, object]) -> dict[str, object]:
    """An empty text, as a form sends it, is no hook of the run's own."""
    return {k: v for k, v in values.items() if (k, v) != ("cleanup_hook", "")}


def _above_limit(reader: _Reader, policy: RetryPolicy, resources: Resources) -> list[str]:
    """Growth has to end at or above where it starts."""
    if reader.refused & {"memory_mb", "oom_memory_limit"}:
        return []
    memory, limit = resources.memory_mb, policy.oom_memory_limit
    if memory <= limit:
        return []
    return [
        f"memory_mb {memory} is above oom_memory_limit {limit}: "
        f"set oom_memory_limit to {memory} or more, or memory_mb to {limit} or less"
    ]


def _without_gpu(reader: _Reader, resources: Resources) -> list[str]:
    """A wish for GPU memory without a GPU would be ignored without a word."""
    if reader.refused & {"gpu_count", "gpu_memory_mb"} or resources.gpu_count > 0:
        return []
    return [
        f"gpu_memory_mb {resources.gpu_memory_mb} with gpu_count 0: "
        "set gpu_count to 1 or more, or leave gpu_memory_mb out"
    ]


class _Reader:
    """Reads values one by one and keeps what is wrong with them.

    A value that cannot be used reads as the default, so that all problems are found at once.
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given
        self.problems: list[str] = []
        self.refused: set[str] = set()

    def whole(self, name: str, default: int) -> int:
        value = self.whole_or_none(name)
        return default if value is None else value

    def whole_or_none(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def decimal(self, name: str, default: float) -> float:
        value = self.number(name)
        return default if value is None else float(value)

    def number(self, name: str) -> int | float | None:
        if name not in self._given:
            return None
        rule = _RANGES[name]
        number = _number(self._given[name], whole=rule.whole)
        if number is None or not rule.holds(number):
            self._refuse(name, rule.allowed)
            return None
        return number

    def strategy(self) -> RetryStrategy:
        value = self._given.get("retry_strategy", RetryStrategy.RETRY_NEW_NODE)
        try:
            return RetryStrategy(value.strip() if isinstance(value, str) else value)
        except ValueError:
            self._refuse("retry_strategy", STRATEGIES)
            return RetryStrategy.RETRY_NEW_NODE

    def exceptions(self) -> bool | tuple[str, ...]:
        """`retry_exceptions`: a bool, or names of exception types."""
        value = self._given.get("retry_exceptions", False)
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            if value.strip().lower() in _BOOLEANS:
                return _BOOLEANS[value.strip().lower()]
            value = value.split(",")
        if isinstance(value, (list, tuple)):
            names = [name.strip() if isinstance(name, str) else name for name in value]
            if all(isinstance(name, str) and _TYPE_NAME.fullmatch(name) for name in names):
                return tuple(names)
        self._refuse(
            "retry_exceptions",
            "true, false, or a list of exception types such as ValueError or "
            "requests.exceptions.ConnectionError",
        )
        return False

    def listed(self, name: str) -> tuple[object, ...]:
        """A list of rules; one rule alone is a list of one."""
        value = self._given.get(name, ())
        if isinstance(value, (str, Mapping)):
            return (value,)
        if isinstance(value, (list, tuple)):
            return tuple(value)
        self._refuse(name, "a list of rules, each a text or a mapping")
        return ()

    def patterns(self) -> tuple[str, ...]:
        """`cleanup_patterns`: a list, or one text with commas; a blank text cleans nothing."""
        value = self._given.get("cleanup_patterns", DEFAULT_PATTERNS)
        if isinstance(value, str):
            value = value.split(",") if value.strip() else ()
        if not isinstance(value, (list, tuple)):
            self._refuse("cleanup_patterns", "a list of patterns such as *.partial")
            return DEFAULT_PATTERNS
        try:
            return parse_cleanup_patterns(value)
        except ValueError as error:
            self._note("cleanup_patterns", str(error).rstrip("."))
            return DEFAULT_PATTERNS

    def hook(self) -> str | None:
        """`cleanup_hook`: a command or a dotted function; an empty text is none."""
        value = self._given.get("cleanup_hook")
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self._refuse("cleanup_hook", "a command, or package.module.function")
            return None
        try:
            hook_command(value)
        except ValueError as error:
            self._note("cleanup_hook", str(error).rstrip("."))
            return None
        return value

    def progress_file(self) -> None:
        """`progress_file`: a path; whoever reads the file takes it as it was given."""
        value = self._given.get("progress_file", "")
        if not isinstance(value, str) or "\0" in value:
            self._refuse("progress_file", "the path of a file")
        elif len(value) > MAX_FILE_CHARACTERS:
            allowed = f"a path of {MAX_FILE_CHARACTERS} characters at most, not {len(value)}"
            self._refuse("progress_file", allowed)

    def _note(self, name: str, problem: str) -> None:
        self.problems.append(problem)
        self.refused.add(name)

    def _refuse(self, name: str, allowed: str) -> None:
        shown = repr(self._given[name])
        shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."
        self._note(name, f"{name} {shown}: allowed is {allowed}")


def _number(value: object, *, whole: bool) -> int | float | None:
    """The number that `value` is or spells, `None` if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE.fullmatch(text):
            return int(text)
        value = float(text) if _DECIMAL.fullmatch(text) else None
    if isinstance(value, float) and whole and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, float)) else None
