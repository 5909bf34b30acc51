"""Connections relaybox takes from a user's SQLAlchemy engine, and gives back as they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from relaybox.drivers import open_async, open_sync, wrap
from relaybox.drivers.sqlalchemy import BorrowedDatabase
from relaybox.errors import ConfigError
from relaybox.event import Event
from relaybox.op import Query, arun, run
from relaybox.store.outbox.postgres import PostgresStore
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


def stored(*ids: str) -> set[str]:
    database = open_sync(server_url())
    try:
        return database.run(STORE.stored(ids))
    finally:
        database.close()


def test_a_borrowed_connection_goes_back_clean(engine: sa.Engine) -> None:
    """One connection in the user's pool is enough, and none of our state stays on it."""
    small = sa.create_engine(url("psycopg"), pool_size=1, max_overflow=0, pool_timeout=0)
    database = open_sync(small)
    assert isinstance(database, BorrowedDatabase)
    for _ in range(3):
        database.run(STORE.status(None))
        with Session(small) as session:
            run(STORE.write([Event("A", None)], None, T0), wrap(session))
            assert wrap(session).in_transaction()
            session.rollback()

    def failing() -> Any:
        yield from STORE.write([Event("A", None, id="undone")], None, T0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.run(failing())
    assert stored("undone") == set()
    with suppress(ZeroDivisionError), database.connection() as connection:
        connection.begin()
        run(STORE.write([Event("A", None, id="left-open")], None, T0), connection)
        raise ZeroDivisionError
    assert stored("left-open") == set()
    database.run(STORE.status(None))
    small.dispose()


async def test_an_async_transaction_left_open_is_not_returned(aengine: AsyncEngine) -> None:
    database = open_async(aengine)
    with suppress(ZeroDivisionError):
        async with database.connection() as connection:
            await connection.begin()
            await arun(STORE.write([Event("A", None, id="a-left-open")], None, T0), connection)
            raise ZeroDivisionError
    async with aengine.connect() as connection:
        question = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = "
        answer = await connection.exec_driver_sql(question + "'idle in transaction'")
        assert answer.scalar() == 0
    assert stored("a-left-open") == set()
    await database.close()


async def test_either_kind_of_engine_serves_either_side(engine: sa.Engine, aengine: AsyncEngine) -> None:
    background = open_async(engine)
    assert (await background.run(STORE.status(None))).dead == 0
    assert background.listen is not None
    await background.close()
    front = open_sync(aengine)
    assert front.run(STORE.status(None)).dead == 0
    front.close()


def test_an_in_memory_sqlite_engine_cannot_serve_the_other_side() -> None:
    with pytest.raises(ConfigError, match="in-memory"):
        open_async(sa.create_engine("sqlite://"))


async def test_what_services_open_is_made_as_the_engine_makes_its_own() -> None:
    """By its arguments and its events: where a password is fetched and TLS is asked for."""
    given = {"options": "-c search_path=somewhere"}
    engine = sa.create_engine(url("psycopg"), connect_args=given)
    seen: list[str] = []

    @sa.event.listens_for(engine, "do_connect")
    def asked(dialect: Any, record: Any, arguments: Any, named: dict[str, Any]) -> None:
        seen.append(named["options"])
        named["options"] += " -c application_name=by_event"

    @sa.event.listens_for(engine, "connect")
    def prepared(raw: Any, record: Any) -> None:
        raw.execute("SET extra_float_digits = 2")
        raw.commit()

    background = open_async(engine, timeout=5)
    query = (
        "SELECT current_setting('search_path') || ' ' || current_setting('application_name') || ' ' || "
        "current_setting('extra_float_digits')"
    )

    def ask() -> Any:
        return (yield Query("test", query, "rows").bind()).rows[0][0]

    assert await background.run(ask()) == "somewhere by_event 2"
    assert seen
    await background.close()
    engine.dispose()


async def test_listening_goes_by_the_engines_arguments(aengine: AsyncEngine) -> None:
    """The address alone leads nowhere."""
    port = sa.make_url(server_url()).port
    real = {"host": sa.make_url(server_url()).host, "port": port}
    astray = aengine.url.set(host="127.0.0.1", port=1)
    engine = create_async_engine(astray, connect_args=real)
    background = open_async(engine, timeout=5)
    assert background.listen is not None
    ready, heard = asyncio.Event(), asyncio.Event()
    listening = asyncio.ensure_future(background.listen("channel", ready.set, heard.set))
    async with asyncio.timeout(20):
        await asyncio.wait([listening, asyncio.ensure_future(ready.wait())], return_when="FIRST_COMPLETED")
        assert not listening.done(), listening.exception()
        async with engine.begin() as connection:
            await connection.exec_driver_sql("SELECT pg_notify('channel', '')")
        await heard.wait()
    listening.cancel()
    await asyncio.wait([listening])
    await background.close()
    await engine.dispose()
