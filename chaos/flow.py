"""The flow of the chaos run; it lies beside `job.py` in the folder of the run."""

from __future__ import annotations

import time

import httpx
from job import Attempt  # type: ignore[import-not-found]
from prefect import flow


@flow(name="chaos-flow", persist_result=True)
def work(kind: str, seconds: float, number: int) -> int:
    """Work for some seconds, then do what the kind says."""
    attempt = Attempt()
    try:
        time.sleep(seconds)
        if kind == "transient" and attempt.fails_as_planned(number):
            raise httpx.ConnectTimeout("timed out")
        if kind == "application":
            raise ValueError("no such column: price")
        if kind == "permission":
            raise PermissionError(13, "Permission denied", "/data/secret.csv")
    finally:
        attempt.note("end")
    return number
