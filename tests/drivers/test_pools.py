"""Pools of psycopg_pool and asyncpg as targets: what callers do goes by the pool, services have connections of their
own that are made as the pool makes its."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from kit import make_postgres, one, rows
from kit.forked import in_a_child
from relaybox import AsyncGuard, AsyncInbox, AsyncOutbox, ConfigError, Event, Guard, Inbox, Listeners, Outbox, Settings
from relaybox.drivers import open_async, open_sync
from relaybox.errors import Closed, StoreBusy, StoreError
from relaybox.op import Op, Query
from relaybox.types import DeliverySettings

ASYNC_KINDS = ("psycopg", "asyncpg")
FAST = Settings(delivery=DeliverySettings(poll="100ms", workers=2))


@pytest.fixture
def url() -> str:
    return make_postgres()


@asynccontextmanager
async def apool(kind: str, url: str, **options: Any) -> AsyncIterator[Any]:
    if kind == "psycopg":
        async with AsyncConnectionPool(url, **{"open": False, "min_size": 1, "max_size": 1, **options}) as pool:
            yield pool
    else:
        async with asyncpg.create_pool(url, **{"min_size": 1, "max_size": 1, **options}) as pool:
            yield pool


@pytest.fixture
def pool(url: str) -> Iterator[ConnectionPool]:
    with ConnectionPool(url, min_size=1, max_size=1, open=False, timeout=0.2) as pool:
        yield pool


def ask(sql: str) -> Op[Any]:
    return (yield Query("test", sql, "rows").bind()).rows[0][0]


def note() -> tuple[Listeners, Callable[[], list[Any]], threading.Event]:
    found: list[Any] = []
    arrived, listeners = threading.Event(), Listeners()

    @listeners.on("Happened")
    def listen(event: Event) -> None:
        found.append(event.payload)
        arrived.set()

    return listeners, lambda: found, arrived


# -- what callers do, and what services do -----------------------------------------------------------------


def test_a_pool_of_one_connection_is_enough_for_a_program_that_delivers(pool: ConnectionPool, url: str) -> None:
    """Its only connection is held by the program while the event is delivered: services take none from it."""
    listeners, payloads, arrived = note()
    with Outbox(pool, settings=FAST) as box, box.deliver(listeners):
        with pool.connection() as raw:
            box.write(raw, Event("Happened", 1))
            raw.commit()
            assert arrived.wait(20)
        with box.transaction() as tx:
            pid = tx.connection.info.backend_pid
            box.write(tx, Event("Happened", 2))
        with pool.connection() as raw:
            assert raw.info.backend_pid == pid, "it was the pool's"
            assert not raw.autocommit, "and it came back as it was"
            assert raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert payloads()[0] == 1


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_so_is_one_of_an_asyncio_program(kind: str, url: str) -> None:
    arrived, listeners = asyncio.Event(), Listeners()

    @listeners.on("Happened")
    async def listen(event: Event) -> None:
        arrived.set()

    async with apool(kind, url) as pool, AsyncOutbox(pool, settings=FAST) as box, box.deliver(listeners):
        async with box.transaction() as tx:
            await box.write(tx, Event("Happened", 1))
        async with taken(kind, pool) as raw, asyncio.timeout(20):
            await arrived.wait()
            assert raw is not None


def taken(kind: str, pool: Any) -> Any:
    return pool.connection() if kind == "psycopg" else pool.acquire()


def test_an_inbox_and_a_guard_on_a_pool(pool: ConnectionPool) -> None:
    listeners, payloads, arrived = note()
    with Inbox(pool, settings=FAST) as inbox:
        inbox.migrate()
        with inbox.process(listeners):
            assert inbox.accept(None, Event("Happened", 1), sender="a")
            assert arrived.wait(20)
    assert payloads() == [1]
    with Guard.sql(pool, consumer="c") as guard:
        guard.migrate()
        with guard("m1") as first:
            assert first
        with guard("m1") as first:
            assert not first


@pytest.mark.parametrize("kind", ASYNC_KINDS)
@pytest.mark.parametrize("plain", [True, False])
async def test_an_inbox_of_an_asyncio_program(kind: str, plain: bool, url: str) -> None:
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen(event: Event, connection: Any) -> None:
        loop.call_soon_threadsafe(arrived.set)

    async def alisten(event: Event, connection: Any) -> None:
        arrived.set()

    async with apool(kind, url) as pool, AsyncInbox(pool, settings=FAST) as inbox:
        await inbox.migrate()
        assert await inbox.accept(None, Event("Happened", 1), sender="a")
        if plain and kind == "asyncpg":
            with pytest.raises(ConfigError, match="no synchronous connections"):
                await inbox.process(listen).start()
            return
        async with inbox.process(listen if plain else alisten), asyncio.timeout(20):
            await arrived.wait()
        async with AsyncGuard.sql(pool, consumer="c") as guard:
            await guard.migrate()
            async with guard("m1") as first:
                assert first


# -- made as the pool makes its ----------------------------------------------------------------------------


class Named(psycopg.Connection[Any]):
    """As programs do that fetch a password for each connection."""

    @classmethod
    def connect(cls, conninfo: str = "", **named: Any) -> Any:
        return super().connect(conninfo, **{**named, "user": "relaybox_named"})


class AsyncNamed(psycopg.AsyncConnection[Any]):
    @classmethod
    async def connect(cls, conninfo: str = "", **named: Any) -> Any:
        return await super().connect(conninfo, **{**named, "user": "relaybox_named"})


WHO = "SELECT session_user::text || ' ' || current_setting('search_path')"
MADE = "relaybox_named somewhere"


@pytest.fixture
def named(url: str) -> str:
    """Only this role knows the way."""
    if not one(url, "SELECT count(*) FROM pg_roles WHERE rolname = 'relaybox_named'"):
        rows(url, "CREATE ROLE relaybox_named LOGIN SUPERUSER")
    return url


def test_class_and_configure_of_a_synchronous_pool(named: str) -> None:
    def configure(raw: Any) -> None:
        raw.execute("SET search_path = somewhere")
        raw.commit()

    with ConnectionPool(named, connection_class=Named, configure=configure, min_size=1, open=False) as pool:
        assert both(pool) == [MADE, MADE]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_class_and_hooks_of_an_asyncio_pool(kind: str, named: str) -> None:
    async def configure(raw: Any) -> None:
        await raw.execute("SET search_path = somewhere")

    async def psycopgs(raw: Any) -> None:
        await configure(raw)
        await raw.commit()

    async def connect(*args: Any, **options: Any) -> Any:
        return await asyncpg.connect(*args, **{**options, "user": "relaybox_named"})

    options: dict[str, Any] = {"connection_class": AsyncNamed, "configure": psycopgs}
    if kind == "asyncpg":
        options = {"connect": connect, "setup": configure}
    async with apool(kind, named, **options) as pool:
        found = [await answered(open_async(pool, timeout=5), WHO), await answered(open_async(pool, callers=True), WHO)]
        if kind == "psycopg":
            found.append(await asyncio.to_thread(run_in, lambda: open_sync(pool, timeout=5), WHO))
        assert set(found) == {MADE}


def both(pool: Any) -> list[Any]:
    return [run_in(lambda: open_sync(pool, timeout=5), WHO), asyncio.run(answered(open_async(pool, timeout=5), WHO))]


def run_in(opened: Callable[[], Any], sql: str) -> Any:
    database = opened()
    try:
        return database.run(ask(sql))
    finally:
        database.close()


async def answered(database: Any, sql: str) -> Any:
    try:
        return await database.run(ask(sql))
    finally:
        await database.close()


@pytest.mark.parametrize("callable_", [True, False])
def test_arguments_of_a_pool(url: str, callable_: bool) -> None:
    given = {"options": "-c search_path=elsewhere", "application_name": "shop"}
    sql = "SELECT current_setting('search_path') || ' ' || current_setting('application_name')"
    options: Any = (lambda: given) if callable_ else given
    address: Any = (lambda: url) if callable_ else url
    pool = ConnectionPool(address, kwargs=options, open=False)
    assert run_in(lambda: open_sync(pool, timeout=5), sql) == "elsewhere shop"
    assert asyncio.run(answered(open_async(pool, timeout=5), sql)) == "elsewhere shop"


async def test_a_pool_whose_connections_read_json_by_themselves(url: str) -> None:
    async def init(raw: Any) -> None:
        for kind in ("json", "jsonb"):
            await raw.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

    arrived, listeners = asyncio.Event(), Listeners()

    @listeners.on("Happened")
    async def listen(event: Event) -> None:
        assert (event.payload, event.headers) == ({"a": [1]}, {"h": "x"})
        arrived.set()

    async with apool("asyncpg", url, init=init) as pool, AsyncOutbox(pool, settings=FAST) as box:
        async with box.deliver(listeners), asyncio.timeout(20):
            async with box.transaction() as tx:
                await box.write(tx, Event("Happened", {"a": [1]}, headers={"h": "x"}))
            await arrived.wait()


def test_a_configure_that_leaves_a_transaction_open_is_refused(url: str) -> None:
    pool = ConnectionPool(url, configure=lambda raw: raw.execute("BEGIN"), open=False)  # type: ignore[arg-type,return-value]
    database = open_sync(pool, timeout=5)
    with pytest.raises(ConfigError, match="leaves a transaction open"):
        database.run(ask("SELECT 1"))
    database.close()


async def test_services_hear_of_events_through_a_pool_of_each_kind(url: str) -> None:
    async with apool("psycopg", url) as psycopgs, apool("asyncpg", url) as asyncpgs:
        for pool in (psycopgs, asyncpgs, ConnectionPool(url, open=False)):
            database = open_async(pool, timeout=5)
            assert database.listen is not None
            ready, heard = asyncio.Event(), asyncio.Event()
            listening = asyncio.ensure_future(database.listen("channel", ready.set, heard.set))
            async with asyncio.timeout(20):
                await ready.wait()
                await database.run(ask("SELECT pg_notify('channel', '')"))
                await heard.wait()
            listening.cancel()
            await asyncio.wait([listening])
            await database.close()


# -- trouble -----------------------------------------------------------------------------------------------


def test_a_transaction_left_open_does_not_go_back(pool: ConnectionPool, url: str) -> None:
    with Outbox(pool) as box:
        with suppress(ZeroDivisionError), box.transaction() as tx:
            box.write(tx, Event("Happened", 1))
            raise ZeroDivisionError
        with suppress(ZeroDivisionError), box._db.connection() as connection:
            connection.begin()
            connection.execute(Query("test", "INSERT INTO business VALUES (1)", "count").bind())
            raise ZeroDivisionError
        assert box.status().due == 0
    assert rows(url, "SELECT * FROM business") == []


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancelled_caller_gives_the_pools_connection_back(kind: str, url: str) -> None:
    async with apool(kind, url) as pool, AsyncOutbox(pool) as box:
        running = asyncio.ensure_future(box._db.run(ask("SELECT pg_sleep(60)")))
        while not one(url, "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        async with asyncio.timeout(20):
            assert (await box.status()).due == 0


def test_a_pool_without_a_free_connection_is_busy(pool: ConnectionPool) -> None:
    with Outbox(pool) as box, pool.connection(), pytest.raises(StoreBusy, match="no connection to give"):
        box.status()


def test_a_closed_pool_says_so(url: str) -> None:
    pool = ConnectionPool(url, open=False)
    with Outbox(pool) as box:
        with pytest.raises(Closed, match="closed, or not open yet"):
            box.status()
        pool.open()
        assert box.status().due == 0
        pool.close()
        with pytest.raises(Closed, match="closed, or not open yet"):
            box.status()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_closed_asyncio_pool_says_so(kind: str, url: str) -> None:
    async with apool(kind, url) as pool:
        box = AsyncOutbox(pool)
        assert (await box.status()).due == 0
    with pytest.raises(Closed, match=r"closed|not open"):
        await box.status()
    await box.close()
    if kind == "asyncpg":
        box = AsyncOutbox(asyncpg.create_pool(url))
        with pytest.raises(Closed, match="not initialized"):
            await box.status()
        await box.close()


def test_the_other_kind_of_pool_is_refused(url: str) -> None:
    pool, other = ConnectionPool(url, open=False), AsyncConnectionPool(url, open=False)
    for kind in (AsyncOutbox, AsyncInbox):
        with pytest.raises(ConfigError, match="would block the event loop"):
            kind(pool)
    with pytest.raises(ConfigError, match="would block the event loop"):
        AsyncGuard.sql(pool, consumer="c")
    for front in (Outbox, Inbox, lambda target: Guard.sql(target, consumer="c")):
        with pytest.raises(ConfigError, match="is for the asyncio part"):
            front(other)
        with pytest.raises(ConfigError, match="no synchronous connections"):
            front(asyncpg.create_pool(url, loop=asyncio.new_event_loop()))


async def test_a_pool_of_another_loop_is_refused(url: str) -> None:
    loop = asyncio.new_event_loop()
    box = AsyncOutbox(asyncpg.create_pool(url, loop=loop))
    with pytest.raises(ConfigError, match="another event loop"):
        await box.status()
    await box.close()
    loop.close()


@pytest.mark.parametrize("target", [object(), 7, None])
def test_what_is_no_target_is_told_what_is(target: Any) -> None:
    for kind in (Outbox, AsyncOutbox, Inbox, AsyncInbox):
        with pytest.raises(ConfigError, match="a SQLAlchemy engine, a pool of psycopg_pool or asyncpg"):
            kind(target)


# -- functions ---------------------------------------------------------------------------------------------


async def test_a_function_that_returns_a_target(url: str, pool: ConnectionPool) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    for target in (url, engine, pool):
        with Outbox(lambda target=target: target) as box:
            assert box.status().due == 0
    async with apool("asyncpg", url) as found, AsyncOutbox(lambda: found) as box:
        assert (await box.status()).due == 0
    engine.dispose()


def test_a_function_that_returns_none_or_a_coroutine() -> None:
    async def coroutine() -> str:
        return "x"

    for target, said in ((lambda: None, "returned None"), (coroutine, "returned a coroutine")):
        with pytest.raises(ConfigError, match=said):
            Outbox(target)


# -- forks -------------------------------------------------------------------------------------------------


def test_a_forked_child_takes_nothing_of_its_parents_pool(pool: ConnectionPool, url: str) -> None:
    box = Outbox(pool)
    mine = box._db.run(ask("SELECT pg_backend_pid()"))

    def child() -> int:
        with box.transaction() as tx:
            box.write(tx, Event("Happened", 1))
            assert tx.connection.info.backend_pid != mine
        assert box.status().due == 1
        box.close()
        return 7

    assert in_a_child(child) == 7
    with box.transaction() as tx:
        box.write(tx, Event("Happened", 2))
    assert (box.status().due, box._db.run(ask("SELECT pg_backend_pid()"))) == (2, mine)
    box.close()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_nor_does_one_of_an_asyncio_program(kind: str, url: str) -> None:
    async with apool(kind, url) as pool, AsyncOutbox(pool) as box:
        mine = await box._db.run(ask("SELECT pg_backend_pid()"))

        def child() -> int:
            asyncio._set_running_loop(None)
            loop = asyncio.new_event_loop()
            return 7 if loop.run_until_complete(box._db.run(ask("SELECT pg_backend_pid()"))) != mine else 1

        assert in_a_child(child) == 7
        async with asyncio.timeout(20):
            assert await box._db.run(ask("SELECT pg_backend_pid()")) == mine


def test_a_server_that_is_not_there_is_a_lost_connection() -> None:
    pool = ConnectionPool("postgresql://relaybox@127.0.0.1:1/x", open=False)
    database = open_sync(pool, timeout=2)
    with pytest.raises(StoreError, match="no connection to PostgreSQL"):
        database.run(ask("SELECT 1"))
    database.close()
