"""The flow of `benchmarks/recovery.py`: killed for memory in its first attempt."""

import os
import time
from pathlib import Path

from prefect import flow


@flow
def killed_once(need_mb: int) -> int:
    """Note that the body runs; then take more memory than there is, in the first attempt."""
    task = os.environ.get("HETEROFLOW_TASK_ID") or os.environ["PREFECT__FLOW_RUN_ID"]
    marks = Path("/bench/flow-marks", task)
    with marks.open("a") as file:
        file.write(f"{time.time()}\n")
    starts = len(marks.read_text().splitlines())
    if starts == 1:
        time.sleep(1)
        block = bytearray(need_mb * 2**20)
        for index in range(0, len(block), 4096):
            block[index] = 1
    return starts
