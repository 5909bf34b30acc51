"""The transaction may be the service's own, of every library that the core writes through."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from relaybox import AsyncInbox, Event, Inbox, Reject
from relaybox.drivers.mysql_session import options as mysql_options
from relaybox.errors import ConfigError, NoTransaction

from .effects import QUICK, asay, effects, say, text_of, with_effects
from .kit import PATIENCE, aprocessed, arrived, inbox_url, processed, serving


def handle(event: Event, handle: Any) -> None:
    say(handle, text_of(event))
    if event.payload["n"] == 3:
        raise Reject("never")


async def ahandle(event: Event, handle: Any) -> None:
    await asay(handle, text_of(event))
    if event.payload["n"] == 3:
        raise Reject("never")


def check(url: str, events: list[Event]) -> None:
    assert effects(url) == sorted(event.id for event in events if event.payload["n"] != 3)
    with Inbox(url) as inbox:
        assert (inbox.dead.count(), inbox.status().pending) == (1, 0)


@contextmanager
def psycopg_transaction(url: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def psycopg_cursor(url: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def sqlite_transaction(url: str) -> Iterator[Any]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        yield connection
    connection.close()


@contextmanager
def pymysql_transaction(url: str) -> Iterator[Any]:
    import pymysql

    with pymysql.connect(**mysql_options(url)) as connection:
        connection.begin()
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


SYNC = [
    ("postgres", psycopg_transaction),
    ("postgres", psycopg_cursor),
    ("sqlite", sqlite_transaction),
    ("mariadb", pymysql_transaction),
]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("server", "transaction"), SYNC, ids=lambda value: getattr(value, "__name__", value))
def test_sync(server: str, transaction: Any, batch: int, tmp_path: Path) -> None:
    url = with_effects(inbox_url(server, tmp_path))
    events = [arrived(n) for n in range(8)]
    run = _through_cursor if transaction is psycopg_cursor else handle
    with Inbox(url) as inbox:
        inbox.accept_all(None, events)
        processed(inbox, run, session=lambda: transaction(url), settings=QUICK, batch=batch)
    check(url, events)


def _through_cursor(event: Event, cursor: Any) -> None:
    cursor.execute(text_of(event))
    if event.payload["n"] == 3:
        raise Reject("never")


@asynccontextmanager
async def asyncpg_transaction(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def async_psycopg_transaction(url: str) -> AsyncIterator[Any]:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def aiosqlite_transaction(url: str) -> AsyncIterator[Any]:
    import aiosqlite

    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        yield connection
        await connection.commit()


@asynccontextmanager
async def asyncmy_transaction(url: str) -> AsyncIterator[Any]:
    import asyncmy

    connection = await asyncmy.connect(**mysql_options(url))
    try:
        await connection.begin()
        yield connection
        await connection.commit()
    finally:
        await connection.ensure_closed()


ASYNC = [
    ("postgres", asyncpg_transaction),
    ("postgres", async_psycopg_transaction),
    ("sqlite", aiosqlite_transaction),
    ("mariadb", asyncmy_transaction),
]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("server", "transaction"), ASYNC, ids=lambda value: getattr(value, "__name__", value))
async def test_async(server: str, transaction: Any, batch: int, tmp_path: Path) -> None:
    url = with_effects(inbox_url(server, tmp_path))
    events = [arrived(n) for n in range(8)]
    async with AsyncInbox(url) as inbox:
        await inbox.accept_all(None, events)
        await aprocessed(inbox, ahandle, session=lambda: transaction(url), settings=QUICK, batch=batch)
    check(url, events)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("plain", [True, False], ids=["function", "coroutine"])
async def test_no_listener_begins_after_the_stop(plain: bool, batch: int, tmp_path: Path) -> None:
    """Nor one whose transaction waited for a connection or for a lock when the stop came."""
    url = inbox_url("sqlite", tmp_path)
    loop, waiting, go, begun = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), list[str]()

    tried: list[bool] = []  # at the start, before a message is claimed

    @contextmanager
    def late() -> Iterator[Any]:
        if tried:
            loop.call_soon_threadsafe(waiting.set)
            assert go.wait(PATIENCE)
        tried.append(True)
        with sqlite_transaction(url) as connection:
            yield connection

    @asynccontextmanager
    async def alate() -> AsyncIterator[Any]:
        if tried:
            waiting.set()
            assert await asyncio.to_thread(go.wait, PATIENCE)
        tried.append(True)
        async with aiosqlite_transaction(url) as connection:
            yield connection

    def listen(event: Event, connection: Any) -> None:
        begun.append(event.id)

    async def alisten(event: Event, connection: Any) -> None:
        begun.append(event.id)

    async with AsyncInbox(url) as inbox:
        await inbox.accept_all(None, [arrived(n) for n in range(3)])
        listener, session = (listen, late) if plain else (alisten, alate)
        service = await serving(inbox, listener, settings=QUICK, session=session, batch=batch).start()
        await asyncio.wait_for(waiting.wait(), PATIENCE)
        service.halt()
        go.set()
        await service.stop()
        assert begun == []
        assert [found.attempts for found in await inbox.events.list(state="open")] == [0, 0, 0]
        assert (await aprocessed(inbox, listener, settings=QUICK)).done == 3


async def test_a_handle_in_autocommit_is_refused(tmp_path: Path) -> None:
    """The effect and the mark could part."""
    import psycopg

    url = with_effects(inbox_url("postgres", tmp_path))
    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        with psycopg.connect(url, autocommit=True) as connection:

            @contextmanager
            def careless() -> Iterator[Any]:
                yield connection

            with pytest.raises(NoTransaction, match="autocommit"):
                processed(inbox, handle, session=careless, settings=QUICK)
        assert inbox.events.list()[0].attempts == 0
    assert effects(url) == []


@pytest.mark.parametrize("batch", [1, 4])
async def test_orm_objects_of_a_failed_message_are_forgotten(batch: int, tmp_path: Path) -> None:
    """In a batch the session lives on: what a rolled-back savepoint had added must not be flushed after it."""
    import sqlalchemy as sa
    from sqlalchemy.orm import DeclarativeBase, Session, mapped_column, sessionmaker

    class Base(DeclarativeBase):
        pass

    class Effect(Base):
        __tablename__ = "effect"
        event_id = mapped_column(sa.String, primary_key=True)

    url = with_effects(inbox_url("postgres", tmp_path))
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    events = [arrived(n) for n in range(8)]

    def add(event: Event, session: Session) -> None:
        session.add(Effect(event_id=event.id))
        if event.payload["n"] == 3:
            raise Reject("never")

    with Inbox(engine) as inbox:
        inbox.accept_all(None, events)
        processed(inbox, add, session=sessionmaker(engine), settings=QUICK, batch=batch)
    engine.dispose()
    check(url, events)


@pytest.mark.parametrize("batch", [1, 4])
def test_django_atomic(batch: int, tmp_path: Path) -> None:
    import django
    from django.conf import settings as django_settings
    from django.db import connections, transaction

    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    url = with_effects(inbox_url("sqlite", tmp_path))
    alias = f"inbox-{batch}"
    at_once = {"transaction_mode": "IMMEDIATE"}  # or one that reads before it writes fails when another has written
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///"), "OPTIONS": at_once}
    connections.databases[alias] = connections.configure_settings({"default": file})["default"]

    @contextmanager
    def unit_of_work() -> Iterator[Any]:
        with transaction.atomic(using=alias):
            yield connections[alias]
        connections[alias].close()

    events = [arrived(n) for n in range(8)]
    with Inbox(url) as inbox:
        inbox.accept_all(None, events)
        processed(inbox, handle, session=unit_of_work, settings=QUICK, batch=batch)
    check(url, events)


def test_a_session_that_cannot_make_transactions_is_refused_before_a_message_is_claimed(tmp_path: Path) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    url = inbox_url("sqlite", tmp_path)
    engine = create_engine(url)
    one = sqlite3.connect(":memory:")
    with Inbox(url) as inbox, Session(engine) as session, engine.connect() as connection:
        for wrong in ("billing", 7):
            with pytest.raises(
                ConfigError, match=r"expected session to be a sessionmaker, an engine or .*, got (str|int)$"
            ):
                inbox.process(handle, session=wrong)
        for shared in (session, connection, one, scoped_session(sessionmaker(engine))):
            with pytest.raises(ConfigError, match=r"got a \w+, which all messages would share$"):
                inbox.process(handle, session=shared)
        for right in (engine, sessionmaker(engine), engine.begin):
            inbox.process(handle, session=right)
    one.close()
    engine.dispose()
