"""Speed of the diagnosis: a long log through the scanner against `grep`, and short tails.

    python benchmarks/diagnosis.py            # 256 MB
    python benchmarks/diagnosis.py --full     # 2 GB, as the goal says

The goals: at least a quarter of the speed of `grep -c -F -f` with the same literals on the same
file, memory growth under 32 MiB, and more than 1,000 tails of 200 lines a second.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Evidence
from prefect_heteroflow.core.literals import LiteralFinder, all_literals
from prefect_heteroflow.core.scanner import FailureScanner
from prefect_heteroflow.fast_literals import fast_finder

CASES = Path(__file__).parents[1] / "tests" / "core" / "data" / "failures.jsonl"
CHUNK = 1024 * 1024
CAUSE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.00 GiB is free.\n"
)


def training_lines(rng: random.Random) -> Iterator[str]:
    """Lines as a training run prints them, without end; one in 5,000 is a harmless warning."""
    step = 0
    while True:
        step += 1
        epoch, share = divmod(step, 1000)
        loss = f"{rng.random() * 4:.4f}"
        yield (
            f"2024-05-01 12:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d} INFO "
            f"[trainer.py:{212 + step % 40}] epoch {epoch} step {step} loss={loss} "
            f"grad_norm={rng.random():.3f} lr={3e-4 * rng.random():.2e} "
            f"tokens/s={rng.randrange(9000, 12000)}\n"
        )
        if step % 7 == 0:
            yield (
                f"Epoch {epoch}: {share // 10}%|####      | {share}/1000 [{rng.random():.2f}s/it]\r"
            )
        if step % 5000 == 0:
            yield "UserWarning: the learning rate scheduler was called before the optimizer\n"
            yield f"WARNING Retrying (Retry(total=3)) after ReadTimeoutError, shard {step}\n"


def write_log(path: Path, size: int) -> None:
    """A log of about `size` bytes: a different 32 MB block repeated, the cause in its middle."""
    rng = random.Random(7)
    lines, gathered = [], 0
    for line in training_lines(rng):
        lines.append(line)
        gathered += len(line)
        if gathered >= min(size, 32 * CHUNK):
            break
    block = "".join(lines).encode()
    with path.open("wb") as file:
        written, told = 0, False
        while written < size:
            if not told and written >= size // 2:
                file.write(CAUSE.encode())
                told = True
            file.write(block)
            written += len(block)


def best(seconds: list[float], size: int) -> float:
    """MB/s of the fastest round."""
    return size / min(seconds) / 1e6


def time_grep(log: Path, literals: Path) -> float:
    """Seconds of `grep -c -F -f` in the C locale, in which it is fastest."""
    started = time.perf_counter()
    # Into a pipe: with /dev/null as its output grep stops at the first match.
    command = ["grep", "-c", "-F", "-f", str(literals), str(log)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"})
    return time.perf_counter() - started


def time_scanner(log: Path, finder: LiteralFinder | None) -> float:
    """Seconds of one pass; the cause must be found."""
    started = time.perf_counter()
    scanner = FailureScanner(finder)
    with log.open("rb") as file:
        while chunk := file.read(CHUNK):
            scanner.feed(chunk)
    found = diagnose(Evidence(exit_code=137, oom_killed=False, log=scanner.evidence_text()))
    seconds = time.perf_counter() - started
    assert found is not None
    return seconds


def tails(count: int) -> list[Evidence]:
    """Tails of 200 lines: progress, then a real case."""
    rng = random.Random(11)
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    source = training_lines(rng)
    made = []
    for number in range(count):
        case = cases[number % len(cases)]
        end = case["log"].splitlines(keepends=True)[-200:]
        lines = [next(source) for _ in range(200 - len(end))]
        log = "".join([*lines, *end])
        made.append(
            Evidence(
                phase=case["phase"],
                exit_code=case["exit_code"],
                oom_killed=case["oom_killed"],
                log=log,
            )
        )
    return made


def max_rss() -> int:
    """Highest resident memory of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=256, help="size of the log in MB")
    parser.add_argument("--full", action="store_true", help="a log of 2 GB")
    parser.add_argument("--rounds", type=int, default=3, help="best of so many rounds")
    parser.add_argument("--tails", type=int, default=2000, help="how many tails of 200 lines")
    parser.add_argument("--plain", action="store_true", help="the standard library's engine")
    options = parser.parse_args()
    size = (2048 if options.full else options.mb) * 1024 * 1024
    finder = None if options.plain else fast_finder()
    engine = "standard library" if finder is None else type(finder).__name__

    with tempfile.TemporaryDirectory(prefix="diagnosis-") as folder:
        log, literals = Path(folder, "log"), Path(folder, "literals")
        # In a process of its own: its memory must not hide the scanner's.
        writer = multiprocessing.get_context("spawn").Process(target=write_log, args=(log, size))
        writer.start()
        writer.join()
        size = log.stat().st_size
        literals.write_text("\n".join(all_literals()) + "\n", encoding="latin-1")
        warm = FailureScanner(finder)
        warm.feed(CAUSE.encode())
        diagnose(Evidence(exit_code=1, log=warm.evidence_text()))
        before = max_rss()
        grep, scan = [], []
        for _ in range(options.rounds):
            grep.append(time_grep(log, literals))
            scan.append(time_scanner(log, finder))
        growth = (max_rss() - before) / 1024 / 1024
        ratio = min(grep) / min(scan)
        print(f"log of {size / 1e6:.0f} MB, {len(all_literals())} literals, engine: {engine}")
        print(f"grep -c -F -f: {best(grep, size):.0f} MB/s")
        print(f"scanner:       {best(scan, size):.0f} MB/s, {ratio:.2f} of grep (goal: 0.25)")
        print(f"memory growth: {growth:.1f} MiB (goal: under 32)")

    sample = tails(options.tails)
    for evidence in sample[:300]:
        diagnose(evidence)
    started = time.perf_counter()
    for evidence in sample:
        diagnose(evidence)
    rate = len(sample) / (time.perf_counter() - started)
    print(f"tails of 200 lines: {rate:.0f}/s (goal: more than 1000)")


if __name__ == "__main__":
    main()
