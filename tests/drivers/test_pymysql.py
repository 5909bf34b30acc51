"""PyMySQL: what a caller's handle says about its transaction, what errors become, and our own connections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor

from relaybox.drivers import Database, open_sync, wrap
from relaybox.drivers.mysql_errors import translate_error, translate_exception
from relaybox.drivers.mysql_session import options
from relaybox.drivers.pymysql import PymysqlConnection, connect
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
from relaybox.op import Op, Query, Result, Statement, run
from relaybox.store.claims import Claim
from relaybox.store.event_rows import CHUNK_BYTES
from relaybox.store.outbox.mysql import MysqlStore
from relaybox.testing.servers import MariaDBServer, require

STORE = MysqlStore()
ROWS_ONLY = "TRANSACTION ISOLATION LEVEL READ COMMITTED"  # locks no gaps: what is new may be inserted
LEASE = timedelta(seconds=30)
PAYLOADS = [b"", b"\x00", bytes(range(256)), "é😀".encode(), b"'\"\\%s:now{}", b"x" * 100_000]

Connect = Callable[..., Any]


def rows(sql: str) -> Statement:
    return Query("test", sql, "rows").bind()


@pytest.fixture(scope="module")
def server() -> MariaDBServer:
    return require("mariadb", durable=False)


@pytest.fixture
def url(server: MariaDBServer) -> Iterator[str]:
    url = server.create_database()
    database = open_sync(url)
    database.run(STORE.migrate())
    database.close()
    yield url
    server.drop_database(url)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = open_sync(url)
    yield database
    database.close()


@pytest.fixture
def callers(url: str) -> Iterator[Connect]:
    """Connections as an application makes them: with the library's own defaults."""
    with contextlib.ExitStack() as stack:

        def make(**extra: Any) -> Any:
            given = {name: value for name, value in options(url).items() if name not in ("autocommit", "charset")}
            raw = pymysql.connect(**{**given, **extra})
            stack.callback(lambda: raw.open and raw.close())
            return raw

        yield make


class TestTransactionDetection:
    def test_without_autocommit_the_next_statement_begins(self, callers: Connect) -> None:
        adapter = wrap(callers())
        assert isinstance(adapter, PymysqlConnection)
        assert adapter.in_transaction()

    def test_autocommit_is_no_transaction_until_begin(self, callers: Connect) -> None:
        raw = callers(autocommit=True)
        adapter = wrap(raw)
        assert not adapter.in_transaction()
        raw.begin()
        assert adapter.in_transaction()
        raw.commit()
        assert not adapter.in_transaction()

    def test_a_cursor_stands_for_its_connection(self, callers: Connect) -> None:
        raw = callers()
        assert wrap(raw.cursor(DictCursor)).raw is raw

    def test_nobody_can_see_the_commit(self, callers: Connect) -> None:
        adapter = wrap(callers())
        assert not adapter.after_commit(lambda: None)

    def test_what_is_written_lives_and_dies_with_the_callers_transaction(
        self, callers: Connect, database: Database
    ) -> None:
        raw = callers(cursorclass=DictCursor)
        lost, kept = Event("A", 1), Event("A", 1)
        run(STORE.write([lost], None, None), PymysqlConnection(raw))
        raw.rollback()
        run(STORE.write([kept], None, None), PymysqlConnection(raw))
        assert database.run(STORE.stored([lost.id, kept.id])) == set()
        raw.commit()
        assert database.run(STORE.stored([lost.id, kept.id])) == {kept.id}


