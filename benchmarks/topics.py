"""Fan-out: one topic, N groups in one process, a batch handler that does nothing. In deliveries per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.cpu import Sides, postmaster
from benchmarks.driven import DrivenSystem, drained
from benchmarks.postgres import Server
from benchmarks.process import wait_handled
from benchmarks.spi import Database, Sample, Sizes


@dataclass(frozen=True)
class Case:
    """So many groups, and how they read."""

    groups: int
    how: str = "same"  # or apart: no group finds what another has read
    tracking: str = "offset"
    share: int = 1  # of the full number of deliveries, one in so many: slower ones need no more


CASES = {
    **{f"fanout_{groups}": Case(groups) for groups in (1, 4, 16, 64, 100)},
    **{f"fanout_apart_{groups}": Case(groups, "apart", share=4) for groups in (4, 16, 64, 100)},
    **{f"fanout_bitmap_{groups}": Case(groups, tracking="bitmap", share=8) for groups in (16, 64)},
}
HELD = Case(16)
AHEAD = 50_000  # events that the writer may be ahead of the readers


class Passed(NamedTuple):
    """Deliveries per second, and what each of them took."""

    rate: float
    cpu_us: dict[str, float]


@dataclass
class _FanOut(DrivenSystem):
    case: Case = HELD

    def measure(self, database: Database, sizes: Sizes, workload: str) -> Sample:
        groups, deliveries = self.case.groups, sizes.fanout // self.case.share
        total = min(max(deliveries // groups, 10_000), deliveries // 16)  # events: few groups need no more
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, workload)
            before_write = database.wal_position()
            self._preload(peer, total, sizes.batch_size)
            database.analyze()
            database.checkpoint()
            before = database.wal_position()
            sides = Sides({self.name: [peer.pid], "PostgreSQL": [postmaster(database.url)]})
            peer.call("start", mode="drain")
            wait_handled([peer], total * groups)
            count = peer.call("stop")
            used = sides.per_event(total * groups)
            spent = database.wal_position() - before
        sample = drained(facts, [count], total * groups)
        extra = {
            "groups": groups,
            "wal_per_delivery": round(spent / (total * groups), 3),
            "wal_in_per_event": round((before - before_write) / total, 1),
            "cpu_us": used,
        }
        return replace(sample, extra={**sample.extra, **extra})

    def held(self, database: Database, sizes: Sizes) -> Sample:
        """A writer as fast as it can and the groups behind it; once more from the beginning, beside a snapshot."""
        free, facts = self._flow(database, sizes.held_seconds)
        with Server(database.url).fresh_database("bench_held") as another, psycopg.connect(another.url) as report:
            report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            report.execute("SELECT pg_current_xact_id()")  # older than all that comes, in a transaction with a number
            held, _ = self._flow(another, sizes.held_seconds)
        extra = {
            "seconds": sizes.held_seconds,
            "deliveries_per_second": {"without": round(free.rate), "with": round(held.rate)},
            "cpu_us_without": free.cpu_us,
            "cpu_us": held.cpu_us,
        }
        return replace(facts, value=100 * held.rate / free.rate, extra=extra)

    def _flow(self, database: Database, seconds: float) -> tuple[Passed, Sample]:
        with ExitStack() as stack:
            readers, facts = self._start(stack, database, "held_snapshot")
            writer, _ = self._start(stack, database, "held_snapshot", fresh=False)
            readers.call("start", mode="drain")
            used = Sides({"writer": [writer.pid], "groups": [readers.pid], "PostgreSQL": [postmaster(database.url)]})
            began, written = time.monotonic(), 0
            while (took := time.monotonic() - began) < seconds or not readers.handled:
                writer.call("write_batches", batches=5, size=1_000)
                written += 5_000
                wait_handled([readers], (written - AHEAD) * self.case.groups)
            passed = Passed(readers.handled / took, used.per_event(readers.handled))
            readers.call("stop")
        return passed, facts


@dataclass
class FanOutSystem:
    """All fan-outs of one system; `command` makes the program of a case."""

    name: str
    language: str
    command: Callable[[Case], Sequence[str]]
    root: Path
    logs: Path
    installer: Callable[[], None] = lambda: None
    workloads: Sequence[str] = (*CASES, "held_snapshot")
    share: int = 1
    version: str = ""

    def install(self) -> None:
        self.installer()

    def __getattr__(self, workload: str) -> Callable[[Database, Sizes], Sample]:
        if workload not in CASES:
            raise AttributeError(workload)
        return partial(self._measured, workload)

    def _measured(self, workload: str, database: Database, sizes: Sizes) -> Sample:
        case = CASES[workload]
        return self._of(replace(case, share=case.share * self.share)).measure(database, sizes, workload)

    def held_snapshot(self, database: Database, sizes: Sizes) -> Sample:
        """In percent of the throughput without."""
        return self._of(HELD).held(database, sizes)

    def _of(self, case: Case) -> _FanOut:
        return _FanOut(self.name, self.language, lambda: self.command(case), self.root, self.logs, case=case)
