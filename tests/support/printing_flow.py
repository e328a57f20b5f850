"""A flow whose task prints much: `python -m tests.support.printing_flow MEGABYTES`."""

from __future__ import annotations

import sys

from prefect import flow

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks


@flow(task_runner=HeteroTaskRunner())
def printing(megabytes: int) -> list[int]:
    printed = runner_tasks.print_much.submit(megabytes)
    return [printed.result(), runner_tasks.square.submit(3).result()]


if __name__ == "__main__":
    print(printing(int(sys.argv[1])))
