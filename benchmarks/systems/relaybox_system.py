"""relaybox as a measured system, over asyncpg. Speaks the same line protocol as every peer."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import asyncpg

import relaybox
from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve
from benchmarks.systems.baselines import EVENT_INSERT, insert_values
from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.types import DeliverySettings

NAME = "relaybox"
SETTINGS = Settings(delivery=DeliverySettings(batch=500, cold_queue=4000))


def event(seq: int) -> Event:
    return Event("order.placed", payload_json=payload_bytes(seq).decode(), key=f"order-{seq % 5000}")


class RelayboxPeer(Peer):
    """AsyncOutbox.write in the caller's transaction; its deliver() as the worker."""

    version = relaybox.__version__
    settings = MappingProxyType(
        {
            "driver": "asyncpg, uvloop",
            "batch": SETTINGS.delivery.batch,
            "cold_queue": SETTINGS.delivery.cold_queue,
            "batched write": "write_all",
        }
    )

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.box = AsyncOutbox(self.url, settings=SETTINGS)
        if fresh:
            await self.box.migrate()
            await self.connection.execute(BUSINESS_TABLE)
        if self.workload == "latency_2":  # the producer's own connections are open before the clock runs
            async with self.box.transaction():
                pass

    async def write_block(self, first: int, count: int, event_too: bool) -> None:
        for seq in range(first, first + count):
            async with self.connection.transaction():
                await self.connection.execute("INSERT INTO business (note) VALUES ($1)", BUSINESS_NOTE)
                if event_too:
                    await self.box.write(self.connection, event(seq))
                elif self.workload == "write_overhead":
                    await self.connection.fetch(EVENT_INSERT, *insert_values(seq))

    async def write_batch(self, first: int, count: int) -> None:
        async with self.connection.transaction():
            await self.box.write_all(self.connection, [event(seq) for seq in range(first, first + count)])

    async def start(self) -> None:
        listeners = Listeners()
        meter = self.meter

        @listeners.on("order.placed")
        async def handle(placed: Event) -> None:
            meter.one(placed.body)

        await self.box.close()
        self.box = AsyncOutbox(self.url, settings=SETTINGS)
        self.delivery = self.box.deliver(listeners)
        await self.delivery.start()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.box.close()


if __name__ == "__main__":
    serve(RelayboxPeer(), uvloop=True)
