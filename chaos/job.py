"""What every run executes, as a plain job and inside of a flow. Standard library only.

Each attempt notes when it starts and ends, one line each, in the run's file in `marks/`. While it
lives it holds a lock on a file of its run, which the kernel releases with the process: an attempt
that finds it taken ran at the same time as another one.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import IO

MARKS = Path(__file__).resolve().parent / "marks"
GPU_TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total"
    " capacity of 8.00 GiB of which 1.00 GiB is free."
)
NETWORK_TEXT = (
    "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='example.com', port=443): Max"
    " retries exceeded with url: / (Caused by ConnectTimeoutError: timed out)"
)
PERMISSION_TEXT = "PermissionError: [Errno 13] Permission denied: '/data/secret.csv'"


class Attempt:
    """One attempt of one run, for as long as its process lives."""

    def __init__(self) -> None:
        self.task = os.environ["HETEROFLOW_TASK_ID"]
        self._lock: IO[str] = (MARKS / f"{self.task}.lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        self.note("start", alone=alone)

    def note(self, event: str, **more: object) -> None:
        """One line, whole or not at all, also if two attempts write at the same moment."""
        line = {
            "event": event,
            "attempt": int(os.environ["HETEROFLOW_ATTEMPT"]),
            "node": os.environ["HETEROFLOW_NODE"],
            "pid": os.getpid(),
            "time": time.time(),
            **more,
        }
        descriptor = os.open(MARKS / self.task, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def fails_as_planned(self, failures: int) -> bool:
        """Whether this attempt is one of the first ones that get as far as their failure.

        Not by the attempt's number: an attempt that dies with its node has not failed as planned.
        """
        lines = (MARKS / self.task).read_text().splitlines()
        if sum('"planned"' in line for line in lines) >= failures:
            return False
        self.note("planned")
        return True


def touch_memory(need_mb: int) -> bytearray:
    """Memory that the kernel really has to give."""
    block = bytearray(need_mb * 1024 * 1024)
    for index in range(0, len(block), 4096):
        block[index] = 1
    return block


def main(kind: str, seconds: float, number: int) -> int:
    """Work for some seconds, then do what the kind says; gives the exit status."""
    attempt = Attempt()
    time.sleep(seconds)
    failed = 0
    if kind == "memory":
        block = touch_memory(number)
        time.sleep(1.0)  # the watcher, where there is no cgroup, has to see it
        del block
    elif kind == "transient" and attempt.fails_as_planned(number):
        failed = _fail(NETWORK_TEXT)
    elif kind == "gpu" and int(os.environ.get("HETEROFLOW_GPU_MEMORY_MB", "0")) < number:
        failed = _fail(GPU_TEXT)
    elif kind == "permission":
        failed = _fail(PERMISSION_TEXT)
    attempt.note("end")
    return failed


def _fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
