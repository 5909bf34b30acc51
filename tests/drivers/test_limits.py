"""The time limit of a pool of background services, and what its connections ask of the network."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from kit import until
from relaybox.drivers import AsyncDatabase, open_async, open_sync
from relaybox.errors import ConfigError, ConnectionLost, StoreBusy, StoreError
from relaybox.op import Op, Query
from relaybox.settings import Settings
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate
from relaybox.types import DeliverySettings

LIMIT = 0.5
PATIENCE = 10.0


def one() -> Op[int]:
    return int((yield Query("test.one", "SELECT 1", "rows").bind()).rows[0][0])


def slow(seconds: float) -> Op[None]:
    yield Query("test.slow", f"SELECT pg_sleep({seconds})", "rows").bind()


def napping(server: str, seconds: float) -> Op[None]:
    text = f"SELECT {'pg_sleep' if server.startswith('postgres') else 'SLEEP'}({seconds})"
    yield Query("test.slow", text, "rows").bind()


def said(text: str) -> Op[int]:
    return (yield Query("test.said", text, "count").bind()).count


def server() -> Op[int]:
    return int((yield Query("test.server", "SELECT pg_backend_pid()", "rows").bind()).rows[0][0])


@pytest.fixture
def direct() -> Iterator[str]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def gate(direct: str) -> Iterator[TcpGate]:
    with TcpGate(urlsplit(direct).port or 0) as gate:
        yield gate


@pytest_asyncio.fixture(params=["asyncpg", "psycopg"])
async def database(request: pytest.FixtureRequest, direct: str, gate: TcpGate) -> AsyncIterator[AsyncDatabase]:
    url = gate.through(direct).replace("://", f"+{request.param}://", 1)
    database = open_async(url, size=2, timeout=LIMIT)
    yield database
    await database.close()


async def warm(database: AsyncDatabase) -> set[int]:
    """All its connections are open and idle."""
    async with database.connection():
        first = await database.run(server())
    return {first, await database.run(server())}


async def test_a_statement_that_takes_too_long_is_given_up_here_and_on_the_server(
    database: AsyncDatabase, direct: str
) -> None:
    await warm(database)
    with pytest.raises(ConnectionLost, match=r"did not answer within 0\.5 s \(delivery\.database_timeout\)"):
        await database.run(slow(60))
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as look, asyncio.timeout(PATIENCE):
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
        while (await (await look.execute(running)).fetchone()) != (0,):
            await asyncio.sleep(0.01)
    assert await database.run(one()) == 1


@pytest.mark.parametrize("tx", [True, False])
async def test_one_silent_connection_is_enough_to_leave_all_idle_ones(
    database: AsyncDatabase, gate: TcpGate, tx: bool
) -> None:
    before = await warm(database)
    gate.strand()
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="database_timeout"):
        await database.run(one(), tx=tx)
    assert await database.run(one(), tx=tx) == 1
    assert time.monotonic() - started < 2 * LIMIT
    assert not before & await warm(database)


@pytest.mark.parametrize("tx", [True, False])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("engine", [False, True], ids=["ours", "an engine"])
async def test_a_connection_that_the_server_is_ending_is_lost(
    direct: str, gate: TcpGate, driver: str, engine: bool, tx: bool
) -> None:
    """Its last words have come, its end has not: asyncpg refuses such a connection by an error of its own."""
    url = gate.through(direct).replace("://", f"+{driver}://", 1)
    target = create_async_engine(url) if engine else url
    database = open_async(target, size=1, timeout=LIMIT)
    before = await database.run(server())
    await until(lambda: gate.connected == 1)  # one that only asked what the server is has gone
    gate.hold_ends()
    with psycopg.connect(direct, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [before])
    await until(lambda: gate.held_ends)
    for _ in range(2):
        await asyncio.sleep(0)  # the event loop reads what was said
    with suppress(ConnectionLost):
        assert await database.run(server(), tx=tx) != before
    assert await database.run(server(), tx=tx) != before
    await database.close()
    if not isinstance(target, str):
        await target.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_the_limit_holds_for_an_engine(direct: str, gate: TcpGate, driver: str) -> None:
    """psycopg itself waits for the word of the server when a statement is cancelled: its connection is cut."""
    engine = create_async_engine(gate.through(direct).replace("://", f"+{driver}://", 1))
    database = open_async(engine, timeout=LIMIT)
    assert await database.run(one()) == 1
    gate.strand()
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="database_timeout"):
        await database.run(one())
    assert time.monotonic() - started < LIMIT + 2.0
    assert await database.run(one()) == 1
    await database.close()
    await engine.dispose()


@pytest.mark.parametrize("tx", [True, False])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("postgres-wheel", str),
        ("mariadb", str),
        ("postgres-wheel", lambda url: create_engine(url.replace("://", "+psycopg://", 1))),
        ("mariadb", lambda url: create_engine(url.replace("://", "+pymysql://", 1))),
    ],
    ids=["psycopg", "pymysql", "engine on psycopg", "engine on pymysql"],
)
def test_the_limit_holds_in_threads(name: str, target: Callable[[str], Any], tx: bool) -> None:
    direct = require(name, durable=False).create_database()
    with TcpGate(urlsplit(direct).port or 0) as gate:
        database = open_sync(target(gate.through(direct)), timeout=LIMIT)
        assert database.run(one(), tx=tx) == 1
        gate.strand()
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"did not answer within 0\.5 s \(delivery\.database_timeout\)"):
            database.run(one(), tx=tx)
        assert LIMIT / 2 < time.monotonic() - started < LIMIT + 2.0
        assert database.run(one(), tx=tx) == 1
        database.within(PATIENCE).run(napping(name, 2 * LIMIT))
        with database.connection(), database.connection(), database.connection(), database.connection():
            with pytest.raises(StoreBusy, match=r"none of our 4 connections was free within 0\.5 s"):
                database.run(one())
        database.close()


async def test_pools_of_the_same_address_learn_of_it(database: AsyncDatabase, direct: str, gate: TcpGate) -> None:
    """Those of callers, which have no limit, would wait for ever."""
    url = gate.through(direct)
    blocking, tasks = open_sync(url), open_async(url)
    blocking.run(one())
    await tasks.run(one())
    await warm(database)
    gate.strand()
    with pytest.raises(ConnectionLost):
        await database.run(one())
    async with asyncio.timeout(PATIENCE):
        assert await tasks.run(one()) == 1
        assert await asyncio.to_thread(blocking.run, one()) == 1
    await tasks.close()
    blocking.close()


@pytest.mark.parametrize("name", ["postgres-wheel", "mariadb"])
async def test_what_a_cut_off_transaction_has_locked_is_soon_free(name: str) -> None:
    """The server cannot know that nobody speaks on that connection any more, unless we told it how long we pause."""
    direct = require(name, durable=False).create_database()
    with TcpGate(urlsplit(direct).port or 0) as gate:
        theirs, ours = open_async(gate.through(direct), timeout=LIMIT), open_async(direct, timeout=PATIENCE)
        await ours.run(said("CREATE TABLE place AS SELECT 1 AS n"), tx=False)
        async with theirs.connection() as connection:
            await connection.begin()
            await connection.execute(Query("test.lock", "UPDATE place SET n = 2", "count").bind())
            gate.strand()
            await ours.run(said("UPDATE place SET n = 3"))
        await ours.close()
        await theirs.close()


async def test_a_loop_that_stood_still_gives_up_nothing(database: AsyncDatabase) -> None:
    """A handler that computes, or a process that was frozen: the answer is there and only has to be read."""
    before = await warm(database)
    asking = asyncio.create_task(database.run(server(), tx=False))
    while len(database.idle) == 2:
        await asyncio.sleep(0)
    time.sleep(2 * LIMIT)
    assert await asking in before


async def test_connecting_is_part_of_it(database: AsyncDatabase, gate: TcpGate) -> None:
    gate.blackhole()
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="database_timeout"):
        await database.run(one())
    assert time.monotonic() - started < 2 * LIMIT
    gate.open()
    assert await database.run(one()) == 1


async def test_waiting_for_a_connection_is_part_of_it(database: AsyncDatabase) -> None:
    async with database.connection(), database.connection():
        with pytest.raises(StoreBusy, match=r"none of our 2 connections was free within 0\.5 s"):
            await database.run(one())
    assert await database.run(one()) == 1


async def test_what_may_take_longer_says_so(database: AsyncDatabase) -> None:
    await database.within(PATIENCE).run(slow(2 * LIMIT))
    await database.within(None).run(slow(2 * LIMIT))


async def test_a_program_s_own_transaction_has_no_limit(database: AsyncDatabase) -> None:
    async with database.connection() as connection:
        await connection.begin()
        await connection.execute(Query("test.slow", f"SELECT pg_sleep({2 * LIMIT})", "rows").bind())
        await connection.commit()


async def test_a_listener_that_hears_nothing_any_more_ends(database: AsyncDatabase, gate: TcpGate) -> None:
    assert database.listen is not None
    ready = asyncio.Event()
    listening = asyncio.ensure_future(database.listen("channel", ready.set, lambda: None))
    await ready.wait()
    gate.strand()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreError):
            await listening


async def test_a_listener_hears_between_two_questions(database: AsyncDatabase, direct: str) -> None:
    assert database.listen is not None
    ready, woken = asyncio.Event(), asyncio.Event()
    listening = asyncio.ensure_future(database.listen("channel", ready.set, woken.set))
    await ready.wait()
    await asyncio.sleep(3 * LIMIT)  # it has been asked whether it is there
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as other:
        await other.execute("NOTIFY channel")
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    listening.cancel()
    await asyncio.wait([listening])


# -- what connections ask of the network --------------------------------------------------------------------------

OPTIONS = {
    "SO_KEEPALIVE": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    "idle": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    "interval": (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    "count": (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    "unconfirmed": (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
}


def asked(descriptor: int) -> dict[str, int]:
    with socket.socket(fileno=socket.dup(descriptor)) as connection:
        return {name: connection.getsockopt(*option) for name, option in OPTIONS.items()}


async def asynchronously(url: str, timeout: float | None) -> dict[str, int]:
    database = open_async(url, timeout=timeout)
    try:
        async with database.connection() as connection:
            if "psycopg" in url:
                return asked(connection.raw.fileno())
            return asked(connection.raw._transport.get_extra_info("socket").fileno())
    finally:
        await database.close()


def synchronously(url: str, timeout: float | None) -> dict[str, int]:
    database = open_sync(url, timeout=timeout)
    try:
        with database.connection() as connection:
            raw = connection.raw
            return asked(raw.fileno() if url.startswith("postgres") else raw._sock.fileno())
    finally:
        database.close()


@pytest.mark.parametrize("timeout", [None, 3.0])
async def test_every_connection_of_ours_notices_a_dead_network(direct: str, timeout: float | None) -> None:
    mariadb = require("mariadb", durable=False).create_database()
    expected = {"SO_KEEPALIVE": 1, "idle": 30, "interval": 10, "count": 3, "unconfirmed": 3000 if timeout else 30000}
    for driver in ("asyncpg", "psycopg"):
        assert await asynchronously(direct.replace("://", f"+{driver}://", 1), timeout) == expected
    assert await asynchronously(mariadb, timeout) == expected
    assert synchronously(direct, timeout) == expected
    assert synchronously(mariadb, timeout) == expected


async def test_what_a_url_says_wins(direct: str) -> None:
    said = "keepalives_idle=7&keepalives_interval=2&keepalives_count=5&tcp_user_timeout=1234&connect_timeout=4"
    url = f"{direct}{'&' if '?' in direct else '?'}{said}"
    expected = {"SO_KEEPALIVE": 1, "idle": 7, "interval": 2, "count": 5, "unconfirmed": 1234}
    for driver in ("asyncpg", "psycopg"):
        assert await asynchronously(url.replace("://", f"+{driver}://", 1), 3.0) == expected
    assert synchronously(url, 3.0) == expected
    off = f"{direct}{'&' if '?' in direct else '?'}keepalives=0"
    assert (await asynchronously(off, None))["SO_KEEPALIVE"] == 0


async def test_a_number_in_a_url_must_be_one(direct: str) -> None:
    database = open_async(f"{direct}?keepalives_idle=soon".replace("://", "+asyncpg://", 1))
    with pytest.raises(ConfigError, match=r"keepalives_idle.*whole number.*'soon'"):
        await database.run(one())


# -- settings --------------------------------------------------------------------------------------------------------


def test_limits_fit_into_lease_and_ttl() -> None:
    default = DeliverySettings()
    assert default.database_timeout == timedelta(seconds=10)
    assert (default.statement_seconds, default.heartbeat_seconds, default.batch_seconds) == (10.0, 2.5, 60.0)
    patient = DeliverySettings(database_timeout="1m")
    assert (patient.statement_seconds, patient.heartbeat_seconds) == (10.0, 2.5), "a third of the lease, half the ttl"
    hasty = DeliverySettings(lease="200ms", instance_ttl="50ms")
    assert (hasty.statement_seconds, hasty.heartbeat_seconds) == (1.0, 1.0), "a healthy database gets that"
    strict = DeliverySettings(database_timeout="300ms")
    assert (strict.statement_seconds, strict.heartbeat_seconds) == (0.3, 0.3)


def test_the_environment_sets_it() -> None:
    given = Settings.load(environment={"RELAYBOX_DELIVERY_DATABASE_TIMEOUT": "4s"})
    assert given.delivery.database_timeout == timedelta(seconds=4)
    with pytest.raises(ConfigError, match="database_timeout to be a positive duration"):
        DeliverySettings(database_timeout=0)
