"""A flow's script whose bodies pickle what it defines; prints what they return."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from prefect import flow, task

from prefect_heteroflow import HeteroTaskRunner


@dataclass
class Model:
    weight: int


@dataclass
class Other:
    weight: int


def squared(number: int) -> int:
    return number * number


def main(number: int) -> int:
    return number + 1


@task(retries=0)
def save() -> int:
    loaded: Model = pickle.loads(pickle.dumps(Model(3)))
    return loaded.weight


@task(retries=0)
def save_argument(other: Any) -> int:
    loaded: Other = pickle.loads(pickle.dumps(other))
    return loaded.weight


@task(retries=0)
def in_processes(own: Callable[[int], int]) -> list[int]:
    with ProcessPoolExecutor(1) as pool:
        return [*pool.map(squared, [3]), *pool.map(own, [3])]


@flow(task_runner=HeteroTaskRunner(max_retries=0, max_workers=1))
def pickles() -> list[Any]:
    saved = [save.submit().result(), save_argument.submit(Other(4)).result()]
    return [*saved, in_processes.submit(main).result()]


if __name__ == "__main__":
    print(pickles())
