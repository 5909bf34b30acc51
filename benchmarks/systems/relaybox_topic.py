"""A queue topic tracked by offset as a measured system: `python -m benchmarks.systems.relaybox_topic`."""

from __future__ import annotations

from types import MappingProxyType

import asyncpg

import relaybox
from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve
from relaybox import AsyncOutbox, Event, Settings
from relaybox.topic import Topic
from relaybox.types import DeliverySettings

NAME = "relaybox queue topic"
TOPIC = "orders"


def event(seq: int) -> Event:
    return Event("order.placed", payload_json=payload_bytes(seq).decode(), key=f"order-{seq % 5000}", topic=TOPIC)


class TopicPeer(Peer):
    """AsyncOutbox.write in the caller's transaction; a push group with one handler call per event."""

    version = relaybox.__version__
    settings = MappingProxyType({"driver": "asyncpg, uvloop", "tracking": "offset", "others": "defaults"})

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.box = AsyncOutbox(self.url, settings=Settings(delivery=DeliverySettings(freeze_gc=True)))
        if fresh:
            await self.box.migrate()
            await self.connection.execute(BUSINESS_TABLE)
            await self.box.topics.configure(Topic.queue(TOPIC, tracking="offset"))
        async with self.box.transaction():  # its connections are open before the clock runs
            pass

    async def write_block(self, first: int, count: int, event_too: bool) -> None:
        for seq in range(first, first + count):
            async with self.connection.transaction():
                await self.connection.execute("INSERT INTO business (note) VALUES ($1)", BUSINESS_NOTE)
                if event_too:
                    await self.box.write(self.connection, event(seq))

    async def write_batch(self, first: int, count: int) -> None:
        async with self.connection.transaction():
            await self.box.write_all(self.connection, [event(seq) for seq in range(first, first + count)])

    async def start(self) -> None:
        one = self.meter.one

        async def handle(placed: Event) -> None:
            one(placed.body)

        self.delivery = await self.box.topics.queue(TOPIC).deliver(handle).start()

    async def stop(self) -> None:
        await self.delivery.stop()


if __name__ == "__main__":
    serve(TopicPeer(), uvloop=True)
