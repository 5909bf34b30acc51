"""The inbox sink on each engine: private servers with a password, and readers by another client than the sink's."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import psycopg
import pymysql

from relaybox import Inbox
from relaybox.brokers.inbox import InboxSink
from relaybox.testing.servers import MariaDBServer, PostgresServer
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

RELAY = "relay"
COLUMNS = "event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers"


class GuardedPostgres(PostgresServer):
    """The account `relay` needs a password; our own does not."""

    def _prepare(self) -> None:
        super()._prepare()
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {RELAY} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def start(self) -> GuardedPostgres:
        super().start()
        with psycopg.connect(self.url(), autocommit=True) as admin:
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (RELAY,)).fetchone():
                admin.execute(f"CREATE ROLE {RELAY} LOGIN PASSWORD '{SECRET}'")  # type: ignore[call-overload]
        return self


class DatabaseHarness(SinkHarness):
    """`url` is for looking and migrating, `relay_url` for the sink."""

    url: str
    relay_url: str

    def sink(self, **options: Any) -> InboxSink:
        return InboxSink(options.pop("target", self.relay_url), **options)

    async def destination(self) -> str:
        name = f"inbox_{uuid.uuid4().hex[:12]}"
        await asyncio.to_thread(self.migrate, name)
        return name

    def migrate(self, name: str) -> None:
        with Inbox(self.relay_url, name) as inbox:
            inbox.migrate()

    async def missing(self) -> str:
        return f"nowhere_{uuid.uuid4().hex[:12]}"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        """An acknowledged message is committed, so there is nothing to wait for."""
        found = await self.query(f"SELECT {COLUMNS} FROM {destination} ORDER BY seq")
        return [received(row) for row in found]

    async def query(self, text: str) -> Sequence[tuple[Any, ...]]:
        raise NotImplementedError


class PostgresHarness(DatabaseHarness):
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.create_database()
        self.relay_url = self.url.replace("relaybox@", f"{RELAY}:{SECRET}@")
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(f"GRANT ALL ON SCHEMA public TO {RELAY}")  # type: ignore[call-overload]

    async def query(self, text: str) -> Sequence[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(text)  # type: ignore[call-overload]
            return await cursor.fetchall() if cursor.description else []

    async def outage(self) -> None:
        await asyncio.to_thread(self.server.stop, "immediate")

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_credentials(self) -> InboxSink:
        return InboxSink(self.relay_url.replace(SECRET, f"wrong-{SECRET}"))


class MariaDBHarness(DatabaseHarness):
    def __init__(self, server: MariaDBServer) -> None:
        self.server = server
        self.url = server.create_database()
        self.relay_url = self.url.replace("relaybox:relaybox@", f"{RELAY}:{SECRET}@")
        server._execute(f"CREATE USER IF NOT EXISTS '{RELAY}'@'127.0.0.1' IDENTIFIED BY '{SECRET}'")
        server._execute(f"GRANT ALL ON `{urlsplit(self.url).path[1:]}`.* TO '{RELAY}'@'127.0.0.1'")

    async def query(self, text: str) -> Sequence[tuple[Any, ...]]:
        return await asyncio.to_thread(self._query, text)

    def _query(self, text: str) -> Sequence[tuple[Any, ...]]:
        to = urlsplit(self.url)
        connection = pymysql.connect(
            host=to.hostname,
            port=to.port,
            user=to.username,
            password=to.password,
            database=to.path[1:],
            autocommit=True,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())
        finally:
            connection.close()

    async def outage(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_credentials(self) -> InboxSink:
        return InboxSink(self.relay_url.replace(SECRET, f"wrong-{SECRET}"))


class SqliteHarness(DatabaseHarness):
    """An embedded database is away while somebody else keeps it locked."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.url = self.relay_url = f"sqlite:///{file}"
        self._hog: sqlite3.Connection | None = None

    async def query(self, text: str) -> Sequence[tuple[Any, ...]]:
        async with aiosqlite.connect(self.file) as connection:
            return [tuple(row) for row in await connection.execute_fetchall(text)]

    async def outage(self) -> None:
        self._hog = sqlite3.connect(self.file, isolation_level=None)
        self._hog.execute("BEGIN EXCLUSIVE")

    async def recovery(self) -> None:
        assert self._hog is not None
        self._hog.close()


def received(row: tuple[Any, ...]) -> Received:
    event_id, event_type, aggregate_type, key, tenant, content_type, payload, headers = row
    columns = {
        "event_id": event_id,
        "event_type": event_type,
        "aggregate_type": aggregate_type or "__GLOBAL__",
        "aggregate_id": key,
        "tenant": tenant,
    }
    known = {name: value for name, value in columns.items() if value is not None}
    attributes = {**known, **json.loads(headers or "{}")}
    return Received(event_id, key, bytes(payload), content_type or "application/json", attributes)
