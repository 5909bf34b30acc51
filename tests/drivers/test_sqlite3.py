"""sqlite3: what a caller's handle says about its transaction, what errors become, and our own connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relaybox import Outbox
from relaybox.drivers import open_async, open_sync, wrap
from relaybox.drivers.sqlite3 import Sqlite3Connection, aconnect, connect, translate
from relaybox.errors import (
    ConfigError,
    ConnectionLost,
    DuplicateEvent,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
)
from relaybox.event import Event
from relaybox.ids import new_token
from relaybox.op import Query, Statement, run
from relaybox.store.claims import Claim
from relaybox.store.event_rows import CHUNK_ROWS
from relaybox.store.names import Tables
from relaybox.store.outbox.sqlite import SqliteStore
from relaybox.store.outbox.values import ClaimedRow

STORE = SqliteStore()
PAYLOADS = [b"", b"\x00", bytes(range(256)), "é😀".encode(), b"'\"\\%s:now{}", b"x" * 100_000]


def rows(sql: str) -> Statement:
    return Query("test", sql, "rows").bind()


def count(sql: str) -> Statement:
    return Query("test", sql, "count").bind()


@pytest.fixture
def path(tmp_path: Path) -> str:
    database = open_sync(f"sqlite:///{tmp_path}/box.db")
    database.run(STORE.migrate())
    database.close()
    return str(tmp_path / "box.db")


@pytest.fixture
def handle(path: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as raw:
        yield raw


def claim_all(path: str) -> list[ClaimedRow]:
    database = open_sync(f"sqlite:///{path}")
    try:
        return database.run(STORE.claim(Claim(1, new_token(), timedelta(seconds=30)), 10_000, None))
    finally:
        database.close()


class TestTransactionDetection:
    def test_a_default_connection_begins_by_itself(self, handle: sqlite3.Connection) -> None:
        adapter = wrap(handle)
        assert adapter.in_transaction()
        assert not handle.in_transaction

    def test_autocommit_is_no_transaction_until_begin(self, path: str) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
            adapter = wrap(raw)
            assert not adapter.in_transaction()
            raw.execute("BEGIN")
            assert adapter.in_transaction()
            raw.execute("ROLLBACK")
            assert not adapter.in_transaction()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3.Connection.autocommit is new in 3.12")
    @pytest.mark.parametrize("autocommit", [True, False])
    def test_the_autocommit_attribute_decides(self, path: str, autocommit: bool) -> None:
        options: dict[str, Any] = {"autocommit": autocommit}
        with contextlib.closing(sqlite3.connect(path, **options)) as raw:
            assert wrap(raw).in_transaction() is not autocommit

    def test_nobody_can_see_the_commit(self, handle: sqlite3.Connection) -> None:
        adapter = wrap(handle)
        assert not adapter.after_commit(lambda: None)
        assert not adapter.after_rollback(lambda: None)

    def test_a_cursor_stands_for_its_connection(self, handle: sqlite3.Connection) -> None:
        assert wrap(handle.cursor()).raw is handle

    @pytest.mark.parametrize("number", [1, 3])
    def test_what_is_written_lives_and_dies_with_the_callers_transaction(
        self, handle: sqlite3.Connection, path: str, number: int
    ) -> None:
        run(STORE.write([Event("A", 1) for _ in range(number)], None, None), Sqlite3Connection(handle))
        assert handle.in_transaction
        handle.rollback()
        assert claim_all(path) == []
        run(STORE.write([Event("A", 1) for _ in range(number)], None, None), Sqlite3Connection(handle))
        handle.commit()
        assert len(claim_all(path)) == number

    def test_the_callers_row_factory_changes_nothing_and_stays(self, handle: sqlite3.Connection) -> None:
        handle.row_factory = lambda cursor, row: {"row": row}
        event = Event("A", 1)
        adapter = Sqlite3Connection(handle)
        assert run(STORE.write([event], None, None), adapter) == [1]
        assert run(STORE.stored([event.id]), adapter) == {event.id}
        assert handle.execute("SELECT 1").fetchone() == {"row": (1,)}


class TestBytes:
    def test_payloads_are_kept_byte_for_byte_one_by_one_and_in_a_batch(
        self, handle: sqlite3.Connection, path: str
    ) -> None:
        adapter = Sqlite3Connection(handle)
        for payload in PAYLOADS:
            run(STORE.write([Event("A", payload_bytes=payload)], None, None), adapter)
        run(STORE.write([Event("A", payload_bytes=payload) for payload in PAYLOADS], None, None), adapter)
        handle.commit()
        assert [claimed.row[7] for claimed in claim_all(path)] == PAYLOADS * 2

    def test_a_batch_larger_than_one_statement_keeps_its_order(self, handle: sqlite3.Connection) -> None:
        events = [Event("A", n) for n in range(CHUNK_ROWS + 2)]
        seqs = run(STORE.write(events, None, None), Sqlite3Connection(handle))
        assert seqs == list(range(1, len(events) + 1))
        stored = handle.execute("SELECT event_id FROM outbox_event ORDER BY seq").fetchall()
        assert [row[0] for row in stored] == [event.id for event in events]


class TestErrors:
    def test_a_missing_table_or_column_asks_for_migrate(self, handle: sqlite3.Connection) -> None:
        for sql in ("SELECT * FROM absent", "SELECT absent FROM outbox_event"):
            with pytest.raises(SchemaMissing, match="migrate") as caught:
                Sqlite3Connection(handle).execute(rows(sql))
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)

    def test_the_same_id_twice(self, handle: sqlite3.Connection) -> None:
        adapter = Sqlite3Connection(handle)
        run(STORE.write([Event("A", 1, id="secret-id")], None, None), adapter)
        with pytest.raises(DuplicateEvent) as caught:
            run(STORE.write([Event("A", 1, id="secret-id")], None, None), adapter)
        assert "secret" not in str(caught.value)

    def test_another_writer_means_busy(self, handle: sqlite3.Connection, path: str) -> None:
        handle.execute("BEGIN IMMEDIATE")
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(StoreBusy):
            run(STORE.write([Event("A", 1)], None, None), Sqlite3Connection(other))

    def test_a_full_database(self, handle: sqlite3.Connection) -> None:
        (pages,) = handle.execute("PRAGMA page_count").fetchone()
        handle.execute(f"PRAGMA max_page_count = {pages}")
        adapter = Sqlite3Connection(handle)
        with pytest.raises(StoreFull):
            run(STORE.write([Event("A", payload_bytes=b"x" * 100_000)], None, None), adapter)
        adapter.rollback()  # SQLite rolled back by itself; ours must not mind
        assert not handle.in_transaction

    def test_a_closed_connection_says_so(self, handle: sqlite3.Connection) -> None:
        adapter = Sqlite3Connection(handle)
        assert not adapter.broken()
        handle.close()
        assert adapter.broken()
        for action in (adapter.in_transaction, lambda: adapter.execute(rows("SELECT 1"))):
            with pytest.raises(ConnectionLost, match="closed"):
                action()

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConnectionLost, match="folder"):
            connect(str(tmp_path / "no" / "box.db"))

    def test_a_read_only_database(self, path: str) -> None:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
            with pytest.raises(StoreError, match="read-only"):
                run(STORE.write([Event("A", 1)], None, None), Sqlite3Connection(raw))

    def test_anything_else_is_a_store_error(self) -> None:
        assert type(translate(sqlite3.InterfaceError("strange"))) is StoreError

    def test_a_schema_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="schema"):
            SqliteStore(Tables(schema="other"))


class TestOwnConnections:
    def test_settings(self, path: str) -> None:
        connection = connect(path)
        found = [
            connection.execute(rows(f"PRAGMA {name}")).rows[0][0]
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
        connection.close()
        assert found == ["wal", 2, 5000]

    def test_begin_takes_the_write_lock_at_once(self, path: str, handle: sqlite3.Connection) -> None:
        connection = connect(path)
        connection.begin()
        assert connection.in_transaction()
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        connection.rollback()
        assert not connection.in_transaction()
        connection.close()

    def test_counts_are_of_rows_changed(self, path: str) -> None:
        connection = connect(path)
        connection.execute(count("INSERT INTO outbox_event_shard (shard) VALUES (1), (2), (3)"))
        assert connection.execute(count("DELETE FROM outbox_event_shard WHERE shard > 1")).count == 2
        connection.close()

    def test_memory_is_private_to_one_database(self) -> None:
        one, two = open_sync("sqlite://:memory:"), open_sync("sqlite://:memory:")
        one.run(STORE.migrate())
        assert one.run(STORE.write([Event("A", 1)], None, None)) == [1]
        with pytest.raises(SchemaMissing):
            two.run(STORE.write([Event("A", 1)], None, None))
        one.close()
        two.close()

    async def test_a_named_memory_database_is_shared_and_its_locks_are_waited_for(self) -> None:
        url = "sqlite:///file:relaybox-test?mode=memory&cache=shared"
        sync, other = open_sync(url), open_async(url)
        sync.run(STORE.migrate())

        def write_many() -> None:
            for _ in range(50):
                sync.run(STORE.write([Event("A", 1)], None, None))

        async def write_too() -> None:
            for _ in range(50):
                await other.run(STORE.write([Event("A", 1)], None, None))

        await asyncio.gather(asyncio.to_thread(write_many), write_too())
        assert (await other.run(STORE.status(None))).due == 100
        await other.close()
        sync.close()


class TestAsync:
    async def test_a_cancelled_begin_holds_no_lock(self, path: str) -> None:
        """The thread cannot be stopped: whatever it still did must be undone."""
        connection = await aconnect(path)
        gate = threading.Event()
        before = asyncio.ensure_future(connection._call(gate.wait))
        begin = asyncio.ensure_future(connection.begin())
        await asyncio.sleep(0)
        begin.cancel()
        gate.set()
        await before
        with pytest.raises(asyncio.CancelledError):
            await begin
        assert not connection.in_transaction()
        await connection.close()

    async def test_a_cancelled_statement_ends_before_the_next(self, path: str) -> None:
        connection = await aconnect(path)
        gate = threading.Event()
        before = asyncio.ensure_future(connection._call(gate.wait))
        write = asyncio.ensure_future(connection.execute(count("INSERT INTO outbox_event_shard (shard) VALUES (7)")))
        await asyncio.sleep(0)
        write.cancel()
        gate.set()
        await before
        with pytest.raises(asyncio.CancelledError):
            await write
        assert (await connection.execute(rows("SELECT count(*) FROM outbox_event_shard"))).rows == [(1,)]
        await connection.close()

    async def test_errors_and_closing(self, path: str) -> None:
        connection = await aconnect(path)
        with pytest.raises(SchemaMissing):
            await connection.execute(rows("SELECT * FROM absent"))
        assert not connection.broken()
        await connection.close()
        await connection.close()
        assert connection.broken()
        with pytest.raises(ConnectionLost):
            await connection.execute(rows("SELECT 1"))

    async def test_a_memory_database_survives_a_failed_operation(self) -> None:
        database = open_async("sqlite://:memory:")
        await database.run(STORE.migrate())
        event = Event("A", 1)
        await database.run(STORE.write([event], None, None))
        with pytest.raises(DuplicateEvent):
            await database.run(STORE.write([event], None, None))
        assert await database.run(STORE.stored([event.id])) == {event.id}
        await database.close()

    async def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConnectionLost):
            await aconnect(str(tmp_path / "no" / "box.db"))


# -- files -----------------------------------------------------------------------------------------


def modes(file: Path) -> dict[str, int]:
    return {path.name.removeprefix(file.name): path.stat().st_mode & 0o777 for path in file.parent.iterdir()}


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///file:{}?mode=rwc"])
def test_a_file_that_we_make_is_for_its_owner_alone(tmp_path: Path, url: str) -> None:
    file = tmp_path / "a shop.db"
    before = os.umask(0o022)
    try:
        outbox = Outbox(url.format(file))
        outbox.migrate()
        with outbox.transaction() as tx:
            outbox.write(tx, Event("order.paid", {}))
            assert modes(file) == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
        outbox.close()
    finally:
        os.umask(before)
    assert set(modes(file).values()) == {0o600}


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    file.touch()
    file.chmod(0o640)
    connection = connect(str(file))
    connection.raw.execute("CREATE TABLE something (a)")
    assert modes(file) == {"": 0o640, "-wal": 0o640, "-shm": 0o640}
    connection.close()


def test_a_uri_that_may_not_make_a_file_makes_none(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        connect(f"file:{tmp_path}/shop.db?mode=rw")
    assert modes(tmp_path / "shop.db") == {}
