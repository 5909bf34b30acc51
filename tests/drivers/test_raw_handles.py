"""psycopg2, mysqlclient and MySQL Connector/Python: what a caller's handle says of its transaction, what errors become,
and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import mysql.connector
import psycopg2
import psycopg2.extras
import pytest

from kit import make_database, rows
from kit.handles import _plain
from relaybox import CommitUnknown, ConfigError, Event, NoTransaction, Outbox
from relaybox.drivers import wrap
from relaybox.drivers.mysql_errors import translate_exception
from relaybox.errors import ConnectionLost, DuplicateEvent, SchemaMissing, StoreBusy, StoreError
from relaybox.op import Op, Query, Statement, run
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.testing.servers import MariaDBServer, require

PAYLOADS = [b"", b"\x00", bytes(range(256)), "é😀".encode(), b"'\"\\%s:now{}", b"x" * 100_000]
CLIENTS = {"psycopg2": "postgres", "mysqlclient": "mariadb", "connector": "mariadb", "connector-c": "mariadb"}
Connect = Callable[..., Any]


def connect(client: str, url: str, **extra: Any) -> Any:
    """As an application connects: with the library's own defaults."""
    if client == "psycopg2":
        return psycopg2.connect(url, **extra)
    if client == "mysqlclient":
        return pytest.importorskip("MySQLdb").connect(**_plain(url), **{"charset": "utf8mb4", **extra})
    if client == "connector-c":
        pytest.importorskip("_mysql_connector", exc_type=ImportError)
    return mysql.connector.connect(**_plain(url), use_pure=client == "connector", **extra)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(client: str, tmp_path: Any) -> str:
    return make_database(CLIENTS[client], tmp_path)


@pytest.fixture
def callers(client: str, url: str) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(**extra: Any) -> Any:
            raw = connect(client, url, **extra)
            stack.callback(_close, raw)
            return raw

        yield make


def _close(raw: Any) -> None:
    with suppress(Exception):
        raw.close()


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        yield box


def asked(sql: str) -> Statement:
    return Query("test", sql, "rows").bind()


def test_a_cursor_stands_for_its_connection(callers: Connect) -> None:
    raw = callers()
    cursor = raw.cursor()  # kept: MySQL Connector's know their connection weakly
    assert wrap(cursor).raw is raw


def test_nobody_can_see_the_commit(callers: Connect) -> None:
    assert not wrap(callers()).after_commit(lambda: None)


@pytest.mark.parametrize("charset", [None, "latin1"])
def test_bytes_and_text_are_kept(client: str, callers: Connect, box: Outbox, charset: str | None) -> None:
    if charset and client == "psycopg2":
        pytest.skip("it says that it cannot, see below")
    raw = callers(**({"charset": charset} if charset else {}))
    events = [
        Event("Ä😀'\\", payload_bytes=payload, key="k'\"\\é中%s%%", tenant="t'\\t", headers={"h": "v'\"\\😀\x01%(x)s"})
        for payload in PAYLOADS
    ]
    box.write_all(raw, events)
    raw.commit()
    back = {found.event.id: found.event for found in box.events.list()}
    for event in events:
        stored = back[event.id]
        assert (stored.body, stored.type, stored.key, stored.tenant, stored.headers["h"]) == (
            event.body,
            event.type,
            event.key,
            event.tenant,
            event.headers["h"],
        )


def test_a_batch_larger_than_one_statement_keeps_its_order(callers: Connect, box: Outbox, url: str) -> None:
    raw = callers()
    events = [Event("A", payload_bytes=b"x" * 1_000_000) for _ in range(6)]
    box.write_all(raw, events)
    raw.commit()
    assert [row[0] for row in rows(url, "SELECT event_id FROM outbox_event ORDER BY seq")] == [e.id for e in events]


def test_the_callers_kind_of_cursor_changes_nothing(client: str, url: str, box: Outbox) -> None:
    match client:
        case "psycopg2":
            raw = connect(client, url, cursor_factory=psycopg2.extras.RealDictCursor)
        case "mysqlclient":
            raw = connect(client, url, cursorclass=pytest.importorskip("MySQLdb.cursors").DictCursor)
        case _:
            with closing(connect(client, url, raw=True)) as raw, pytest.raises(ConfigError, match="raw=True"):
                box.write(raw, Event("A", 1))
            return
    with closing(raw):
        event = Event("A", {"a": 1})
        number = box.write(raw, event)
        assert isinstance(number, int)
        raw.commit()
    assert box.resolve([event.id]) == {event.id: True}


def test_autocommit_is_no_transaction(callers: Connect, box: Outbox, url: str) -> None:
    raw = callers()
    if callable(raw.autocommit):
        raw.autocommit(True)
    else:
        raw.autocommit = True
    with pytest.raises(NoTransaction, match="autocommit"):
        box.write(raw, Event("A", 1))
    with box.transaction(raw) as tx:  # which begins one itself
        kept = Event("A", 1)
        box.write(tx, kept)
    with suppress(ZeroDivisionError), box.transaction(raw) as tx:
        box.write(tx, Event("A", 1))
        raise ZeroDivisionError
    assert [row[0] for row in rows(url, "SELECT event_id FROM outbox_event")] == [kept.id]


def test_a_transaction_of_ours_on_their_connection(callers: Connect, box: Outbox, url: str) -> None:
    raw = callers()
    with box.transaction(raw) as tx:
        tx.connection.cursor().execute("INSERT INTO business VALUES (1)")
        kept = Event("A", 1)
        box.write(tx, kept)
        with suppress(ZeroDivisionError), tx.savepoint():
            box.write(tx, Event("A", 1))
            raise ZeroDivisionError
    assert [row[0] for row in rows(url, "SELECT event_id FROM outbox_event")] == [kept.id]
    assert rows(url, "SELECT n FROM business") == [(1,)]


