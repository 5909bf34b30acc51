"""relaybox's inbox as a measured system: over asyncpg, or over psycopg in a program without asyncio.

The bare INSERT it is measured against goes into one table with the columns of a message, by the same driver;
`inbox_overhead` is measured against relaybox's own statement by hand.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg

import relaybox
from benchmarks.peers.python.peer import PREFETCH, Peer, payload_bytes, serve
from relaybox import Event, Settings
from relaybox.ids import new_id
from relaybox.inbox import AsyncInbox, AsyncProcessor, Inbox, Processor
from relaybox.op import ParamStyle, Statement
from relaybox.store.inbox import InboxStore

TABLE = """CREATE TABLE bare (
  event_id varchar(255) COLLATE "C" PRIMARY KEY, event_type varchar(255) NOT NULL, source varchar(255),
  aggregate_type varchar(255), aggregate_id varchar(255), tenant_id varchar(255), content_type varchar(255),
  payload bytea NOT NULL, headers text, occurred_at timestamptz NOT NULL, received_at timestamptz NOT NULL)"""
TYPES = ("text", "text", "text", "text", "text", "text", "text", "bytea", "text", "timestamptz")
ONE = ", ".join(f"${n}" for n in range(1, len(TYPES) + 1))
MANY = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(TYPES, 1))
PLACE = re.compile(r"\$\d+")
OWN = ("inbox_accept", "inbox_overhead")  # each message in a transaction of its own
CONFLICT = "ON CONFLICT DO NOTHING"
SETTINGS = Settings(worker_count=PREFETCH, batch_size=500)


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
        self.settings = {"driver": "asyncpg, uvloop", "worker_count": SETTINGS.worker_count, "handler": "async"}

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.inbox = AsyncInbox(self.url)
        self.store = self.inbox.store
        self.processor: AsyncProcessor | None = None
        if fresh:
            await self.inbox.migrate()
            await self.connection.execute(TABLE)

    async def write_block(self, first: int, count: int, accept: bool) -> None:
        for batch in self.batches:
            if self.workload not in OWN:
                async with self.connection.transaction():
                    await (self._accept(self.connection, batch) if accept else self._bare(batch))
            elif accept:
                await self.inbox.accept(None, batch[0], source="shop")
            else:
                await self._bare(batch)

    async def _accept(self, handle: Any, batch: Sequence[Event]) -> None:
        await self.inbox.accept_all(handle, batch, source="shop")

    async def _bare(self, batch: Sequence[Any]) -> None:
        if self.workload == "inbox_overhead":
            text, values = batch[0]
            await self.connection.execute(text, *values)
        elif len(batch) == 1:
            await self.connection.execute(f"INSERT INTO bare VALUES ({ONE}, clock_timestamp()) {CONFLICT}", *batch[0])
        else:
            text = f"INSERT INTO bare SELECT *, clock_timestamp() FROM unnest({MANY}) {CONFLICT}"
            await self.connection.execute(text, *map(list, zip(*batch, strict=True)))

    async def write_batch(self, first: int, count: int) -> None:
        """Messages arrive, `PREFETCH` at a time as from a broker, each accepted in a transaction of its own."""
        seqs = iter(range(first, first + count))

        async def consume() -> None:
            for seq in seqs:
                await self.inbox.accept(None, event(seq), source="shop")

        await asyncio.gather(*(consume() for _ in range(PREFETCH)))

    async def start(self) -> None:
        meter = self.meter

        async def handle(message: Event, _: Any) -> None:
            meter.one(message.body)

        self.processor = self.inbox.processor(handle, settings=SETTINGS)
        await self.processor.__aenter__()

    async def stop(self) -> None:
        if self.processor is not None:
            await self.processor.stop()


class PsycopgInbox(InboxPeer):
    """The synchronous twin: handlers run in threads."""

    style = "format"

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"driver": "psycopg", "worker_count": SETTINGS.worker_count, "handler": "a plain function"}

    async def setup(self, fresh: bool) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=3)
        self.inbox = Inbox(self.url)
        self.store = self.inbox.store
        self.processor: Processor | None = None
        if fresh:
            self.inbox.migrate()
            self.connection.execute(TABLE)

    async def write_block(self, first: int, count: int, accept: bool) -> None:
        for batch in self.batches:
            if self.workload not in OWN:
                with self.connection.transaction():
                    if accept:
                        self.inbox.accept_all(self.connection, batch, source="shop")
                    else:
                        self._bare(batch)
            elif accept:
                self.inbox.accept(None, batch[0], source="shop")
            else:
                self._bare(batch)

    def _bare(self, batch: Sequence[Any]) -> None:
        if self.workload == "inbox_overhead":
            self.connection.execute(*batch[0])
        elif len(batch) == 1:
            self._execute(f"INSERT INTO bare VALUES ({ONE}, clock_timestamp()) {CONFLICT}", batch[0])
        else:
            text = f"INSERT INTO bare SELECT *, clock_timestamp() FROM unnest({MANY}) {CONFLICT}"
            self._execute(text, [list(column) for column in zip(*batch, strict=True)])

    def _execute(self, text: str, values: Sequence[Any]) -> None:
        self.connection.execute(PLACE.sub("%s", text), values)

    async def write_batch(self, first: int, count: int) -> None:
        seqs = iter(range(first, first + count))

        def consume() -> None:
            for seq in seqs:
                self.inbox.accept(None, event(seq), source="shop")

        await asyncio.gather(*(asyncio.to_thread(consume) for _ in range(PREFETCH)))

    async def start(self) -> None:
        meter = self.meter

        def handle(message: Event, _: Any) -> None:
            meter.one(message.body)

        self.processor = self.inbox.processor(handle, settings=SETTINGS)
        self.processor.__enter__()

    async def stop(self) -> None:
        if self.processor is not None:
            await asyncio.to_thread(self.processor.stop)


if __name__ == "__main__":
    if sys.argv[1] == "asyncpg":
        serve(AsyncpgInbox(), uvloop=True)
    else:
        serve(PsycopgInbox())
