"""asyncmy: callers' connections and our own. What it shares with PyMySQL is tested there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncmy
import pytest
from asyncmy.cursors import DictCursor

from relaybox.drivers import AsyncDatabase, open_async, open_sync, wrap
from relaybox.drivers.asyncmy import AsyncmyConnection, aconnect
from relaybox.drivers.mysql_session import options
from relaybox.errors import ConnectionLost, DuplicateEvent, SchemaMissing, StoreBusy, StoreError
from relaybox.event import Event
from relaybox.ids import new_token
from relaybox.op import Op, Query, Statement, arun
from relaybox.store.claims import Claim
from relaybox.store.outbox.mysql import MysqlStore
from relaybox.testing.servers import MariaDBServer, require

STORE = MysqlStore()
ROWS_ONLY = "TRANSACTION ISOLATION LEVEL READ COMMITTED"  # locks no gaps: what is new may be inserted
LEASE = timedelta(seconds=30)
PAYLOADS = [b"", b"\x00", bytes(range(256)), "é😀".encode(), b"'\"\\%s:now{}", b"x" * 100_000]

Connect = Callable[..., Awaitable[Any]]


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
async def database(url: str) -> AsyncIterator[AsyncDatabase]:
    database = open_async(url)
    yield database
    await database.close()


@pytest.fixture
async def callers(url: str) -> AsyncIterator[Connect]:
    """Connections as an application makes them: with the library's own defaults."""
    made: list[Any] = []

    async def make(**extra: Any) -> Any:
        given = {name: value for name, value in options(url).items() if name not in ("autocommit", "charset")}
        made.append(await asyncmy.connect(**{**given, **extra}))
        return made[-1]

    yield make
    for raw in made:
        await raw.ensure_closed()


async def test_without_autocommit_the_next_statement_begins(callers: Connect) -> None:
    adapter = wrap(await callers())
    assert isinstance(adapter, AsyncmyConnection)
    assert adapter.in_transaction()


async def test_autocommit_is_no_transaction_until_begin(callers: Connect) -> None:
    raw = await callers(autocommit=True)
    adapter = wrap(raw)
    assert not adapter.in_transaction()
    await raw.begin()
    assert adapter.in_transaction()
    await raw.commit()
    assert not adapter.in_transaction()


async def test_a_cursor_stands_for_its_connection(callers: Connect) -> None:
    raw = await callers()
    assert wrap(raw.cursor()).raw is raw


async def test_what_is_written_lives_and_dies_with_the_callers_transaction(
    callers: Connect, database: AsyncDatabase
) -> None:
    raw = await callers(cursor_cls=DictCursor)
    lost, kept = Event("A", 1), Event("A", 1)
    await arun(STORE.write([lost], None, None), AsyncmyConnection(raw))
    await raw.rollback()
    await arun(STORE.write([kept], None, None), AsyncmyConnection(raw))
    assert await database.run(STORE.stored([lost.id, kept.id])) == set()
    await raw.commit()
    assert await database.run(STORE.stored([lost.id, kept.id])) == {kept.id}


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"charset": "latin1"},
        {"stmt_cache_size": 10},
        {"init_command": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'"},
    ],
)
async def test_bytes_and_text_are_kept_whatever_the_callers_session(
    callers: Connect, database: AsyncDatabase, extra: dict[str, Any]
) -> None:
    raw = await callers(**extra)
    events = [
        Event("Ä😀'\\", payload_bytes=payload, key="k'\"\\é中", headers={"h": "v'\"\\😀\x01"}) for payload in PAYLOADS
    ]
    await arun(STORE.write(events, None, None), AsyncmyConnection(raw))
    await raw.commit()
    claimed = await database.run(STORE.claim(Claim(1, new_token(), LEASE), 100, None))
    back = [Event.stored(c.row) for c in claimed]
    assert [(e.body, e.type, e.key, e.headers["h"], e.occurred_at) for e in back] == [
        (e.body, e.type, e.key, e.headers["h"], e.occurred_at) for e in events
    ]


