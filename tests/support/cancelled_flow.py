"""A flow in a process of its own, to be cancelled: `python -m tests.support.cancelled_flow`."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from pathlib import Path

from prefect import flow

from prefect_heteroflow import HeteroTaskRunner
from tests.support import runner_tasks


def main(folder: str, body: str, grace_seconds: float, *, in_a_loop: bool, forks: bool) -> None:
    runner = HeteroTaskRunner(max_workers=1, cancel_grace_seconds=grace_seconds)

    @flow(task_runner=runner, name="cancelled")
    def cancelled() -> None:
        running = getattr(runner_tasks, body).submit(folder)
        runner_tasks.wait_for_file(Path(folder, "started"))
        if forks:
            forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
            forked.start()
            Path(folder, "forked").write_text(str(forked.pid))
        waiting = runner_tasks.wait_forever.submit(folder, "second")
        running.wait()
        waiting.wait()

    @flow(task_runner=runner, name="cancelled")
    async def cancelled_in_a_loop() -> None:
        getattr(runner_tasks, body).submit(folder)
        await asyncio.Event().wait()

    if in_a_loop:
        asyncio.run(cancelled_in_a_loop())
    else:
        cancelled()


if __name__ == "__main__":
    more = sys.argv[4:]
    main(
        sys.argv[1],
        sys.argv[2],
        float(sys.argv[3]),
        in_a_loop="in-a-loop" in more,
        forks="forks" in more,
    )
