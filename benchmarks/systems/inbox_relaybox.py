"""relaybox's inbox as a measured system: over asyncpg, or over psycopg in a program without asyncio.

The bare INSERT it is measured against goes into one table with the columns of a message, by the same driver, on a
connection that is at hand; of a crowd of callers each has one. `inbox_accept_pooled` is measured against the same
through the driver's own pool, `inbox_overhead` against relaybox's own statement by hand.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
from psycopg_pool import ConnectionPool

import relaybox
from benchmarks.peers.python.peer import PREFETCH, Peer, payload_bytes, serve
from relaybox import AsyncInbox, Event, Inbox, Settings
from relaybox.ids import new_id
from relaybox.op import ParamStyle, Statement
from relaybox.store.inbox import InboxStore
from relaybox.types import AsyncService, DeliverySettings, Service

TABLE = """CREATE TABLE bare (
  event_id varchar(255) COLLATE "C" PRIMARY KEY, event_type varchar(255) NOT NULL, source varchar(255),
  aggregate_type varchar(255), aggregate_id varchar(255), tenant_id varchar(255), content_type varchar(255),
  payload bytea NOT NULL, headers text, occurred_at timestamptz NOT NULL, received_at timestamptz NOT NULL)"""
TYPES = ("text", "text", "text", "text", "text", "text", "text", "bytea", "text", "timestamptz")
ONE = ", ".join(f"${n}" for n in range(1, len(TYPES) + 1))
MANY = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(TYPES, 1))
PLACE = re.compile(r"\$\d+")
CROWD = "inbox_accept_crowd"
POOLED = "inbox_accept_pooled"
OWN = ("inbox_accept", "inbox_overhead", CROWD, POOLED)  # each message in a transaction of its own
AT_ONCE = 16  # callers in a crowd
CONFLICT = "ON CONFLICT DO NOTHING"
SETTINGS = Settings(delivery=DeliverySettings(workers=PREFETCH, batch=500))


def row(seq: int) -> tuple[Any, ...]:
    """What a consumer has of a message, with a fresh id."""
    at = datetime.now(UTC)
    return new_id(), "order.placed", "shop", None, f"order-{seq % 5000}", None, None, payload_bytes(seq), None, at


def event(seq: int) -> Event:
    return Event("order.placed", payload_json=payload_bytes(seq).decode(), key=f"order-{seq % 5000}")


class InboxPeer(Peer):
    """Messages are at hand as a consumer has them: decoded."""

    version = relaybox.__version__
    batches: Sequence[Sequence[Any]] = ()

    store: InboxStore
    style: ParamStyle

    @property
    def at_once(self) -> int:
        return AT_ONCE if self.workload == CROWD else 1

    def prepare(self, first: int, count: int, accept: bool) -> None:
        size, by_hand = self.options["batch"], self.by_hand if self.workload == "inbox_overhead" else row
        make = event if accept else by_hand
        self.batches = [[make(seq) for seq in range(n * size, (n + 1) * size)] for n in range(first, first + count)]

    def by_hand(self, seq: int) -> tuple[str, Sequence[Any]]:
        """What accepting an event would execute."""
        statement = next(self.store.accept_one(event(seq), "shop", None))
        assert isinstance(statement, Statement)
        return statement.positional(self.style)


class AsyncpgInbox(InboxPeer):
    style = "dollar"

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"driver": "asyncpg, uvloop", "workers": SETTINGS.delivery.workers, "handler": "async"}

    async def setup(self, fresh: bool) -> None:
        self.connections: list[Any] = [await asyncpg.connect(self.url) for _ in range(self.at_once)]
        self.connection = self.connections[0]
        if self.workload == POOLED:
            self.connections = [await asyncpg.create_pool(self.url, min_size=1, max_size=4)]
        self.inbox = AsyncInbox(self.url, settings=SETTINGS)
        self.store = self.inbox.store
        self.processing: AsyncService | None = None
        if fresh:
            await self.inbox.migrate()
            await self.connection.execute(TABLE)

    async def write_block(self, first: int, count: int, accept: bool) -> None:
        batches = iter(self.batches)
        await asyncio.gather(*(self._call(connection, batches, accept) for connection in self.connections))

    async def _call(self, connection: Any, batches: Iterator[Sequence[Any]], accept: bool) -> None:
        for batch in batches:
            if self.workload not in OWN:
                async with connection.transaction():
                    await (self._accept(connection, batch) if accept else self._bare(connection, batch))
            elif accept:
                await self.inbox.accept(None, batch[0], sender="shop")
            else:
                await self._bare(connection, batch)

    async def _accept(self, handle: Any, batch: Sequence[Event]) -> None:
        if len(batch) == 1:
            await self.inbox.accept(handle, batch[0], sender="shop")
        else:
            await self.inbox.accept_all(handle, batch, sender="shop")

    async def _bare(self, connection: Any, batch: Sequence[Any]) -> None:
        if self.workload == "inbox_overhead":
            text, values = batch[0]
            await connection.execute(text, *values)
        elif len(batch) == 1:
            await connection.execute(f"INSERT INTO bare VALUES ({ONE}, clock_timestamp()) {CONFLICT}", *batch[0])
        else:
            text = f"INSERT INTO bare SELECT *, clock_timestamp() FROM unnest({MANY}) {CONFLICT}"
            await connection.execute(text, *map(list, zip(*batch, strict=True)))

    async def write_batch(self, first: int, count: int) -> None:
        """Messages arrive, `PREFETCH` at a time as from a broker, each accepted in a transaction of its own."""
        seqs = iter(range(first, first + count))

        async def consume() -> None:
            for seq in seqs:
                await self.inbox.accept(None, event(seq), sender="shop")

        await asyncio.gather(*(consume() for _ in range(PREFETCH)))

    async def start(self) -> None:
        meter = self.meter

        async def handle(message: Event, _: Any) -> None:
            meter.one(message.body)

        self.processing = await self.inbox.process(handle).start()

    async def stop(self) -> None:
        if self.processing is not None:
            await self.processing.stop()


class PsycopgInbox(InboxPeer):
    """The synchronous twin: handlers run in threads."""

    style = "format"

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"driver": "psycopg", "workers": SETTINGS.delivery.workers, "handler": "a plain function"}
        self.threads = ThreadPoolExecutor(AT_ONCE)

    async def setup(self, fresh: bool) -> None:
        self.connections = [
            psycopg.connect(self.url, autocommit=True, prepare_threshold=3) for _ in range(self.at_once)
        ]
        self.connection = self.connections[0]
        pooled = {"autocommit": True, "prepare_threshold": 3}
        self.pool = ConnectionPool(self.url, min_size=1, max_size=4, kwargs=pooled, open=self.workload == POOLED)
        self.inbox = Inbox(self.url, settings=SETTINGS)
        self.store = self.inbox.store
        self.processing: Service | None = None
        if fresh:
            self.inbox.migrate()
            self.connection.execute(TABLE)

    async def write_block(self, first: int, count: int, accept: bool) -> None:
        batches = iter(self.batches)
        if self.workload != CROWD:
            self._call(self.connection, batches, accept)
            return
        loop, call = asyncio.get_running_loop(), self._call
        await asyncio.gather(
            *(loop.run_in_executor(self.threads, call, connection, batches, accept) for connection in self.connections)
        )

    def _call(self, connection: Any, batches: Iterator[Sequence[Any]], accept: bool) -> None:
        for batch in batches:
            if self.workload not in OWN:
                with connection.transaction():
                    if not accept:
                        self._bare(connection, batch)
                    elif len(batch) == 1:
                        self.inbox.accept(connection, batch[0], sender="shop")
                    else:
                        self.inbox.accept_all(connection, batch, sender="shop")
            elif accept:
                self.inbox.accept(None, batch[0], sender="shop")
            elif self.workload == POOLED:
                with self.pool.connection() as borrowed:
                    self._bare(borrowed, batch)
            else:
                self._bare(connection, batch)

    def _bare(self, connection: Any, batch: Sequence[Any]) -> None:
        if self.workload == "inbox_overhead":
            connection.execute(*batch[0])
        elif len(batch) == 1:
            text = f"INSERT INTO bare VALUES ({ONE}, clock_timestamp()) {CONFLICT}"
            connection.execute(PLACE.sub("%s", text), batch[0])
        else:
            text = f"INSERT INTO bare SELECT *, clock_timestamp() FROM unnest({MANY}) {CONFLICT}"
            connection.execute(PLACE.sub("%s", text), [list(column) for column in zip(*batch, strict=True)])

    async def write_batch(self, first: int, count: int) -> None:
        seqs = iter(range(first, first + count))

        def consume() -> None:
            for seq in seqs:
                self.inbox.accept(None, event(seq), sender="shop")

        await asyncio.gather(*(asyncio.to_thread(consume) for _ in range(PREFETCH)))

    async def start(self) -> None:
        meter = self.meter

        def handle(message: Event, _: Any) -> None:
            meter.one(message.body)

        self.processing = self.inbox.process(handle).start()

    async def stop(self) -> None:
        if self.processing is not None:
            await asyncio.to_thread(self.processing.stop)


if __name__ == "__main__":
    if sys.argv[1] == "asyncpg":
        serve(AsyncpgInbox(), uvloop=True)
    else:
        serve(PsycopgInbox())
