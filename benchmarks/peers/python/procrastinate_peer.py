"""procrastinate over psycopg."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import procrastinate
import psycopg

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload, serve

CONCURRENCY = 5


class ProcrastinatePeer(Peer):
    """Task.configure(connection=...).defer_async in the caller's transaction; App.run_worker_async."""

    version = version("procrastinate")
    settings = MappingProxyType(
        {
            "driver": "psycopg 3 async, uvloop",
            "concurrency": CONCURRENCY,
            "delete_jobs": "always",
            "listen_notify": True,
            "batched write": "batch_defer_async",
            "payload": "decoded JSON arguments",
        }
    )

    async def setup(self, fresh: bool) -> None:
        logging.disable(logging.WARNING)
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=4, max_size=CONCURRENCY + 5)
        self.app = procrastinate.App(connector=connector)
        meter = self.meter

        @self.app.task(name="bench")  # type: ignore[untyped-decorator,unused-ignore]
        async def bench(**body: Any) -> None:
            meter.one(body)

        self.task = bench
        await self.app.open_async()
        if fresh:
            await self.app.schema_manager.apply_schema_async()
        self.connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        if fresh:
            await self.connection.execute(BUSINESS_TABLE)

    async def write_block(self, first: int, count: int, event: bool) -> None:
        connection = self.connection
        for seq in range(first, first + count):
            async with connection.transaction():
                await connection.execute("INSERT INTO business (note) VALUES (%s)", (BUSINESS_NOTE,))
                if event:
                    await self.task.configure(connection=connection).defer_async(**payload(seq))

    async def write_batch(self, first: int, count: int) -> None:
        bodies = [payload(seq) for seq in range(first, first + count)]
        async with self.connection.transaction():
            await self.task.configure(connection=self.connection).batch_defer_async(*bodies)

    async def start(self) -> None:
        self.running = asyncio.create_task(
            self.app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False)
        )
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running], timeout=10)


if __name__ == "__main__":
    serve(ProcrastinatePeer(), uvloop=True)
