"""SQLAlchemy handles: the very transaction of the caller, and callbacks exactly when it really commits."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from relaybox.drivers import open_async, open_sync, sqlalchemy_hooks, wrap
from relaybox.errors import ConfigError, ConnectionLost, DuplicateEvent, SchemaMissing, StoreBusy, StoreError
from relaybox.event import Event
from relaybox.op import Query, arun, run
from relaybox.store.claims import Claim
from relaybox.store.names import Tables
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.sqlite import SqliteStore
from relaybox.testing.servers import require

T0 = datetime(2031, 1, 1, tzinfo=UTC)
STORE = PostgresStore()


@cache
def server_url() -> str:
    url = require("postgres-wheel", durable=False).create_database()
    database = open_sync(url)
    database.run(STORE.migrate())
    database.close()
    return url


def url(driver: str) -> str:
    return server_url().replace("postgresql://", f"postgresql+{driver}://", 1)


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine(url("psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def aengine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url(request.param))
    yield engine
    await engine.dispose()


class Heard:
    """Callbacks that note what they were called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on(self, handle: Any, name: str = "") -> None:
        adapter = wrap(handle)
        assert adapter.after_commit(lambda: self.calls.append(f"commit{name}"))
        assert adapter.after_rollback(lambda: self.calls.append(f"rollback{name}"))


def put(handle: Any, *events: Event, copy: bool = False) -> list[int]:
    adapter = wrap(handle)
    assert not adapter.is_async
    return run(STORE.write(events or [Event("A", None)], None, T0, copy=copy), adapter)


async def aput(handle: Any, *events: Event, copy: bool = False) -> list[int]:
    adapter = wrap(handle)
    assert adapter.is_async
    return await arun(STORE.write(events or [Event("A", None)], None, T0, copy=copy), adapter)


def stored(*ids: str) -> set[str]:
    database = open_sync(server_url())
    try:
        return database.run(STORE.stored(ids))
    finally:
        database.close()


# -- the transaction is the caller's -------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["connection", "session"])
def test_rows_share_the_fate_of_the_transaction(engine: sa.Engine, kind: str, end: str, copy: bool) -> None:
    events = [Event("A", None) for _ in range(250)]
    with engine.connect() if kind == "connection" else Session(engine) as handle:
        assert wrap(handle).copy
        assert len(put(handle, *events, copy=copy)) == 250
        assert stored(events[0].id) == set()
        getattr(handle, end)()
    assert stored(events[0].id, events[-1].id) == ({events[0].id, events[-1].id} if end == "commit" else set())


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_async_rows_share_the_fate_of_the_transaction(
    aengine: AsyncEngine, kind: str, end: str, copy: bool
) -> None:
    events = [Event("A", None) for _ in range(250)]
    async with aengine.connect() if kind == "connection" else AsyncSession(aengine) as handle:
        assert wrap(handle).copy
        assert len(await aput(handle, *events, copy=copy)) == 250
        assert stored(events[0].id) == set()
        await getattr(handle, end)()
    assert stored(events[0].id, events[-1].id) == ({events[0].id, events[-1].id} if end == "commit" else set())


async def test_copy_may_be_the_first_thing_in_a_transaction(aengine: AsyncEngine) -> None:
    """asyncpg's transaction begins with SQLAlchemy's first statement; COPY does not pass there."""
    from relaybox.op import Copy

    row = (9_000_001, T0, 1, 0)
    columns = ("seq", "due", "key_hash", "attempts")
    types = ("int8", "timestamptz", "int8", "int4")
    async with AsyncSession(aengine) as session:
        await wrap(session).execute(Copy(STORE.tables.part("pending"), None, columns, types, [row]))  # type: ignore[misc]
        await session.rollback()
        count = sa.text(f"SELECT count(*) FROM {STORE.tables.part('pending')} WHERE seq = 9000001")
        assert (await session.execute(count)).scalar() == 0


