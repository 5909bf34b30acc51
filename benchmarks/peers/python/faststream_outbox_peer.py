"""faststream-outbox over SQLAlchemy and asyncpg."""

from __future__ import annotations

import logging
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload, serve

WORKERS = 4
FETCH = 1_000
FLUSH = 250
QUEUE = "bench"


class FastStreamOutboxPeer(Peer):
    """OutboxBroker.publish on the caller's AsyncConnection; one subscriber."""

    version = version("faststream-outbox")
    settings = MappingProxyType(
        {
            "driver": "SQLAlchemy + asyncpg, uvloop",
            "max_workers": WORKERS,
            "fetch_batch_size": FETCH,
            "terminal_flush_batch_size": FLUSH,
            "min_fetch_interval": 0.05,
            "batched write": "publish_batch",
            "payload": "decoded JSON",
        }
    )

    async def setup(self, fresh: bool) -> None:
        url = self.url.replace("postgresql://", "postgresql+asyncpg://", 1)
        self.engine = create_async_engine(url, pool_size=WORKERS + 4)
        metadata = MetaData()
        table = make_outbox_table(metadata)
        self.broker = OutboxBroker(self.engine, outbox_table=table, logger=None, log_level=logging.WARNING)
        meter = self.meter

        @self.broker.subscriber(  # type: ignore[untyped-decorator,unused-ignore]
            QUEUE,
            max_workers=WORKERS,
            fetch_batch_size=FETCH,
            terminal_flush_batch_size=FLUSH,
            min_fetch_interval=0.05,
        )
        async def handle(body: dict[str, Any]) -> None:
            meter.one(body)

        if fresh:
            async with self.engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
                await connection.execute(text(BUSINESS_TABLE))
        self.connection = await self.engine.connect()
        self.insert = text("INSERT INTO business (note) VALUES (:note)")

    async def write_block(self, first: int, count: int, event: bool) -> None:
        connection = self.connection
        for seq in range(first, first + count):
            async with connection.begin():
                await connection.execute(self.insert, {"note": BUSINESS_NOTE})
                if event:
                    await self.broker.publish(payload(seq), queue=QUEUE, session=connection)

    async def write_batch(self, first: int, count: int) -> None:
        bodies = [payload(seq) for seq in range(first, first + count)]
        async with self.connection.begin():
            await self.broker.publish_batch(*bodies, queue=QUEUE, session=self.connection)

    async def start(self) -> None:
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()


if __name__ == "__main__":
    serve(FastStreamOutboxPeer(), uvloop=True)
