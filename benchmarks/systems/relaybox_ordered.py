"""relaybox's relay with a sink that does nothing, by one of its order strategies; also the writer of relayed events."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg

import relaybox
from benchmarks.peers.python.peer import Meter, Peer, key, payload_bytes, serve
from relaybox import AsyncOutbox, AsyncRelay, Event, Settings
from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers import open_async
from relaybox.outbox.source import OutboxSource, make_source
from relaybox.outcome import DONE
from relaybox.spi import Answer, Features, Message
from relaybox.store.outbox import open_store

CHUNK = 150  # a larger write_all would leave whole batches, not the rows that single writes leave
LONG = timedelta(hours=1)


class NoOpSink:
    """Takes everything at once."""

    name = "no-op"
    features = Features(keyed_order=True, dedup=False, sequences=True)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def open(self) -> None: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self._meter.many([message.body for message in messages])
        return [None] * len(messages)


class OrderedPeer(Peer):
    version = relaybox.__version__

    def __init__(self, strategy: str, workers: int = Settings().delivery.workers) -> None:
        super().__init__()
        chosen: dict[str, Any] = {"order.strategy": strategy, "delivery.workers": workers}
        self._knobs = Settings().replaced({**chosen, "delivery.freeze_gc": True})  # as the command does
        self.settings = {"driver": "asyncpg, uvloop", **chosen, "others": "defaults of a relay"}

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.box = AsyncOutbox(self.url)
        self.source: OutboxSource | None = None
        if fresh:
            await self.box.migrate()

    async def hold(self, total: int, keys: int) -> None:
        self.held = total
        self.transaction = self.connection.transaction()
        await self.transaction.start()
        for first in range(0, total, CHUNK):
            seqs = range(first, min(first + CHUNK, total))
            events = [
                Event("order.placed", payload_json=payload_bytes(n).decode(), key=key(n, keys), aggregate_type="order")
                for n in seqs
            ]
            await self.box.write_all(self.connection, events)
        await self.connection.execute("ANALYZE")

    async def commit(self) -> float:
        await self.transaction.commit()
        return time.time()

    async def claims(self) -> list[float]:
        if self.source is None:
            self.source = await self._make_source()
        took, rows = [], 0
        while True:
            began = time.perf_counter()
            claimed = await self.source.claim(self._knobs.order.shard_rows)
            spent = time.perf_counter() - began
            if not claimed:
                break
            took.append(spent * 1000)
            rows += len(claimed)
            await self.source.settle([(delivery, DONE) for delivery in claimed])
        if rows != self.held:
            raise RuntimeError(f"claimed {rows} of {self.held} rows")
        return took

    async def _make_source(self) -> OutboxSource:
        db, knobs = open_async(self.url), self._knobs.of_relay()
        store = open_store(db.dialect)
        source = make_source(True, db, store, knobs, SYSTEM_CLOCK)
        source.owner = await db.run(store.register("bench", "relay", LONG, None))
        if knobs.order.strategy == "shards":
            await db.run(store.acquire_shards(source.owner, knobs.order.shards, knobs.order.shards, LONG, None))
        return source

    async def start(self) -> None:
        self.relay = AsyncRelay(self.url, NoOpSink(self.meter), to="nowhere", settings=self._knobs)
        await self.relay.__aenter__()

    async def stop(self) -> None:
        await self.relay.stop()


if __name__ == "__main__":
    serve(OrderedPeer(sys.argv[1], *map(int, sys.argv[2:])), uvloop=True)
