"""Statements that are cancelled: the server is told where it can be, and nobody waits where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio

from relaybox.drivers import AsyncDatabase, open_async
from relaybox.drivers.psycopg import connect as open_session
from relaybox.op import Op, Query
from relaybox.tasks import cancelled
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate

ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%pg_sleep(60)%%' AND pid <> %s"
LEFT = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'relaybox%%' AND datname = current_database()"


def sleep() -> Op[None]:
    yield Query("test", "SELECT pg_sleep(60)", "rows").bind()


def one() -> Op[int]:
    result = yield Query("test", "SELECT 1", "rows").bind()
    return int(result.rows[0][0])


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
    database = open_async(gate.through(direct).replace("postgresql:", f"postgresql+{request.param}:"))
    yield database
    await database.close()


async def counted(url: str, sql: str, wanted: int) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        parameters = (connection.info.backend_pid,) if "pid" in sql else ()
        while (await (await connection.execute(sql, parameters)).fetchone()) != (wanted,):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("tx", [True, False])
async def test_the_server_gives_up_too(database: AsyncDatabase, direct: str, tx: bool) -> None:
    assert await database.run(one()) == 1
    running = asyncio.create_task(database.run(sleep(), tx=tx))
    await counted(direct, ACTIVE, 1)
    async with asyncio.timeout(5):
        await cancelled(running)
        assert running.cancelled()
        await counted(direct, ACTIVE, 0)
        assert await database.run(one()) == 1


@pytest.mark.parametrize("tx", [True, False])
async def test_nobody_waits_for_a_server_that_is_not_heard(
    database: AsyncDatabase, direct: str, gate: TcpGate, tx: bool
) -> None:
    running = asyncio.create_task(database.run(sleep(), tx=tx))
    await counted(direct, ACTIVE, 1)
    gate.blackhole()
    async with asyncio.timeout(3):
        await cancelled(running)
    assert running.cancelled()
    async with asyncio.timeout(3):
        await database.close()


async def test_idle_connections_are_closed_together(database: AsyncDatabase, direct: str, gate: TcpGate) -> None:
    await asyncio.gather(*(database.run(one()) for _ in range(4)))
    gate.blackhole()
    async with asyncio.timeout(3):
        await database.close()


async def test_a_connection_that_is_not_made_yet_can_be_given_up(database: AsyncDatabase, gate: TcpGate) -> None:
    gate.blackhole()
    connecting = asyncio.create_task(database.run(one()))
    while not gate._connections:
        await asyncio.sleep(0.001)
    async with asyncio.timeout(3):
        await cancelled(connecting)
    assert connecting.cancelled()


async def test_a_listener_that_is_not_heard_ends(database: AsyncDatabase, gate: TcpGate) -> None:
    assert database.listen is not None
    ready = asyncio.Event()
    listening = asyncio.ensure_future(database.listen("channel", ready.set, lambda: None))
    await ready.wait()
    gate.blackhole()
    async with asyncio.timeout(3):
        await cancelled(listening)
    assert listening.cancelled(), "its end is no error"


async def test_nothing_is_left_behind_on_the_server(database: AsyncDatabase, direct: str) -> None:
    await asyncio.gather(*(database.run(one()) for _ in range(4)))
    running = asyncio.create_task(database.run(sleep()))
    await counted(direct, ACTIVE, 1)
    await cancelled(running)
    await database.close()
    async with asyncio.timeout(5):
        await counted(direct, LEFT, 0)


@pytest.mark.parametrize("sent", ["half a statement", "all but the commit"])
def test_what_a_silent_client_had_locked_is_free_soon(direct: str, sent: str) -> None:
    """Where the network swallows what a client sends, the server waits for the rest of it, with all its locks."""
    client = open_session(direct, timeout=0.1).raw
    client.execute("CREATE TABLE t (n integer); INSERT INTO t VALUES (1)")
    client.execute("BEGIN; UPDATE t SET n = 2")
    if sent == "half a statement":  # as asyncpg does: to be planned, and to be run when the answer is here
        client.pgconn.enter_pipeline_mode()
        client.pgconn.send_prepare(b"", b"SELECT 1")
        client.pgconn.send_flush_request()
        client.pgconn.flush()
    with psycopg.connect(direct, autocommit=True) as other:
        other.execute("SET lock_timeout = '10s'")
        other.execute("UPDATE t SET n = 3")
    client.close()
