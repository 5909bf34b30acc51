"""Order per key: a backlog drained by workers that keep it, and what their claims cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import psycopg

from benchmarks.cpu import Sides, postmaster
from benchmarks.driven import DrivenSystem, drained
from benchmarks.process import wait_handled
from benchmarks.spi import Database, PeerFailed, Sample, Sizes

Ready = Callable[[str, int], None]
PATIENCE = 30.0
ONE_WORKER = "relaybox one worker"  # a relay has four
ROUNDS = 5  # backlogs per measurement of claims: one alone is twenty claims


def at_once(url: str, processes: int) -> None:
    """For workers that need no agreement before they begin."""


def shards_shared(url: str, processes: int) -> None:
    """Wait until the processes have shared out relaybox's shards: at most one more to one than to another."""
    deadline = time.monotonic() + PATIENCE
    owned = "SELECT count(owner) FROM outbox_event_shard GROUP BY owner"
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            shares = [row[0] for row in connection.execute(owned)]
            if len(shares) == processes and 0 not in shares and max(shares) - min(shares) <= 1:
                return
            time.sleep(0.05)
    raise PeerFailed(f"{processes} processes did not share the shards within {PATIENCE:.0f} s")


@dataclass
class OrderedSystem(DrivenSystem):
    """A system that delivers the events of a key one after the other."""

    ready: Ready = at_once
    workloads: Sequence[str] = ("ordered_drain_1", "ordered_drain_4", "ordered_claim_p95")

    def ordered_drain_1(self, database: Database, sizes: Sizes) -> Sample:
        return self._ordered_drain(database, sizes, "ordered_drain_1", 1)

    def ordered_drain_4(self, database: Database, sizes: Sizes) -> Sample:
        return self._ordered_drain(database, sizes, "ordered_drain_4", 4)

    def ordered_claim_p95(self, database: Database, sizes: Sizes) -> Sample:
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, "ordered_claim_p95")
            took: list[float] = []
            for _ in range(ROUNDS):
                peer.call("hold", total=sizes.claim_rows, keys=sizes.claim_keys)
                peer.call("commit")
                database.checkpoint()
                took += peer.call("claims")["ms"]
        took.sort()
        extra = {
            "p50_ms": round(took[len(took) // 2], 3),
            "max_ms": round(took[-1], 3),
            "claims": len(took),
            "rows": sizes.claim_rows,
            "keys": sizes.claim_keys,
            "rounds": ROUNDS,
        }
        return replace(facts, value=took[math.ceil(len(took) * 0.95) - 1], extra=extra)

    def _ordered_drain(self, database: Database, sizes: Sizes, workload: str, processes: int) -> Sample:
        with ExitStack() as stack:
            writer, facts = self._start(stack, database, workload)
            keys = (
                sizes.backlog * sizes.claim_keys // sizes.claim_rows
            )  # as many rows per key as claims are measured on
            writer.call("hold", total=sizes.backlog, keys=keys)
            workers = [self._start(stack, database, workload, fresh=False)[0] for _ in range(processes)]
            for worker in workers:
                worker.call("start", mode="drain")
            self.ready(database.url, processes)
            database.checkpoint()
            used = Sides({"workers": [worker.pid for worker in workers], "postgres": [postmaster(database.url)]})
            writer.call("commit")
            wait_handled(workers, sizes.backlog)
            cpu = used.per_event(sizes.backlog)
            counts = [worker.call("stop") for worker in workers]
        sample = drained(facts, counts, sizes.backlog)
        return replace(sample, extra={**sample.extra, "cpu_us": cpu})