def test_a_session_may_be_scoped_or_inside_an_async_one(engine: sa.Engine) -> None:
    scoped = scoped_session(sessionmaker(engine))
    put(scoped, Event("A", None, id="scoped-1"))
    assert wrap(scoped).raw is scoped()
    scoped.commit()
    scoped.remove()
    assert stored("scoped-1") == {"scoped-1"}


async def test_async_scoped_and_run_sync(aengine: AsyncEngine) -> None:
    scoped = async_scoped_session(async_sessionmaker(aengine), scopefunc=lambda: 1)
    await aput(scoped)
    assert wrap(scoped).raw is scoped()
    events = [Event("A", None) for _ in range(250)]
    await scoped().run_sync(lambda session: put(session, *events, copy=True))
    await scoped.rollback()
    await scoped.remove()
    assert stored(events[0].id) == set()


def test_the_transaction_stays_sqlalchemys(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        adapter = wrap(connection)
        for action in (adapter.begin, adapter.commit, adapter.rollback, adapter.close):
            with pytest.raises(StoreError, match="SQLAlchemy owns"):
                action()
        assert not connection.closed


# -- is there a transaction? ---------------------------------------------------------------------------


def test_autocommit_is_no_transaction(engine: sa.Engine) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection:
        assert not wrap(connection).in_transaction()
        assert not wrap(connection).after_commit(lambda: None)
    with Session(autocommit) as session:
        assert not wrap(session).in_transaction()
        session.connection()
        assert not wrap(session).in_transaction()
    with Session(engine) as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        assert not wrap(session).in_transaction()
    for options in ({"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"autocommit": True}}):
        other = sa.create_engine(url("psycopg"), **options)
        with other.connect() as connection:
            assert not wrap(connection).in_transaction()
        other.dispose()


def test_a_transaction_that_begins_by_itself_counts(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert wrap(connection).in_transaction()
    with Session(engine) as session:
        assert wrap(session).in_transaction()
    with Session(engine, autobegin=False) as session:
        assert not wrap(session).in_transaction()
        with session.begin():
            assert wrap(session).in_transaction()


async def test_async_autocommit(aengine: AsyncEngine) -> None:
    async with AsyncSession(aengine) as session:
        assert wrap(session).in_transaction()
        assert not wrap(session).after_commit(lambda: None), "there is no connection yet to listen on"
    autocommit = aengine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        assert not wrap(connection).in_transaction()
    async with AsyncSession(autocommit) as session:
        assert not wrap(session).in_transaction()


def test_two_phase_commits_cannot_be_told(engine: sa.Engine) -> None:
    with Session(engine, twophase=True) as session:
        put(session)
        assert wrap(session).silent
        assert not wrap(session).after_commit(lambda: None)


# -- after the commit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_each_callback_belongs_to_one_transaction(engine: sa.Engine, kind: str) -> None:
    heard = Heard()
    with engine.connect() if kind == "connection" else Session(engine) as handle:
        for n, end in enumerate(["commit", "commit", "rollback", "commit"]):
            put(handle)
            heard.on(handle, str(n))
            heard.on(handle, f"{n}b")
            before = len(heard.calls)
            getattr(handle, end)()
            assert heard.calls[before:] == [f"{end}{n}", f"{end}{n}b"]
        put(handle)
        handle.commit()
    assert len(heard.calls) == 8
    gc.collect()
    assert len(sqlalchemy_hooks._watches) == 0


async def test_async_callbacks_belong_to_one_transaction(aengine: AsyncEngine) -> None:
    heard = Heard()
    async with AsyncSession(aengine) as session, aengine.connect() as connection:
        for handle in (session, connection):
            for end in ("commit", "rollback", "commit"):
                await aput(handle)
                heard.on(handle)
                await getattr(handle, end)()
            await aput(handle)
            await handle.commit()
    assert heard.calls == ["commit", "rollback", "commit"] * 2


def test_a_callback_comes_after_the_commit(engine: sa.Engine) -> None:
    seen: list[set[str]] = []
    with Session(engine) as session, session.begin():
        put(session, Event("A", None, id="after-1"))
        wrap(session).after_commit(lambda: seen.append(stored("after-1")))
    assert seen == [{"after-1"}]


def test_the_end_of_a_savepoint_is_not_the_end(engine: sa.Engine) -> None:
    heard = Heard()
    with Session(engine) as session:
        with session.begin_nested():
            put(session)
            heard.on(session)
        assert heard.calls == []
        nested = session.begin_nested()
        nested.rollback()
        assert heard.calls == []
        session.commit()
    assert heard.calls == ["commit"]


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully", "rollback_only"])
def test_a_session_inside_an_outer_transaction_waits_for_it(engine: sa.Engine, mode: Any) -> None:
    """The usual test fixture: the session's commit is a savepoint, or nothing at all."""
    heard = Heard()
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            put(session)
            heard.on(session)
            session.commit()
        assert heard.calls == (["commit"] if mode == "control_fully" else [])
        if outer.is_active:
            outer.rollback()
    assert heard.calls == (["commit"] if mode == "control_fully" else ["rollback"])


def test_closing_without_a_commit_is_a_rollback(engine: sa.Engine) -> None:
    heard = Heard()
    with Session(engine) as session:
        put(session)
        heard.on(session)
    with engine.connect() as connection:
        put(connection)
        heard.on(connection)
    assert heard.calls == ["rollback", "rollback"]


def test_a_commit_that_fails_calls_nobody(engine: sa.Engine) -> None:
    heard = Heard()
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TEMP TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.commit()
        connection.exec_driver_sql("INSERT INTO t VALUES (1), (1)")
        heard.on(connection)
        with pytest.raises(sa.exc.IntegrityError):
            connection.commit()
        connection.rollback()
    assert heard.calls == []


@pytest.mark.parametrize("copy", [False, True])
def test_committing_a_failed_transaction_is_a_rollback(engine: sa.Engine, copy: bool) -> None:
    """PostgreSQL answers that COMMIT with ROLLBACK and no error."""
    heard = Heard()
    with engine.connect() as connection:
        put(connection, Event("A", None, id="vanished"))
        heard.on(connection)
        with pytest.raises(DuplicateEvent):
            put(connection, *(Event("A", None, id="vanished") for _ in range(200)), copy=copy)
        connection.commit()
        assert heard.calls == ["rollback"]
        assert stored("vanished") == set()
        put(connection, Event("A", None, id="next-one"))
        heard.on(connection)
        with suppress(DuplicateEvent), connection.begin_nested():
            put(connection, Event("A", None, id="next-one"))
        with pytest.raises(sa.exc.ProgrammingError):
            connection.exec_driver_sql("SELECT %s", ())
        connection.commit()
        assert heard.calls == ["rollback", "commit"]
        connection.exec_driver_sql(f"DELETE FROM {STORE.tables.event}")
        connection.commit()


def test_a_lost_connection_calls_nobody(engine: sa.Engine) -> None:
    heard = Heard()
    with engine.connect() as connection, engine.connect() as admin:
        put(connection)
        heard.on(connection)
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        admin.exec_driver_sql("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        with pytest.raises(sa.exc.OperationalError):
            connection.commit()
        assert wrap(connection).broken()
    assert heard.calls == []


def test_a_failing_callback_does_not_undo_the_commit(engine: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with Session(engine) as session, caplog.at_level(logging.ERROR, "relaybox"):
        put(session, Event("A", None, id="callback-1"))
        wrap(session).after_commit(lambda: 1 // 0)
        heard.on(session)
        session.commit()
    assert heard.calls == ["commit"]
    assert "ZeroDivisionError" in caplog.text
    assert stored("callback-1") == {"callback-1"}


# -- errors ------------------------------------------------------------------------------------------------


def test_errors_become_ours_and_hide_the_payload(engine: sa.Engine) -> None:
    with Session(engine) as session:
        put(session, Event("A", None, id="twice"))
        session.commit()
        with pytest.raises(DuplicateEvent) as caught:
            put(session, Event("A", {"a": "swordfish"}, id="twice"))
        assert "swordfish" not in f"{caught.value} {caught.value.__cause__}"
        with pytest.raises(StoreError, match="failed already"):
            put(session)
        session.rollback()
        with pytest.raises(SchemaMissing):
            run(PostgresStore(Tables("nowhere")).write([Event("A", None)], None, T0), wrap(session))


async def test_async_errors_become_ours(aengine: AsyncEngine) -> None:
    async with AsyncSession(aengine) as session:
        event = Event("A", {"a": "swordfish"})
        await aput(session, event)
        with pytest.raises(DuplicateEvent) as caught:
            await aput(session, event)
        assert "swordfish" not in f"{caught.value} {caught.value.__cause__}"
        with pytest.raises(StoreError, match="failed already"):
            await aput(session)


def test_a_lock_wait_is_busy_and_an_exhausted_pool_too(engine: sa.Engine) -> None:
    small = sa.create_engine(url("psycopg"), pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.connect() as holder, Session(small) as session:
        put(holder, Event("A", None, id="locked"))
        session.execute(sa.text("SET LOCAL lock_timeout = '1ms'"))
        with pytest.raises(StoreBusy):
            put(session, Event("A", None, id="locked"))
        with Session(small) as second, pytest.raises(StoreBusy):
            put(second)
    small.dispose()


def test_a_closed_or_unreachable_server_is_a_lost_connection() -> None:
    nobody = sa.create_engine("postgresql+psycopg://u:hunter2@127.0.0.1:1/x")
    with Session(nobody) as session, pytest.raises(ConnectionLost) as caught:
        put(session)
    assert "hunter2" not in str(caught.value)


async def test_an_unreachable_server_is_a_lost_connection_for_asyncpg() -> None:
    nobody = create_async_engine("postgresql+asyncpg://u:hunter2@127.0.0.1:1/x")
    with pytest.raises(ConnectionLost):
        await open_async(nobody).run(STORE.status(None))


def test_a_session_without_a_default_bind_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="bind"):
        wrap(Session())


def test_an_unknown_database_is_refused() -> None:
    strange = sa.create_engine("sqlite://")
    strange.dialect.name = "mssql"
    with pytest.raises(ConfigError, match="mssql"):
        wrap(Session(strange))


# -- the other engines ------------------------------------------------------------------------------------


def test_sqlite_commits_are_seen_too(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    store = SqliteStore()
    database = open_sync(engine)
    database.run(store.migrate())
    heard = Heard()
    with Session(engine) as session:
        adapter = wrap(session)
        assert (adapter.dialect, adapter.copy) == ("sqlite", False)
        run(store.write([Event("A", None, id="x")], Claim(1, 2, timedelta(seconds=9)), T0), adapter)
        heard.on(session)
        session.commit()
        assert database.run(store.stored(["x"])) == {"x"}
        with pytest.raises(DuplicateEvent):
            run(store.write([Event("A", None, id="x")], None, T0), adapter)
        session.rollback()
    assert heard.calls == ["commit"]
    engine.dispose()


def test_mysql_commits_are_seen_too() -> None:
    address = require("mariadb", durable=False).create_database()
    engine = sa.create_engine(address.replace("mysql://", "mysql+pymysql://", 1))
    heard = Heard()
    with Session(engine) as session:
        assert wrap(session).dialect == "mysql"
        run(iter_query("SELECT 1"), wrap(session))
        heard.on(session)
        session.commit()
        with pytest.raises(SchemaMissing):
            run(iter_query("SELECT * FROM nowhere"), wrap(session))
    autocommit = sa.create_engine(engine.url, connect_args={"autocommit": True})
    with autocommit.connect() as connection:
        assert not wrap(connection).in_transaction()
    assert heard.calls == ["commit"]
    engine.dispose()
    autocommit.dispose()


def iter_query(text: str) -> Any:
    yield Query("test", text, "rows").bind()
