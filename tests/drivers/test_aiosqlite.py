"""aiosqlite: callers' connections."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import aiosqlite
import pytest

from relaybox.drivers import open_sync, wrap
from relaybox.drivers.aiosqlite import AiosqliteConnection
from relaybox.errors import ConnectionLost, DuplicateEvent, SchemaMissing, StoreBusy
from relaybox.event import Event
from relaybox.op import Query, Statement, arun
from relaybox.store.outbox.sqlite import SqliteStore

STORE = SqliteStore()
PAYLOADS = [b"", b"\x00", bytes(range(256)), "é😀".encode(), b"'\"\\%s:now{}"]


def rows(sql: str) -> Statement:
    return Query("test", sql, "rows").bind()


@pytest.fixture
def path(tmp_path: Path) -> str:
    database = open_sync(f"sqlite:///{tmp_path}/box.db")
    database.run(STORE.migrate())
    database.close()
    return str(tmp_path / "box.db")


@pytest.fixture
async def handle(path: str) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(path, timeout=0) as raw:
        yield raw


async def test_a_default_connection_begins_by_itself(handle: aiosqlite.Connection) -> None:
    adapter = wrap(handle)
    assert isinstance(adapter, AiosqliteConnection)
    assert adapter.in_transaction()


async def test_autocommit_is_no_transaction_until_begin(path: str) -> None:
    async with aiosqlite.connect(path, isolation_level=None) as raw:
        adapter = wrap(raw)
        assert not adapter.in_transaction()
        await raw.execute("BEGIN")
        assert adapter.in_transaction()
        await raw.rollback()
        assert not adapter.in_transaction()


async def test_a_cursor_stands_for_its_connection(handle: aiosqlite.Connection) -> None:
    assert wrap(await handle.cursor()).raw is handle


async def test_what_is_written_lives_and_dies_with_the_callers_transaction(handle: aiosqlite.Connection) -> None:
    adapter = AiosqliteConnection(handle)
    kept = [Event("A", payload_bytes=payload) for payload in PAYLOADS]
    await arun(STORE.write([Event("A", 1)], None, None), adapter)
    await handle.rollback()
    await arun(STORE.write(kept[:1], None, None), adapter)
    await arun(STORE.write(kept[1:], None, None), adapter)
    await handle.commit()
    stored = await handle.execute_fetchall("SELECT event_id, payload FROM outbox_event ORDER BY seq")
    assert [tuple(row) for row in stored] == [(event.id, event.body) for event in kept]


async def test_the_callers_row_factory_changes_nothing_and_stays(handle: aiosqlite.Connection) -> None:
    handle.row_factory = sqlite3.Row
    event = Event("A", 1)
    adapter = AiosqliteConnection(handle)
    await arun(STORE.write([event], None, None), adapter)
    assert await arun(STORE.stored([event.id]), adapter) == {event.id}
    assert handle.row_factory is sqlite3.Row


async def test_errors_are_ours(handle: aiosqlite.Connection, path: str) -> None:
    adapter = AiosqliteConnection(handle)
    with pytest.raises(SchemaMissing):
        await adapter.execute(rows("SELECT * FROM absent"))
    await arun(STORE.write([Event("A", 1, id="twice")], None, None), adapter)
    with pytest.raises(DuplicateEvent):
        await arun(STORE.write([Event("A", 1, id="twice")], None, None), adapter)
    async with aiosqlite.connect(path, timeout=0) as other:
        with pytest.raises(StoreBusy):
            await arun(STORE.write([Event("A", 1)], None, None), AiosqliteConnection(other))


async def test_a_closed_connection_says_so(path: str) -> None:
    raw = await aiosqlite.connect(path)
    adapter = AiosqliteConnection(raw)
    await raw.close()
    assert adapter.broken()
    with pytest.raises(ConnectionLost, match="closed"):
        adapter.in_transaction()
    with pytest.raises(ConnectionLost, match="closed"):
        await adapter.execute(rows("SELECT 1"))
