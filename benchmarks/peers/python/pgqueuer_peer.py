"""pgqueuer over asyncpg."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from importlib.metadata import version
from types import MappingProxyType

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve

BATCH = 250
ENTRYPOINT = "bench"


class PgQueuerPeer(Peer):
    """Queries.enqueue on the caller's connection; PgQueuer.run as the worker."""

    version = version("pgqueuer")
    settings = MappingProxyType(
        {
            "driver": "asyncpg, uvloop",
            "durability": "durable (default)",
            "batch_size": BATCH,
            "batched write": "enqueue with lists",
            "payload": "bytes",
        }
    )

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.queries = Queries(AsyncpgDriver(self.connection))
        if fresh:
            await self.queries.install()
            await self.connection.execute(BUSINESS_TABLE)

    async def write_block(self, first: int, count: int, event: bool) -> None:
        for seq in range(first, first + count):
            async with self.connection.transaction():
                await self.connection.execute("INSERT INTO business (note) VALUES ($1)", BUSINESS_NOTE)
                if event:
                    await self.queries.enqueue(ENTRYPOINT, payload_bytes(seq))

    async def write_batch(self, first: int, count: int) -> None:
        bodies: list[bytes | None] = [payload_bytes(seq) for seq in range(first, first + count)]
        async with self.connection.transaction():
            await self.queries.enqueue([ENTRYPOINT] * count, bodies, [0] * count)

    async def start(self) -> None:
        connection = await asyncpg.connect(self.url)
        self.worker = PgQueuer.from_asyncpg_connection(connection)
        meter = self.meter

        @self.worker.entrypoint(ENTRYPOINT)  # type: ignore[untyped-decorator,unused-ignore]
        async def handle(job: Job) -> None:
            meter.one(job.payload or b"")

        self.running = asyncio.create_task(self.worker.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30)))
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.worker.shutdown.set()
        await asyncio.wait([self.running], timeout=10)


if __name__ == "__main__":
    serve(PgQueuerPeer(), uvloop=True)