class TestErrors:
    def test_a_missing_table_asks_for_migrate(self, callers: Connect) -> None:
        with pytest.raises(SchemaMissing, match="migrate"):
            wrap(callers()).execute(asked("SELECT * FROM absent"))

    def test_the_same_id_twice(self, callers: Connect, box: Outbox) -> None:
        raw = callers()
        box.write(raw, Event("A", 1, id="secret-id"))
        with pytest.raises(DuplicateEvent) as caught:
            box.write(raw, Event("A", 1, id="secret-id"))
        assert "secret" not in str(caught.value)

    def test_a_lock_that_is_not_had_can_be_tried_again(self, callers: Connect, box: Outbox) -> None:
        holder, waiter = callers(), callers()
        box.write(holder, Event("A", 1))
        holder.commit()
        run(_locked("FOR UPDATE"), wrap(holder))
        with pytest.raises(StoreBusy) as caught:
            run(_locked("FOR UPDATE NOWAIT"), wrap(waiter))
        assert caught.value.retryable

    def test_a_killed_connection_is_lost(self, client: str, callers: Connect, url: str) -> None:
        raw = callers()
        kill(client, url, raw)
        with pytest.raises(ConnectionLost):
            wrap(raw).execute(asked("SELECT 1"))

    def test_a_lost_reply_to_commit_is_neither_success_nor_failure(
        self, client: str, callers: Connect, box: Outbox, url: str
    ) -> None:
        raw, event = callers(), Event("A", 1)
        with pytest.raises(CommitUnknown) as caught, box.transaction(raw) as tx:  # noqa: PT012
            box.write(tx, event)
            kill(client, url, raw)
        assert caught.value.event_ids == (event.id,)
        assert box.resolve([event.id]) == {event.id: False}

    def test_a_closed_connection_says_so(self, callers: Connect) -> None:
        raw = callers()
        raw.close()
        assert wrap(raw).broken()
        with pytest.raises(ConnectionLost, match=r"closed|not available|gone away"):
            wrap(raw).execute(asked("SELECT 1"))


def test_text_that_a_connection_cannot_carry(tmp_path: Any) -> None:
    url = make_database("postgres", tmp_path)
    with Outbox(url) as box, closing(psycopg2.connect(url, client_encoding="latin1")) as raw:
        with pytest.raises(StoreError, match="cannot carry the text") as caught:
            box.write(raw, Event("A", 1, key="中"))
        assert "中" not in str(caught.value)


def _locked(how: str) -> Op[None]:
    yield asked(f"SELECT seq FROM outbox_event {how}")


def kill(client: str, url: str, raw: Any) -> None:
    if client == "psycopg2":
        rows(url, f"SELECT pg_terminate_backend({raw.get_backend_pid()})")
        return
    server = require("mariadb", durable=False)
    assert isinstance(server, MariaDBServer)
    server.kill_connection(raw.thread_id() if client == "mysqlclient" else raw.connection_id)


def test_a_failed_transaction_is_not_committed_in_silence(tmp_path: Any) -> None:
    """PostgreSQL would answer COMMIT with ROLLBACK and no error."""
    url = make_database("postgres", tmp_path)
    with Outbox(url) as box, closing(psycopg2.connect(url)) as raw:
        with pytest.raises(StoreError, match="failed already"), box.transaction(raw) as tx:  # noqa: PT012
            box.write(tx, Event("A", 1))
            with suppress(psycopg2.Error):
                tx.connection.cursor().execute("SELECT nonsense")
        assert box.status().due == 0


def test_a_connection_of_a_connector_pool(tmp_path: Any) -> None:
    from mysql.connector.pooling import MySQLConnectionPool

    url = make_database("mariadb", tmp_path)
    pool = MySQLConnectionPool(pool_name="p", pool_size=1, use_pure=True, **_plain(url))
    with Outbox(url) as box:
        raw = pool.get_connection()
        box.write(raw, Event("A", 1))
        raw.commit()
        raw.close()
        assert box.status().due == 1
        with pytest.raises(ConnectionLost, match="went back to its pool"):
            box.write(raw, Event("A", 1))


@pytest.mark.parametrize("what", ["a pool", "an asyncio connection", "a string"])
def test_what_is_no_handle_is_told_what_is(what: str) -> None:
    from mysql.connector.aio import MySQLConnection
    from psycopg_pool import ConnectionPool

    handle: Any = {
        "a pool": partial(ConnectionPool, open=False),
        "an asyncio connection": partial(object.__new__, MySQLConnection),
        "a string": partial(str, "x"),
    }[what]()
    with pytest.raises(ConfigError, match=r"psycopg2, .*mysqlclient, MySQL Connector/Python") as caught:
        wrap(handle)
    assert ("from this pool" in str(caught.value)) == (what == "a pool")


def test_what_the_server_has_not_said_is_no_lost_connection() -> None:
    wrong = mysql.connector.ProgrammingError("Python type 'set' cannot be converted", errno=-1)
    assert type(translate_exception(wrong)) is StoreError
    gone = mysql.connector.OperationalError("MySQL Connection not available", errno=-1)
    assert type(translate_exception(gone)) is ConnectionLost


def test_a_store_and_its_percent_signs() -> None:
    """MySQL Connector leaves a doubled sign as it is."""
    claim = open_store("mysql", Tables()).sql
    texts = [query for query in claim.values() if " % " in query.text]
    assert texts
    assert all(" %% " not in query.compiled("percent")[0] for query in texts)
    assert all(" %% " in query.compiled("format")[0] for query in texts)
