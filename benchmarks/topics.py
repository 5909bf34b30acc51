"""Fan-out: one topic, N groups in one process, a batch handler that does nothing. In deliveries per second."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from benchmarks.driven import DrivenSystem, drained
from benchmarks.process import wait_handled
from benchmarks.spi import Database, Sample, Sizes

GROUPS = (1, 4, 16, 64, 100)
WORKLOADS = (
    *(f"fanout_{groups}" for groups in GROUPS),
    "fanout_apart_16",
    "fanout_bitmap_16",
    "fanout_held_16",
    "fanout_wal",
)


@dataclass
class _FanOut(DrivenSystem):
    groups: int = 16

    def measure(self, database: Database, sizes: Sizes, workload: str, *, held: bool = False) -> Sample:
        total = min(max(sizes.fanout // self.groups, 10_000), sizes.fanout // 16)  # events: few groups need no more
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, workload)
            before_write = database.wal_position()
            if held:
                _hold_a_snapshot(stack, database)
            self._preload(peer, total, sizes.batch_size)
            database.analyze()
            database.checkpoint()
            before = database.wal_position()
            peer.call("start", mode="drain")
            wait_handled([peer], total * self.groups)
            count = peer.call("stop")
            spent = database.wal_position() - before
        sample = drained(facts, [count], total * self.groups)
        extra = {
            "groups": self.groups,
            "wal_per_delivery": round(spent / (total * self.groups), 3),
            "wal_in_per_event": round((before - before_write) / total, 1),
        }
        return replace(sample, extra={**sample.extra, **extra})


def _hold_a_snapshot(stack: ExitStack, database: Database) -> None:
    """Somebody's report runs all the while: a snapshot older than every event, and a transaction with a number."""
    report = stack.enter_context(psycopg.connect(database.url))
    report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    report.execute("SELECT pg_current_xact_id()")


class FanOutSystem:
    """All fan-outs under one name."""

    name = "relaybox"
    language = "Python"
    version = ""
    workloads = WORKLOADS

    def __init__(self, root: Path, logs: Path) -> None:
        self._root = root
        self._logs = logs

    def install(self) -> None: ...

    def _run(
        self, database: Database, sizes: Sizes, workload: str, groups: int, how: str = "same", tracking: str = "offset"
    ) -> Sample:
        command = [sys.executable, "-m", "benchmarks.systems.relaybox_fanout", str(groups), how, tracking]
        system = _FanOut(self.name, self.language, lambda: command, self._root, self._logs, groups=groups)
        sample = system.measure(database, sizes, workload, held="held" in workload)
        self.version = system.version
        return sample

    def fanout_1(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_1", 1)

    def fanout_4(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_4", 4)

    def fanout_16(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_16", 16)

    def fanout_64(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_64", 64)

    def fanout_100(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_100", 100)

    def fanout_apart_16(self, database: Database, sizes: Sizes) -> Sample:
        return self._run(database, sizes, "fanout_apart_16", 16, "apart")

    def fanout_bitmap_16(self, database: Database, sizes: Sizes) -> Sample:
        """Acks per second: each delivery is one."""
        return self._run(database, sizes, "fanout_bitmap_16", 16, "same", "bitmap")

    def fanout_held_16(self, database: Database, sizes: Sizes) -> Sample:
        """As fanout_16, while another session's snapshot is open from before the first event on."""
        return self._run(database, sizes, "fanout_held_16", 16)

    def fanout_wal(self, database: Database, sizes: Sizes) -> Sample:
        """WAL bytes per delivery beyond the log, 16 groups."""
        sample = self._run(database, sizes, "fanout_wal", 16)
        return replace(sample, value=sample.extra["wal_per_delivery"])
