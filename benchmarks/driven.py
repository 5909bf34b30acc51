"""The workloads, driven over the line protocol: the same code measures every system."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cpu import Sides, postmaster
from benchmarks.process import PeerProcess, wait_handled
from benchmarks.spi import Database, PeerFailed, Sample, Sizes, Unsupported

WRITTEN_AND_DELIVERED = (
    "write_tx",
    "write_overhead",
    "write_batch",
    "drain_1",
    "drain_2",
    "latency_1",
    "latency_2",
    "wal",
)


@dataclass
class DrivenSystem:
    """A system whose program speaks the line protocol of benchmarks/peers/python/peer.py."""

    name: str
    language: str
    command: Callable[[], Sequence[str]]
    cwd: Path
    logs: Path
    installer: Callable[[], None] = lambda: None
    env: Mapping[str, str] = field(default_factory=dict)
    full_drain: int = 50_000
    cannot: Mapping[str, str] = field(default_factory=dict)
    has_hand_written: bool = False
    version: str = ""
    workloads: Sequence[str] = WRITTEN_AND_DELIVERED

    def install(self) -> None:
        self.installer()

    def write_tx(self, database: Database, sizes: Sizes) -> Sample:
        self._check("write_tx")
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, "write_tx")
            database.checkpoint()
            reply = peer.call("write_tx", total=sizes.tx, block=sizes.tx_block)
        value = sizes.tx / reply["event_seconds"]
        extra: dict[str, Any] = {}
        if reply.get("bare_seconds"):
            bare = sizes.tx / reply["bare_seconds"]
            extra = {"bare_same_driver": round(bare, 1), "of_bare": round(value / bare, 4)}
        return replace(facts, value=value, extra=extra)

    def write_overhead(self, database: Database, sizes: Sizes) -> Sample:
        """Business row and event: through the library, against its own statement by hand, in alternating blocks."""
        if not self.has_hand_written:
            raise Unsupported("only relaybox's own statement is written by hand here")
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, "write_overhead")
            database.checkpoint()
            reply = peer.call("write_tx", total=sizes.tx * 2, block=50)
        by_hand = sizes.tx * 2 / reply["bare_seconds"]
        extra = {"by_hand_per_second": round(by_hand, 1)}
        return replace(facts, value=reply["event_seconds"] / reply["bare_seconds"], extra=extra)

    def write_batch(self, database: Database, sizes: Sizes) -> Sample:
        self._check("write_batch")
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, "write_batch")
            peer.call("write_batches", batches=1, size=sizes.batch_size)
            database.checkpoint()
            reply = peer.call("write_batches", batches=sizes.batches, size=sizes.batch_size)
        return replace(facts, value=sizes.batches * sizes.batch_size / reply["seconds"])

    def drain_1(self, database: Database, sizes: Sizes) -> Sample:
        return self._drain(database, sizes, "drain_1", 1)

    def drain_2(self, database: Database, sizes: Sizes) -> Sample:
        return self._drain(database, sizes, "drain_2", 2)

    def latency_1(self, database: Database, sizes: Sizes) -> Sample:
        return self._latency(database, sizes, "latency_1", together=True)

    def latency_2(self, database: Database, sizes: Sizes) -> Sample:
        return self._latency(database, sizes, "latency_2", together=False)

    def wal(self, database: Database, sizes: Sizes) -> Sample:
        self._check("wal")
        total = sizes.limited(self.full_drain).wal
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, "wal")
            database.checkpoint()
            before_write = database.wal_position()
            self._preload(peer, total, sizes.batch_size)
            after_write = database.wal_position()
            database.analyze()
            before_drain = database.wal_position()
            peer.call("start", mode="drain")
            wait_handled([peer], total)
            peer.call("stop")
            after_drain = database.wal_position()
        wrote, drained = (after_write - before_write) / total, (after_drain - before_drain) / total
        extra = {"in": round(wrote, 1), "out": round(drained, 1), "messages": total}
        return replace(facts, value=wrote + drained, extra=extra)

    def _drain(self, database: Database, sizes: Sizes, workload: str, workers: int) -> Sample:
        self._check(workload)
        total = sizes.limited(self.full_drain).drain
        with ExitStack() as stack:
            writer, facts = self._start(stack, database, workload)
            self._preload(writer, total, sizes.batch_size)
            peers = [writer]
            for _ in range(workers - 1):
                peers.append(self._start(stack, database, workload, fresh=False)[0])
            database.analyze()
            database.checkpoint()
            used = Sides({"workers": [peer.pid for peer in peers], "postgres": [postmaster(database.url)]})
            for peer in peers:
                peer.send("start", mode="drain")
            for peer in peers:
                peer.reply()
            wait_handled(peers, total)
            cpu = used.per_event(total)
            counts = [peer.call("stop") for peer in peers]
        sample = drained(facts, counts, total)
        return replace(sample, extra={**sample.extra, "cpu_us": cpu})

    def _latency(self, database: Database, sizes: Sizes, workload: str, *, together: bool) -> Sample:
        self._check(workload)
        total = int(sizes.rate * sizes.latency_seconds)
        with ExitStack() as stack:
            consumer, facts = self._start(stack, database, workload)
            producer = consumer if together else self._start(stack, database, workload, fresh=False)[0]
            database.checkpoint()
            consumer.call("start", mode="latency")
            time.sleep(0.5)
            committed = producer.call("produce", rate=sizes.rate, total=total)["committed"]
            wait_handled([consumer], total)
            received = consumer.call("stop")["received"]
        delays = sorted(max(0, received[seq] - stamp) / 1e6 for seq, stamp in committed.items())
        extra = {
            "p99_ms": round(delays[int(len(delays) * 0.99)], 3),
            "max_ms": round(delays[-1], 3),
            "before_commit_returned": sum(received[seq] < stamp for seq, stamp in committed.items()),
            "events": total,
        }
        return replace(facts, value=delays[len(delays) // 2], extra=extra)

    def _check(self, workload: str) -> None:
        if workload in self.cannot:
            raise Unsupported(self.cannot[workload])

    def _start(
        self, stack: ExitStack, database: Database, workload: str, *, fresh: bool = True, **options: Any
    ) -> tuple[PeerProcess, Sample]:
        log = self.logs / f"{self.name}-{workload}.log".replace(" ", "-")
        peer = stack.enter_context(PeerProcess(self.command(), self.cwd, self.env, log, fresh))
        reply = peer.call("setup", url=database.url, workload=workload, fresh=fresh, options=options)
        self.version = reply["version"]
        return peer, Sample(0.0, {}, reply["settings"], reply["version"])

    def _preload(self, peer: PeerProcess, total: int, size: int) -> None:
        whole, rest = divmod(total, size)
        if whole:
            peer.call("write_batches", batches=whole, size=size)
        if rest:
            peer.call("write_batches", batches=1, size=rest)


def drained(facts: Sample, counts: Sequence[Mapping[str, Any]], total: int) -> Sample:
    """From the first handler call of any process to the last; what the first call brought took no time."""
    busy = [count for count in counts if count["count"]]
    first = min(busy, key=lambda count: int(count["first_ns"]))
    seconds = (max(count["last_ns"] for count in busy) - first["first_ns"]) / 1e9
    if seconds <= 0:
        raise PeerFailed("the whole drain came in one handler call")
    handled = sum(count["count"] for count in busy)
    extra = {
        "messages": total,
        "handled": handled,
        "per_worker": [count["count"] for count in busy],
        "seconds": round(seconds, 4),
    }
    return replace(facts, value=(handled - first["first_count"]) / seconds, extra=extra)
