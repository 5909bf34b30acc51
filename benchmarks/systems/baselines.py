"""What bare SQL costs with the same driver: `bare`, `bare+insert`, `bare COPY binary`.

EVENT_TABLE, EVENT_INSERT and EVENT_COLUMNS are a STAND-IN until relaybox's own statement is put here.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

import psycopg

from benchmarks.peers.python.peer import BUSINESS_NOTE, BUSINESS_TABLE, Peer, payload_bytes, serve

STAND_IN = True
EVENT_TABLE = (
    "CREATE TABLE event (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL,"
    " kind text NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now())"
)
EVENT_INSERT = "INSERT INTO event (id, kind, payload) VALUES (%s, %s, %s)"
EVENT_COLUMNS = {"id": "uuid", "kind": "text", "payload": "bytea"}


def event_row(seq: int) -> tuple[Any, ...]:
    """The values of one event, in the order of EVENT_COLUMNS."""
    return uuid.uuid4(), "order.placed", payload_bytes(seq)


class Baseline(Peer):
    """The business row, alone or with the event row written by hand."""

    version = f"psycopg {psycopg.__version__}"

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.has_bare = kind == "insert"
        self.settings = {"driver": "psycopg 3", "table": "stand-in" if STAND_IN else "relaybox's own"}
        if kind == "insert":
            self.settings["statement"] = EVENT_INSERT
        if kind == "copy":
            self.settings["statement"] = f"COPY event ({', '.join(EVENT_COLUMNS)}) FROM STDIN (FORMAT BINARY)"

    async def setup(self, fresh: bool) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)
        if fresh:
            self.connection.execute(BUSINESS_TABLE)
            self.connection.execute(EVENT_TABLE)

    async def write_block(self, first: int, count: int, event: bool) -> None:
        connection, insert = self.connection, event and self.kind == "insert"
        for seq in range(first, first + count):
            with connection.transaction():
                connection.execute("INSERT INTO business (note) VALUES (%s)", (BUSINESS_NOTE,))
                if insert:
                    connection.execute(EVENT_INSERT, event_row(seq))

    async def write_batch(self, first: int, count: int) -> None:
        rows = [event_row(seq) for seq in range(first, first + count)]
        with (
            self.connection.transaction(),
            self.connection.cursor() as cursor,
            cursor.copy(self.settings["statement"]) as copy,
        ):
            copy.set_types(list(EVENT_COLUMNS.values()))
            for row in rows:
                copy.write_row(row)


if __name__ == "__main__":
    serve(Baseline(sys.argv[1]))
