"""The course of a chaos run: submits, breaks, puts right, waits for the ends, and looks at all."""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from chaos.bed import Bed, bed
from chaos.checks import FINAL, Seen
from chaos.faults import Fault, Injected, inject, plan_faults
from chaos.kinds import Planned, plan_runs
from chaos.leftovers import leftovers
from tests.support import wait_until

T = TypeVar("T")

_LOOK_SECONDS = 3.0
_ROWS_SECONDS = 20.0
"""A flow reports its end itself; its worker writes the row when the process is gone."""
_GOING_SECONDS = 45.0


@dataclass(slots=True)
class Result:
    """What came of it."""

    seen: list[Seen] = field(default_factory=list)
    faults: list[Injected] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a fault to the next attempt, of each attempt that a fault ended."""
    moved: int = 0
    """Runs with attempts on more than one node."""
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Course:
    """One chaos run.

    Args:
        seed: Equal seeds give equal runs and faults.
        runs: How many.
        minutes: Bound of the whole; it ends sooner if all runs have.
        fault_minutes: How long things go wrong.
        gap: Mean seconds between two faults.
        with_docker: Have a node with a Docker engine.
        faults: Instead of those that the seed gives; then all runs are submitted before the first.
        say: Gets a line for each thing that happens.
    """

    def __init__(
        self,
        *,
        seed: int,
        runs: int,
        minutes: float,
        fault_minutes: float,
        gap: float,
        with_docker: bool,
        say: Callable[[str], None],
        faults: list[Fault] | None = None,
    ) -> None:
        self._rng = random.Random(seed)
        self._count, self._seconds, self._gap = runs, 60.0 * minutes, gap
        self._fault_seconds = 60.0 * fault_minutes
        self._with_docker = with_docker
        self._given_faults = faults
        self._say = say
        self._runs: dict[str, Planned] = {}
        self._to_cancel: list[tuple[float, str]] = []
        self._to_put_right: list[tuple[float, Callable[[], None]]] = []
        self._result = Result()
        self._started = 0.0
        self._next_fault = 0.0
        """Seconds after the start; not all at once when putting one right took long."""
        self._bed: Bed

    def run(self, keep: Path | None = None) -> Result:
        """Do it, and look at everything.

        Args:
            keep: Folder for the logs; `None` leaves none.
        """
        root = Path(tempfile.mkdtemp(prefix="chaos-"))
        begun = time.monotonic()
        try:
            with bed(root, with_docker=self._with_docker) as self._bed:
                try:
                    self._go_through(begun + self._seconds)
                finally:
                    if keep is not None:
                        shutil.copytree(root / "logs", keep, dirs_exist_ok=True)
                        shutil.copytree(root / "marks", keep / "marks", dirs_exist_ok=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        self._result.seconds = time.monotonic() - begun
        return self._result

    def _go_through(self, deadline: float) -> None:
        pools = list(self._bed.nodes)
        self._started = time.monotonic()
        until = self._fault_seconds
        given = self._given_faults
        within = 0.8 * until if given is None else given[0].after
        plan = plan_runs(self._rng, self._count, within=within, pools=set(pools))
        faults = given or plan_faults(self._rng, first=8.0, until=until, gap=self._gap, pools=pools)
        looked = 0.0
        while time.monotonic() < deadline:
            self._submit_due(plan)
            self._cancel_due()
            self._put_right_due()
            if self._elapsed() > 1.2 * until:
                faults.clear()  # the machine is slow: what is open needs the rest of the time
            elif faults and max(faults[0].after, self._next_fault) <= self._elapsed():
                self._inject(faults.pop(0))
                self._next_fault = self._elapsed() + 0.5 * self._gap
            if not plan and not faults and time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                if not self._to_put_right and not self._open_runs():
                    break
            time.sleep(0.1)
        self._put_right_due(all_of_them=True)
        self._look_at_all()

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _submit_due(self, plan: list[Planned]) -> None:
        # One at a time: a slow server must not keep the faults from coming.
        if not plan or plan[0].submit_after > self._elapsed():
            return
        planned = plan.pop(0)
        run = asked(functools.partial(self._bed.submit, planned))
        self._runs[run] = planned
        if planned.cancel_after is not None:
            self._to_cancel.append((self._elapsed() + planned.cancel_after, run))

    def _cancel_due(self) -> None:
        for entry in [it for it in self._to_cancel if it[0] <= self._elapsed()]:
            self._to_cancel.remove(entry)
            asked(functools.partial(self._bed.api.cancel, entry[1]))

    def _put_right_due(self, *, all_of_them: bool = False) -> None:
        for entry in [it for it in self._to_put_right if all_of_them or it[0] <= self._elapsed()]:
            self._to_put_right.remove(entry)
            entry[1]()

    def _inject(self, fault: Fault) -> None:
        injected = inject(self._bed, fault, list(self._runs))
        where = f" {fault.pool}" if fault.pool else ""
        if injected is None:
            self._say(f"{self._elapsed():6.0f} s  ({fault.kind.value}{where}: it is down already)")
            return
        away = f", {fault.away:.0f} s" if fault.away else ""
        away += f", answers {fault.status}" if fault.status else ""
        hit = f", {len(injected.victims)} attempts there" if injected.victims else ""
        self._say(f"{self._elapsed():6.0f} s  {fault.kind.value}{where}{away}{hit}")
        self._result.faults.append(injected)
        if injected.put_right is not None:
            self._to_put_right.append((self._elapsed() + fault.away, injected.put_right))

    # ---- afterwards --------------------------------------------------------------------------

    def _open_runs(self) -> list[str]:
        found = asked(lambda: [self._bed.api.run(run) for run in self._runs])
        return [run["id"] for run in found if run["state"]["type"] not in FINAL]

    def _look_at_all(self) -> None:
        result = self._result
        rows_until = time.monotonic() + _ROWS_SECONDS
        for run, planned in self._runs.items():
            result.seen.append(self._seen(run, planned, rows_until))
        result.moved = sum(len({row["node"] for row in it.rows} - {None}) > 1 for it in result.seen)
        for fault in result.faults:
            for run in fault.victims:
                again = self._bed.marks.next_start(run, fault.at)
                if again is not None and not self._ended_in_peace(run, fault.at):
                    result.recoveries.append(again - fault.at)
        ended_by = time.monotonic() + _GOING_SECONDS
        while True:
            result.left = asked(lambda: leftovers(self._bed))
            if not result.left or time.monotonic() > ended_by:
                return
            time.sleep(1.0)

    def _ended_in_peace(self, run: str, at: float) -> bool:
        """The attempt that ran at that moment came to its own end."""
        moves = [m for m in self._bed.marks.of(run) if m["event"] in ("start", "end")]
        after = [m for m in moves if m["time"] > at]
        return bool(after) and after[0]["event"] == "end"

    def _seen(self, run: str, planned: Planned, rows_until: float) -> Seen:
        api = self._bed.api
        states = _names(asked(lambda: api.states(run)))
        is_over = any(kind in FINAL for kind, _ in states)
        while True:
            rows = asked(lambda: api.rows(run))
            is_open = bool(rows) and rows[-1]["status"] in ("running", "scheduled")
            if not is_over or not is_open or time.monotonic() > rows_until:
                break
            time.sleep(0.5)
        attempt_runs = asked(lambda: api.subflow_runs(run))
        return Seen(
            run_id=run,
            kind=planned.kind,
            states=states,
            rows=rows,
            marks=self._bed.marks.of(run),
            attempt_runs={
                each["name"]: _names(asked(functools.partial(api.states, each["id"])))
                for each in attempt_runs
            },
        )


def asked(question: Callable[[], T]) -> T:
    """The API's answer; asked again while it is away or overloaded."""

    def answer() -> tuple[T] | None:
        try:
            return (question(),)
        except (httpx.TransportError, TimeoutError, httpx.HTTPStatusError):
            return None

    return wait_until(
        answer, what="an answer of the API", timeout_seconds=90, interval_seconds=0.5
    )[0]


def _names(states: list[Any]) -> list[tuple[str, str]]:
    return [(state.type, state.name) for state in states]