class TestValues:
    @pytest.mark.parametrize(
        "extra",
        [
            {},
            {"charset": "latin1"},
            {"init_command": "SET sql_mode = 'ANSI'"},
            {"init_command": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'"},
        ],
    )
    def test_bytes_and_text_are_kept_whatever_the_callers_session(
        self, callers: Connect, database: Database, extra: dict[str, Any]
    ) -> None:
        raw = callers(**extra)
        events = [
            Event("Ä😀'\\", payload_bytes=payload, key="k'\"\\é中", tenant="t'\\t", headers={"h": "v'\"\\😀\x01"})
            for payload in PAYLOADS
        ]
        run(STORE.write(events, None, None), PymysqlConnection(raw))
        raw.commit()
        claimed = database.run(STORE.claim(Claim(1, new_token(), LEASE), 100, None))
        back = [Event.stored(c.row) for c in claimed]
        assert [e.body for e in back] == PAYLOADS
        assert {(e.type, e.key, e.tenant, e.headers["h"]) for e in back} == {
            (events[0].type, events[0].key, events[0].tenant, events[0].headers["h"])
        }
        assert [e.occurred_at for e in back] == [e.occurred_at for e in events]

    def test_a_batch_larger_than_one_statement_keeps_its_order(self, database: Database) -> None:
        body = b"x" * 1_000_000
        events = [Event("A", payload_bytes=body) for _ in range(CHUNK_BYTES // len(body) + 2)]
        seqs = database.run(STORE.write(events, None, None))
        assert seqs == sorted(set(seqs))
        assert database.run(STORE.stored([e.id for e in events])) == {e.id for e in events}

    def test_a_session_in_another_time_zone_changes_no_time(self, callers: Connect, database: Database) -> None:
        raw = callers(init_command="SET time_zone = '+07:00'")
        before = datetime.now(UTC) - timedelta(seconds=60)
        run(STORE.write([Event("A", 1)], None, None), PymysqlConnection(raw))
        raw.commit()
        [claimed] = database.run(STORE.claim(Claim(1, new_token(), LEASE), 1, None))
        assert before < claimed.row[11] < before + timedelta(seconds=120)


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (1205, StoreBusy), (1213, StoreBusy), (3572, StoreBusy), (1317, StoreBusy),
            (1062, DuplicateEvent), (1146, SchemaMissing), (1054, SchemaMissing),
            (2003, ConnectionLost), (2006, ConnectionLost), (2013, ConnectionLost), (1053, ConnectionLost),
            (1927, ConnectionLost), (1040, ConnectionLost), (1021, StoreFull), (1114, StoreFull),
            (1290, StoreError), (1153, StoreError), (1366, StoreError), (1045, StoreError),
        ],
    )  # fmt: skip
    def test_numbers(self, code: int, kind: type[StoreError]) -> None:
        assert type(translate_error(code, "text")) is kind

    def test_a_full_disk_below_the_storage_engine(self) -> None:
        assert type(translate_error(1030, "Got error 28 from storage engine")) is StoreFull

    @pytest.mark.parametrize("code", [1062, 1064, 1292, 1366, 1205, 9999])
    def test_values_are_dropped(self, code: int) -> None:
        message = "Something: 'secret' for column \"x\" near 'SELECT secret'"
        assert "secret" not in str(translate_error(code, message))

    @pytest.mark.parametrize("error", [pymysql.InterfaceError(0, ""), pymysql.Error("Already closed")])
    def test_a_closed_connection_has_no_number(self, error: pymysql.Error) -> None:
        assert type(translate_exception(error)) is ConnectionLost

    def test_a_missing_table_asks_for_migrate(self, callers: Connect) -> None:
        with pytest.raises(SchemaMissing, match="migrate") as caught:
            PymysqlConnection(callers()).execute(rows("SELECT * FROM absent"))
        assert isinstance(caught.value.__cause__, pymysql.ProgrammingError)

    def test_the_same_id_twice(self, database: Database) -> None:
        database.run(STORE.write([Event("A", 1, id="secret-id")], None, None))
        with pytest.raises(DuplicateEvent) as caught:
            database.run(STORE.write([Event("A", 1, id="secret-id")], None, None))
        assert "secret" not in str(caught.value)

    def test_a_lock_wait_rolls_the_whole_transaction_back(self, callers: Connect, database: Database) -> None:
        """The server undoes only the statement; what came before must not be committed later."""
        database.run(STORE.write([Event("A", 1)], None, None))
        blocker = callers()
        blocker.cursor().execute(f"SET SESSION {ROWS_ONLY}")
        blocker.cursor().execute("SELECT * FROM outbox_event FOR UPDATE")
        half = Event("A", 1)

        def write_then_wait() -> Op[None]:
            yield from STORE.write([half], None, None)
            yield rows("SELECT * FROM outbox_event FOR UPDATE NOWAIT")

        with pytest.raises(StoreBusy):
            database.run(write_then_wait())
        blocker.rollback()
        database.run(STORE.write([Event("A", 1)], None, None))
        assert database.run(STORE.stored([half.id])) == set()

    def test_a_killed_connection_is_lost_and_replaced(self, server: MariaDBServer, database: Database) -> None:
        with database.connection() as connection:
            server.kill_connection(connection.raw.thread_id())
            with pytest.raises(ConnectionLost):
                connection.execute(rows("SELECT 1"))
            assert connection.broken()
        assert database.run(STORE.stored(["x"])) == set()

    def test_a_closed_handle_says_so(self, callers: Connect) -> None:
        raw = callers()
        adapter = PymysqlConnection(raw)
        raw.close()
        assert adapter.broken()
        with pytest.raises(ConnectionLost, match="closed"):
            adapter.execute(rows("SELECT 1"))

    def test_nobody_listens(self) -> None:
        with pytest.raises(ConnectionLost):
            connect("mysql://u:hush@127.0.0.1:1/x")

    def test_a_wrong_password_is_not_repeated(self, url: str) -> None:
        with pytest.raises(StoreError, match="denied") as caught:
            connect(url.replace(":relaybox@", ":hush@"))
        assert "hush" not in str(caught.value)

    def test_text_the_connection_cannot_carry(self, callers: Connect) -> None:
        adapter = PymysqlConnection(callers(charset="latin1"))
        with pytest.raises(StoreError, match="utf8mb4"):
            adapter.execute(Query("test", "SELECT :text", "rows").bind(text="😀"))


class TestOwnConnections:
    def test_settings(self, url: str) -> None:
        connection = connect(url)
        names = "@@tx_isolation, @@autocommit, @@time_zone, @@character_set_connection, @@sql_mode"
        [(isolation, autocommit, zone, charset, mode)] = connection.execute(rows(f"SELECT {names}")).rows
        connection.close()
        assert (isolation, autocommit, zone, charset) == ("READ-COMMITTED", 1, "+00:00", "utf8mb4")
        assert "STRICT_ALL_TABLES" in mode

    def test_begin_commit_rollback(self, url: str) -> None:
        connection = connect(url)
        assert not connection.in_transaction()
        connection.begin()
        assert connection.in_transaction()
        connection.rollback()
        assert not connection.in_transaction()
        connection.close()
        connection.close()
        assert connection.broken()

    def test_a_beat_that_changes_nothing_still_finds_its_instance(self, database: Database) -> None:
        now = datetime.now(UTC)
        instance = database.run(STORE.register("me", "single", LEASE, now))
        assert database.run(STORE.beat(instance, LEASE, now))
        assert not database.run(STORE.beat(instance + 1, LEASE, now))

    def test_the_migration_lock_is_given_back(self, database: Database, callers: Connect) -> None:
        [(free,)] = (
            PymysqlConnection(callers())
            .execute(rows(STORE.sql["schema.lock"].text.replace("GET_LOCK(", "IS_FREE_LOCK(").replace(", 30)", ")")))
            .rows
        )
        assert free == 1

    def test_a_migration_that_was_cut_short_is_finished(self, database: Database) -> None:
        """DDL commits by itself: the tables are there, the record is not."""
        with database.connection() as connection:
            connection.execute(Query("test", "DELETE FROM outbox_event_migration", "count").bind())
            connection.execute(Query("test", "DROP TABLE outbox_event_hold", "count").bind())
        assert [m.version for m in database.run(STORE.migrate())] == [1, 2]
        assert database.run(STORE.drift()) == []

    def test_another_migration_under_way_means_busy(self) -> None:
        """Driven by hand, so that nobody waits the thirty seconds."""
        op = STORE.migrate()
        asked = next(op)
        assert isinstance(asked, Statement)
        assert asked.query.name == "schema.lock"
        with pytest.raises(StoreBusy):
            op.send(Result([(0,)], 1))

    def test_a_migration_that_fails_gives_the_lock_back(self) -> None:
        op = STORE.migrate()
        next(op)
        op.send(Result([(1,)], 1))
        unlock = op.throw(StoreError("no such thing"))
        assert isinstance(unlock, Statement)
        assert unlock.query.name == "schema.unlock"
        with pytest.raises(StoreError, match="no such thing"):
            op.send(Result([(1,)], 1))


class TestUrls:
    def test_parts_are_unquoted(self) -> None:
        found = options("mysql://us%40er:p%2Fw@host:3307/da%20ta?connect_timeout=3&unix_socket=/run/x.sock")
        assert (found["user"], found["password"], found["host"], found["port"]) == ("us@er", "p/w", "host", 3307)
        assert (found["database"], found["connect_timeout"]) == ("da ta", 3)
        assert found["unix_socket"] == "/run/x.sock"

    @pytest.mark.parametrize("query", ["autocommit=0", "connect_timeout=soon"])
    def test_unknown_options_are_refused(self, query: str) -> None:
        with pytest.raises(ConfigError, match="known are"):
            options(f"mysql://u:hush@h/d?{query}")

    def test_a_bad_port_hides_the_password(self) -> None:
        with pytest.raises(ConfigError) as caught:
            options("mysql://u:hush@h:port/d")
        assert "hush" not in str(caught.value)
