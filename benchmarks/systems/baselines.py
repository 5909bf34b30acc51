"""What bare SQL costs with the same driver: `bare`, `bare+insert`, `bare COPY binary`.

The tables and the statement are relaybox's own, taken from its migration and its SQL file: what is compared
is the library's cost, not another schema.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import asyncpg

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve
from relaybox import AsyncOutbox
from relaybox.ids import key_hash, new_id
from relaybox.store.outbox.postgres import PostgresStore

STORE = PostgresStore()
EVENT_INSERT, INSERT_NAMES = STORE.sql["outbox.write.one"].compiled("dollar")
COPY_COLUMNS = ("event_id", "event_type", "aggregate_id", "payload", "occurred_at")


def insert_values(seq: int) -> list[Any]:
    """The values of relaybox's single-event INSERT, by hand."""
    key = f"order-{seq % 5000}"
    values = {
        "event_id": new_id(),
        "event_type": "order.placed",
        "aggregate_id": key,
        "payload": payload_bytes(seq),
        "occurred_at": datetime.now(UTC),
        "key_hash": key_hash(key),
    }
    return [values.get(name) for name in INSERT_NAMES]


def copy_row(seq: int) -> tuple[Any, ...]:
    """The same event as a row of the event table."""
    return new_id(), "order.placed", f"order-{seq % 5000}", payload_bytes(seq), datetime.now(UTC)


class Baseline(Peer):
    """The business row, alone or with the event row written by hand."""

    version = f"asyncpg {asyncpg.__version__}"

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.has_bare = kind == "insert"
        statements = {"insert": "relaybox's own INSERT, by hand", "copy": f"COPY ({', '.join(COPY_COLUMNS)})"}
        self.settings = {"driver": "asyncpg, uvloop", "statement": statements.get(kind, "the business row alone")}

    async def setup(self, fresh: bool) -> None:
        self.connection = await asyncpg.connect(self.url)
        if fresh:
            await self.connection.execute(BUSINESS_TABLE)
            box = AsyncOutbox(self.url)
            await box.migrate()
            await box.close()

    async def write_block(self, first: int, count: int, event: bool) -> None:
        connection, insert = self.connection, event and self.kind == "insert"
        for seq in range(first, first + count):
            async with connection.transaction():
                await connection.execute("INSERT INTO business (note) VALUES ($1)", BUSINESS_NOTE)
                if insert:
                    await connection.fetch(EVENT_INSERT, *insert_values(seq))

    async def write_batch(self, first: int, count: int) -> None:
        rows = [copy_row(seq) for seq in range(first, first + count)]
        async with self.connection.transaction():
            await self.connection.copy_records_to_table("outbox_event", columns=COPY_COLUMNS, records=rows)


if __name__ == "__main__":
    serve(Baseline(sys.argv[1]), uvloop=True)
