"""A flow whose task waits on another pool: `python -m tests.support.waiting_flow FOLDER`."""

from __future__ import annotations

import sys

from prefect import flow

from prefect_heteroflow import HeteroTaskRunner, requires
from tests.support import runner_tasks


def main(folder: str) -> None:
    @flow(task_runner=HeteroTaskRunner(max_workers=1), name="waits-for-another-pool")
    def waits() -> None:
        with requires(memory_mb=4096):
            runner_tasks.wait_forever.submit(folder).wait()

    waits()


if __name__ == "__main__":
    main(sys.argv[1])
