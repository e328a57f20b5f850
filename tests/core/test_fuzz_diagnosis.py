"""A seeded fuzz run: real logs, cut, spliced and damaged, never make the diagnosis fail.

`HETEROFLOW_FUZZ_ROUNDS` sets how many (2,000 by default, some ten seconds).
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence
from prefect_heteroflow.core.scanner import FailureScanner

CASES = Path(__file__).parent / "data" / "failures.jsonl"
ROUNDS = int(os.environ.get("HETEROFLOW_FUZZ_ROUNDS", "2000"))
SEED = 20261129
NASTY = (
    b"\x00",
    b"\xff\xfe",
    b"\x1b[31m",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xc3\x28",
    b" " * 500,
    b"(" * 200,
)


def damaged(source: random.Random, logs: list[bytes]) -> bytes:
    """One log, or two spliced, with a few bytes cut, doubled, replaced or put in."""
    text = bytearray(source.choice(logs))
    if source.random() < 0.3:
        at = source.randrange(len(text) + 1)
        text[at:at] = source.choice(logs)
    for _ in range(source.randrange(1, 12)):
        at = source.randrange(len(text) + 1)
        end = min(len(text), at + source.randrange(40))
        kind = source.randrange(4)
        if kind == 0:
            del text[at:end]
        elif kind == 1:
            text[at:at] = text[at:end] * source.randrange(1, 20)
        elif kind == 2:
            text[at:end] = bytes(source.randrange(256) for _ in range(end - at))
        else:
            text[at:at] = source.choice(NASTY)
    return bytes(text)


def test_damaged_logs_are_always_diagnosed_without_an_error() -> None:
    source = random.Random(SEED)
    logs = [json.loads(line)["log"].encode() for line in CASES.read_text().splitlines()]
    for _ in range(ROUNDS):
        log = damaged(source, logs)
        scanner = FailureScanner()
        at = 0
        while at < len(log):  # in chunks of any size, as a pipe gives them
            size = source.randrange(1, 4096)
            scanner.feed(log[at : at + size])
            at += size
        found = diagnose(
            Evidence(
                phase=source.choice(["start", "run", "lost", None]),
                exit_code=source.choice([None, 0, 1, 137, 139, 255]),
                oom_killed=source.choice([None, True, False]),
                log=scanner.evidence_text(),
            )
        )
        assert found is None or isinstance(found, Diagnosis)
