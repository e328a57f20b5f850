"""Circuit breakers as values of Prefect Variables: names, JSON out, JSON in. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from prefect_heteroflow.core.breaker import Breaker, BreakerStatus, Restart, Trial
from prefect_heteroflow.core.valid_text import storable
from prefect_heteroflow.orchestration.node_values import VARIABLE_PREFIX, variable_slug

BREAKER_PREFIX = f"{VARIABLE_PREFIX}breaker_"
MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRecord:
    """One generation of a breaker, as it is stored."""

    key: str
    generation: int
    """1 for the first; the highest one that is stored is the state."""
    token: str
    """Different for each write: tells a writer that a generation is its own."""
    breaker: Breaker
    updated: datetime
    """When it was written, by the writer's clock."""


def breaker_prefix(key: str) -> str:
    """What the names of all generations of one breaker begin with."""
    return f"{BREAKER_PREFIX}{variable_slug(key)}_g"


def breaker_variable_name(key: str, generation: int) -> str:
    """Name of the Variable with one generation of a breaker."""
    return f"{breaker_prefix(key)}{generation}"


def generation_of(name: str, key: str) -> int | None:
    """The generation that a Variable's name stands for; `None` if it is not of this breaker."""
    prefix = breaker_prefix(key)
    number = name.removeprefix(prefix)
    return int(number) if name != number and re.fullmatch(r"[1-9][0-9]{0,17}", number) else None


def breaker_to_value(record: BreakerRecord) -> dict[str, Any]:
    """JSON value of one generation."""
    breaker, trial = record.breaker, record.breaker.trial
    return {
        "key": record.key,
        "generation": record.generation,
        "token": record.token,
        "status": breaker.status.value,
        "restarts": [[it.holder, it.at] for it in breaker.restarts],
        "opened_at": breaker.opened_at,
        "reason": storable(breaker.reason)[:MAX_REASON_CHARACTERS],
        "trial": None if trial is None else {"holder": trial.holder, "since": trial.since},
        "updated": record.updated.astimezone(timezone.utc).isoformat(),
    }


def parse_breaker_value(value: object) -> BreakerRecord:
    """The generation of its JSON value.

    Raises:
        ValueError: It is no such value; says what is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError(f"the value is {value!r:.60}, not an object")
    try:
        trial, opened_at = value["trial"], value["opened_at"]
        breaker = Breaker(
            status=BreakerStatus(value["status"]),
            restarts=tuple(Restart(holder=str(it[0]), at=float(it[1])) for it in value["restarts"]),
            opened_at=None if opened_at is None else float(opened_at),
            reason=str(value["reason"]),
            trial=None
            if trial is None
            else Trial(holder=str(trial["holder"]), since=float(trial["since"])),
        )
        return BreakerRecord(
            key=str(value["key"]),
            generation=int(value["generation"]),
            token=str(value["token"]),
            breaker=breaker,
            updated=datetime.fromisoformat(value["updated"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"it is no breaker ({type(error).__name__}: {error})") from error
