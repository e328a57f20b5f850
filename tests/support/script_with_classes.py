"""A flow's script whose classes go to a child and back; prints what became of them, as JSON."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner

SCALE = 1


class Reading:
    made = 0

    def __init__(self, value: int) -> None:
        self.value = value
        Reading.made += 1

    def scaled(self) -> int:
        return self.value * SCALE


class Slotted:
    __slots__ = ("__own", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.__own = value

    def own(self) -> int:
        return self.__own


class ReadingError(Exception):
    def scaled(self) -> int:
        return SCALE


class Unit(Enum):
    METRE = 1

    def scaled(self) -> int:
        return SCALE


@task(retries=0)
def measure() -> Reading:
    return Reading(5)


@task(retries=0)
def give(value: Any) -> Any:
    return value


@task(retries=0)
def fail() -> None:
    raise ReadingError("no reading")


@flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))
def classes() -> dict[str, Any]:
    global SCALE
    mine = Reading(100)
    reading = measure.submit().result()
    unit = give.submit(Unit.METRE).result()
    error: Any = fail.submit().result(raise_on_failure=False)
    slotted = give.submit(Slotted(4)).result()
    SCALE = 10
    return {
        "made": Reading.made,
        "scaled": [mine.scaled(), reading.scaled()],
        "unit": [unit is Unit.METRE, unit.scaled()],
        "slotted": [type(slotted) is Slotted, slotted.value, slotted.own()],
        "error": [isinstance(error, ReadingError), error.scaled()],
    }


if __name__ == "__main__":
    print(json.dumps(classes()))
