"""The inbox: what accepting costs beside a bare INSERT, and messages accepted and processed by one process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.cpu import Sides, postmaster
from benchmarks.driven import DrivenSystem
from benchmarks.postgres import SERVER_SETTINGS, FreshDatabase
from benchmarks.process import wait_handled
from benchmarks.spi import Database, Sample, Sizes
from relaybox.testing.servers import PostgresServer

BATCH = 100
BLOCK = 10  # messages: so short that both sides see the same weather
CROWD_BLOCK = 160  # ten for each caller


@dataclass
class InboxSystem(DrivenSystem):
    """A system with an inbox."""

    workloads: Sequence[str] = ("inbox_process",)
    full_drain: int = 10_000
    logical: bool = False  # needs wal_level = logical: on a server of its own, the others are not to pay for it

    def inbox_accept(self, database: Database, sizes: Sizes) -> Sample:
        return self._accept(database, sizes, "inbox_accept", 1)

    def inbox_overhead(self, database: Database, sizes: Sizes) -> Sample:
        """Through relaybox, against its own statement by hand; each in a transaction of its own."""
        sample = self._accept(database, sizes, "inbox_overhead", 1)
        by_hand = sample.extra["bare_same_driver"]
        return replace(sample, value=by_hand / sample.value, extra={"by_hand_per_second": by_hand})

    def inbox_accept_pooled(self, database: Database, sizes: Sizes) -> Sample:
        return self._accept(database, sizes, "inbox_accept_pooled", 1)

    def inbox_accept_tx(self, database: Database, sizes: Sizes) -> Sample:
        return self._accept(database, sizes, "inbox_accept_tx", 1)

    def inbox_accept_100(self, database: Database, sizes: Sizes) -> Sample:
        return self._accept(database, sizes, "inbox_accept_100", BATCH)

    def inbox_accept_crowd(self, database: Database, sizes: Sizes) -> Sample:
        return self._accept(database, sizes, "inbox_accept_crowd", 1, block=CROWD_BLOCK)

    def inbox_process(self, database: Database, sizes: Sizes) -> Sample:
        """From the first message that arrives to the last effect."""
        total = sizes.limited(self.full_drain).drain
        with ExitStack() as stack:
            if self.logical:
                settings = {**SERVER_SETTINGS, "wal_level": "logical"}
                server = stack.enter_context(PostgresServer.from_wheel(settings=settings))
                database = FreshDatabase(server.create_database())
            peer, facts = self._start(stack, database, "inbox_process")
            database.checkpoint()
            peer.call("start", mode="drain")
            used = Sides({"process": [peer.pid], "postgres": [postmaster(database.url)]})
            began = peer.call("write_batches", batches=1, size=total)["began_ns"]
            wait_handled([peer], total)
            cpu = used.per_event(total)
            count = peer.call("stop")
        seconds = (count["last_ns"] - began) / 1e9
        extra = {"messages": total, "handled": count["count"], "seconds": round(seconds, 3), "cpu_us": cpu}
        return replace(facts, value=count["count"] / seconds, extra=extra)

    def _accept(self, database: Database, sizes: Sizes, workload: str, batch: int, block: int = BLOCK) -> Sample:
        """In alternating blocks with the bare INSERT."""
        with ExitStack() as stack:
            peer, facts = self._start(stack, database, workload, batch=batch)
            database.checkpoint()
            total, block = max(sizes.tx // batch, 50), max(block // batch, 1)
            reply = peer.call("write_tx", total=total, block=block)
        value = total * batch / reply["event_seconds"]
        bare = total * batch / reply["bare_seconds"]
        extra = {"bare_same_driver": round(bare, 1), "of_bare": round(value / bare, 4)}
        return replace(facts, value=value, extra=extra)
