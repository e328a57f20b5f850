"""`python -m chaos --seed 7 --runs 60 --minutes 12`, `python -m chaos --outage 10 --answer 500`."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from chaos.checks import Seen, violations
from chaos.course import Course, Result
from chaos.faults import Fault, one_outage
from tests.support.docker_engine import why_no_engine
from tests.support.images import PLAIN_IMAGE, why_not_buildable

_MOST_MINUTES = 15.0
_RUNNING_SECONDS = 40.0
"""Before an outage: time for its runs to be submitted, and for many to be running."""


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if any promise was broken."""
    options = _parser().parse_args(arguments)
    why_not = why_no_engine() or why_not_buildable(PLAIN_IMAGE)
    with_docker = not options.no_docker and why_not is None
    print(f"seed {options.seed}, {options.runs} runs, at most {options.minutes:g} min")
    if not options.no_docker and why_not is not None:
        print(f"without a Docker node: {why_not}")
    course = Course(
        seed=options.seed,
        runs=options.runs,
        minutes=options.minutes,
        fault_minutes=0.5 * options.minutes,
        gap=options.gap,
        with_docker=with_docker,
        faults=_outage(options),
        say=lambda line: print(line, flush=True),
    )
    return report(course.run(options.keep), options.seed)


def _outage(options: argparse.Namespace) -> list[Fault] | None:
    if options.outage is None:
        return None
    status = None if options.answer == "nothing" else int(options.answer)
    return one_outage(after=_RUNNING_SECONDS, seconds=60.0 * options.outage, status=status)


def report(result: Result, seed: int) -> int:
    """Print what happened and what is wrong; 1 if anything is."""
    faults = Counter(it.fault.kind.value for it in result.faults)
    kinds = Counter(seen.kind.name for seen in result.seen)
    rows = sum(len(seen.rows) for seen in result.seen)
    print()
    print(f"faults     {len(result.faults)}: {_counted(faults)}")
    print(f"runs       {len(result.seen)}: {_counted(kinds)}")
    print(f"attempts   {rows}; {result.moved} runs moved to another node")
    if result.recoveries:
        median, worst = statistics.median(result.recoveries), max(result.recoveries)
        print(
            f"recovery   {len(result.recoveries)} attempts were ended by a fault; the next one"
            f" started {median:.1f} s after it in the median, {worst:.1f} s at the most"
        )
    broken = [(seen, found) for seen in result.seen if (found := violations(seen))]
    for seen, found in broken:
        _print_broken(seen, found)
    for text in result.left:
        print(f"\nVIOLATION {text}")
    count = sum(len(found) for _, found in broken) + len(result.left)
    verdict = "nothing lost, nothing twice" if not count else f"{count} VIOLATIONS (seed {seed})"
    print(f"\n{verdict}, in {result.seconds / 60:.1f} min")
    return 1 if count else 0


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _print_broken(seen: Seen, found: list[str]) -> None:
    print(f"\nVIOLATION run {seen.run_id} ({seen.kind.name})")
    for text in found:
        print(f"  - {text}")
    print(f"  states {' > '.join(name for _, name in seen.states)}")
    for name, states in seen.attempt_runs.items():
        print(f"  attempt run {name}: {' > '.join(state for _, state in states)}")
    for row in seen.rows:
        shown = ("attempt", "node", "status", "failure", "reason", "decision", "started", "ended")
        print(f"  row    {', '.join(f'{key}={row.get(key)!r}' for key in shown)}")
    for mark in seen.marks:
        print(f"  mark   {', '.join(f'{key}={value}' for key, value in mark.items())}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--minutes", type=_minutes, default=12.0, help="at most 15")
    parser.add_argument("--gap", type=float, default=15.0, help="seconds between two faults")
    parser.add_argument(
        "--outage", type=_minutes, help="minutes that the server is away, and no other fault"
    )
    parser.add_argument("--answer", choices=("nothing", "500", "429"), default="nothing")
    parser.add_argument("--no-docker", action="store_true", help="two nodes, both of processes")
    parser.add_argument("--keep", type=Path, help="folder for the workers' logs")
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= _MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text}: more than 0, at most {_MOST_MINUTES:g}")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
