"""Groups of a pub/sub topic in one process, with a batch handler that does nothing.

`python -m benchmarks.systems.relaybox_fanout GROUPS same|apart offset|bitmap`
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

import relaybox
from benchmarks.peers.python.peer import Peer, payload_bytes, serve
from relaybox import AsyncOutbox, Event, Listeners, Settings, StartFrom
from relaybox.topic import Topic, Tracking
from relaybox.types import DeliverySettings

TOPIC = "orders"


class FanOutPeer(Peer):
    version = relaybox.__version__

    def __init__(self, groups: int, apart: bool, tracking: Tracking) -> None:
        super().__init__()
        self._groups = groups
        self._apart = apart
        self._tracking: Any = tracking
        self.settings = {"driver": "asyncpg, uvloop", "tracking": tracking, "batch": 1000, "others": "defaults"}

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.box = AsyncOutbox(self.url, settings=Settings(delivery=DeliverySettings(freeze_gc=True)))
        if not fresh:
            return
        await self.box.migrate()
        await self.box.topics.configure(Topic.pub_sub(TOPIC, tracking=self._tracking))
        for number in range(self._groups):
            await self.box.topics.group(TOPIC, f"g{number}", start=StartFrom.earliest()).create()

    async def write_batch(self, first: int, count: int) -> None:
        async with self.connection.transaction():
            await self.box.write_all(
                self.connection,
                [
                    Event("order.placed", payload_json=payload_bytes(n).decode(), key=f"order-{n % 5000}", topic=TOPIC)
                    for n in range(first, first + count)
                ],
            )

    async def start(self) -> None:
        many = self.meter.many

        async def handle(events: Sequence[Event]) -> None:
            many(events)  # type: ignore[arg-type]  # it counts them

        listeners: Listeners = Listeners()
        listeners.on_batch("order.placed", size=1000)(handle)
        self.groups = [self.box.topics.group(TOPIC, f"g{n}").deliver(listeners) for n in range(self._groups)]
        if self._apart:  # nothing that one has read is there for another
            reads = self.box.topics._context.reads
            reads.get = lambda *place: None  # type: ignore[method-assign]
        await asyncio.gather(*(group.start() for group in self.groups))

    async def stop(self) -> None:
        await asyncio.gather(*(group.drain() for group in self.groups))
        if self._tracking != "offset":  # acks are counted: the last one is written now
            self.meter.last_ns = time.monotonic_ns()
        for group in self.groups:
            await group.stop()


if __name__ == "__main__":
    serve(FanOutPeer(int(sys.argv[1]), sys.argv[2] == "apart", sys.argv[3]), uvloop=True)  # type: ignore[arg-type]
