"""faststream-outbox as a relay to Kafka: its subscriber under FastStream's Kafka publisher, as its README shows."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from faststream.kafka import KafkaBroker
from faststream.kafka.response import KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers.python.peer import Peer, key, payload, serve

WORKERS = 20
FETCH = 1_000
FLUSH = 250
QUEUE = "bench"


class FastStreamOutboxRelay(Peer):
    version = version("faststream-outbox")
    settings = MappingProxyType(
        {
            "driver": "SQLAlchemy + asyncpg, aiokafka, uvloop",
            "max_workers": WORKERS,
            "fetch_batch_size": FETCH,
            "terminal_flush_batch_size": FLUSH,
            "producer": "idempotent, acks all",
            "order per key": "not promised",
        }
    )

    async def setup(self, fresh: bool) -> None:
        engine = create_async_engine(
            self.url.replace("postgresql://", "postgresql+asyncpg://", 1), pool_size=WORKERS + 4
        )
        metadata = MetaData()
        table = make_outbox_table(metadata)
        self.outbox = OutboxBroker(engine, outbox_table=table, logger=None, log_level=logging.WARNING)
        self.kafka = KafkaBroker(self.options["bootstrap"], enable_idempotence=True, logger=None)
        keys = self.options["keys"]

        @self.kafka.publisher(self.options["topic"])  # type: ignore[untyped-decorator,unused-ignore]
        @self.outbox.subscriber(  # type: ignore[untyped-decorator,unused-ignore]
            QUEUE,
            max_workers=WORKERS,
            fetch_batch_size=FETCH,
            terminal_flush_batch_size=FLUSH,
            min_fetch_interval=0.05,
        )
        async def relay(body: dict[str, Any]) -> Any:
            return KafkaResponse(body, key=key(body["seq"], keys).encode())

        if fresh:
            async with engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
        self.connection = await engine.connect()

    async def hold(self, total: int, keys: int) -> None:
        self.transaction = await self.connection.begin()
        for first in range(0, total, 1_000):
            bodies = [payload(seq) for seq in range(first, min(first + 1_000, total))]
            await self.outbox.publish_batch(*bodies, queue=QUEUE, session=self.connection)
        await self.connection.execute(text("ANALYZE"))

    async def commit(self) -> float:
        await self.transaction.commit()
        return time.time()

    async def start(self) -> None:
        await self.kafka.connect()
        await self.outbox.start()

    async def stop(self) -> None:
        await self.outbox.stop()
        await self.kafka.stop()


if __name__ == "__main__":
    serve(FastStreamOutboxRelay(), uvloop=True)