async def test_errors_are_ours(database: AsyncDatabase) -> None:
    async with database.connection() as connection:
        with pytest.raises(SchemaMissing, match="migrate"):
            await connection.execute(rows("SELECT * FROM absent"))
    await database.run(STORE.write([Event("A", 1, id="secret-id")], None, None))
    with pytest.raises(DuplicateEvent) as caught:
        await database.run(STORE.write([Event("A", 1, id="secret-id")], None, None))
    assert "secret" not in str(caught.value)


async def test_a_lock_wait_rolls_the_whole_transaction_back(callers: Connect, database: AsyncDatabase) -> None:
    await database.run(STORE.write([Event("A", 1)], None, None))
    blocker = await callers()
    async with blocker.cursor() as cursor:
        await cursor.execute(f"SET SESSION {ROWS_ONLY}")
        await cursor.execute("SELECT * FROM outbox_event FOR UPDATE")
    half = Event("A", 1)

    def write_then_wait() -> Op[None]:
        yield from STORE.write([half], None, None)
        yield rows("SELECT * FROM outbox_event FOR UPDATE NOWAIT")

    with pytest.raises(StoreBusy):
        await database.run(write_then_wait())
    await blocker.rollback()
    await database.run(STORE.write([Event("A", 1)], None, None))
    assert await database.run(STORE.stored([half.id])) == set()


async def test_a_killed_connection_is_lost_and_replaced(server: MariaDBServer, database: AsyncDatabase) -> None:
    async with database.connection() as connection:
        [(number,)] = (await connection.execute(rows("SELECT connection_id()"))).rows
        server.kill_connection(number)
        with pytest.raises(ConnectionLost):
            await connection.execute(rows("SELECT 1"))
        assert connection.broken()
    assert await database.run(STORE.stored(["x"])) == set()


async def test_a_cancelled_statement_spoils_its_connection(callers: Connect, url: str) -> None:
    """The reply is still on its way: nobody may read it as the answer to something else."""
    blocker = await callers()
    async with blocker.cursor() as cursor:
        await cursor.execute("SELECT GET_LOCK('relaybox.test', 0)")
    connection = await aconnect(url)
    waiting = asyncio.ensure_future(connection.execute(rows("SELECT GET_LOCK('relaybox.test', 60)")))
    async with blocker.cursor() as cursor:
        while True:  # until the server has it
            await cursor.execute(
                "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'SELECT GET_LOCK%60)'"
            )
            if (await cursor.fetchone())[0]:
                break
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.broken()
    await connection.close()


async def test_a_closed_handle_says_so(callers: Connect) -> None:
    raw = await callers()
    adapter = AsyncmyConnection(raw)
    await raw.ensure_closed()
    assert adapter.broken()
    with pytest.raises(ConnectionLost):
        await adapter.execute(rows("SELECT 1"))


async def test_nobody_listens_or_lets_us_in(url: str) -> None:
    with pytest.raises(ConnectionLost):
        await aconnect("mysql://u:hush@127.0.0.1:1/x")
    with pytest.raises(StoreError, match="denied") as caught:
        await aconnect(url.replace(":relaybox@", ":hush@"))
    assert "hush" not in str(caught.value)


async def test_our_own_sessions(url: str, database: AsyncDatabase) -> None:
    connection = await aconnect(url)
    names = "@@tx_isolation, @@autocommit, @@time_zone, @@character_set_connection"
    [settings] = (await connection.execute(rows(f"SELECT {names}"))).rows
    assert settings == ("READ-COMMITTED", 1, "+00:00", "utf8mb4")
    assert not connection.in_transaction()
    await connection.begin()
    assert connection.in_transaction()
    await connection.rollback()
    assert not connection.in_transaction()
    await connection.close()
    await connection.close()
    assert connection.broken()
    now = datetime.now(UTC)
    instance = await database.run(STORE.register("me", "single", LEASE, now))
    assert await database.run(STORE.beat(instance, LEASE, now))
