"""What the containers of `benchmarks/recovery.py` run, and where they note when they run.

A folder of this machine is mounted as `/bench`. Each job appends the time to a file there as its
first action, so that every row of the table is measured by the same condition and the same clock.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.support import wait_until

MOUNT = "/bench"

# `recovery_job ok | oom KILLS | gpu | transient | permission`, and `gate` to wait for a start sign.
_JOB = r"""#!/bin/sh
run=${HETEROFLOW_TASK_ID:-$PREFECT__FLOW_RUN_ID}
marks=/bench/marks/$run
date +%s.%N >>"$marks"
[ "$1" = ok ] && exit 0
kind=$1
failures=1
[ "$kind" = oom ] && failures=$2
starts=$(wc -l <"$marks")
[ "$kind" != permission ] && [ "$starts" -gt "$failures" ] && exit 0
case "$*" in
*gate) while [ ! -e /bench/go ]; do sleep 0.5; done ;;
*) sleep 2 ;; # a job that works for a while: what follows its start is over by then
esac
case $kind in
gpu)
    echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a" \
        "total capacity of 8.00 GiB of which 1.00 GiB is free." >&2
    exit 1
    ;;
transient)
    echo "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='example.com', port=443):" \
        "Max retries exceeded with url: / (Caused by ConnectTimeoutError: timed out)" >&2
    exit 1
    ;;
permission)
    echo "PermissionError: [Errno 13] Permission denied: '/data/secret.csv'" >&2
    exit 1
    ;;
*) exec tail /dev/zero ;; # it keeps what has no line end: the kernel kills it for memory
esac
"""

# Python imports it before anything else: the first action of a container that runs a flow.
_SITE = """
import os, time
name = os.environ.get("HETEROFLOW_TASK_ID") or os.environ.get("PREFECT__FLOW_RUN_ID")
if name:
    with open("/bench/marks/" + name, "a") as file:
        file.write("%.9f\\n" % time.time())
"""


class Bench:
    """The folder behind `/bench`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("marks", "flow-marks", "site", "code"):
            (root / name).mkdir(parents=True)
        (root / "job").write_text(_JOB)
        (root / "site" / "sitecustomize.py").write_text(_SITE)
        shutil.copy(Path(__file__).with_name("recovery_flow.py"), root / "code")

    @property
    def volume(self) -> str:
        """The mount as Docker takes it."""
        return f"{self.root}:{MOUNT}"

    def starts(self, run: str, *, of_flow: bool = False) -> list[float]:
        """When the run's processes (or its flow's bodies) began, seconds since the epoch."""
        path = self.root / ("flow-marks" if of_flow else "marks") / run
        # A line that is just being written has no end yet.
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [float(line) for line in lines if line.endswith("\n")]

    def wait_starts(
        self, run: str, count: int, *, timeout_seconds: float = 120.0, of_flow: bool = False
    ) -> list[float]:
        """`starts`, once there are `count` of them."""

        def enough() -> list[float] | None:
            found = self.starts(run, of_flow=of_flow)
            return found if len(found) >= count else None

        return wait_until(
            enough,
            what=f"start {count} of {run}",
            timeout_seconds=timeout_seconds,
            interval_seconds=0.1,
        )

    def open_gate(self) -> float:
        """Let the jobs that wait at the gate fail; gives the time."""
        now = time.time()
        (self.root / "go").write_text("")
        return now


def job(*arguments: object) -> str:
    """The command of a plain job."""
    return " ".join(["sh", f"{MOUNT}/job", *map(str, arguments)])
