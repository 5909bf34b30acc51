"""What adapters use of a client library beside its API, and the versions in which it was looked at.

A newer version fails here: look whether the attribute still means the same, then add the version.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from inspect import getsource, signature
from typing import Any

import aiosqlite
import asyncpg
import pytest
import sqlalchemy as sa
from asgiref.sync import SyncToAsync
from asyncmy.connection import Connection as AsyncmyConnection
from asyncpg import Connection as AsyncpgConnection
from asyncpg.pool import PoolConnectionProxy
from django.db.transaction import Atomic
from django.test import TestCase
from mysql.connector import MySQLConnection
from mysql.connector.cursor import MySQLCursor
from mysql.connector.pooling import PooledMySQLConnection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pymysql.connections import Connection as PyMySQLConnection
from sqlalchemy.orm import Session


@pytest.mark.parametrize(
    ("library", "looked_at"),
    [
        ("aiosqlite", ("0.22",)),
        ("asyncmy", ("0.2",)),
        ("asgiref", ("3.13",)),
        ("asyncpg", ("0.32",)),
        ("django", ("4.2", "5.2", "6.1")),
        ("PyMySQL", ("1.2",)),
        ("mysql-connector-python", ("9.5", "26.10")),
        ("psycopg-pool", ("3.3",)),
        ("sqlalchemy", ("2.1",)),
    ],
)
def test_the_version_is_one_that_was_looked_at(library: str, looked_at: tuple[str, ...]) -> None:
    assert ".".join(version(library).split(".")[:2]) in looked_at


def test_the_connections_of_a_session() -> None:
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session:
        connection = session.connection()
        transaction = session.get_transaction()
        assert transaction is not None
        assert transaction._connections[engine][0] is connection
    engine.dispose()


async def test_the_connection_inside_aiosqlite() -> None:
    async with aiosqlite.connect(":memory:") as connection, connection.execute("SELECT 1") as cursor:
        assert not connection._conn.in_transaction
        assert cursor._conn is connection


async def test_the_connection_of_asyncmy() -> None:
    """Before 0.2.12 it had a `_writer`."""
    connection = AsyncmyConnection(host="nowhere")
    assert hasattr(connection, "_transport") or hasattr(connection, "_writer")
    assert connection._stream_broken in (True, False)


@pytest.mark.parametrize("client", [PyMySQLConnection, AsyncmyConnection])
async def test_how_mysql_clients_log_in(client: Any) -> None:
    """Overridden where a password must not be told in clear text."""
    assert {"_request_authentication", "_process_auth"} <= client.__dict__.keys()
    made = client(host="nowhere", defer_connect=True) if client is PyMySQLConnection else client(host="nowhere")
    assert hasattr(made, "ssl") or hasattr(made, "_ssl_context")
    assert hasattr(made, "server_public_key") or hasattr(made, "_server_public_key")


def test_asyncpg_takes_a_loop() -> None:
    assert "loop" in signature(asyncpg.connect).parameters


def test_what_asyncpg_asks_about_types() -> None:
    """Overridden to ask once: numbers of types and a timeout, answered by rows and a statement of which only the name
    is looked at."""
    assert [*signature(AsyncpgConnection._introspect_types).parameters] == ["self", "typeoids", "timeout"]


def test_the_isolation_level_of_an_engine() -> None:
    engine = sa.create_engine("sqlite://", isolation_level="SERIALIZABLE")
    assert engine.dialect._on_connect_isolation_level == "SERIALIZABLE"
    engine.dispose()


def test_how_many_connections_an_engine_gives() -> None:
    engine = sa.create_engine("postgresql+psycopg://nowhere", pool_size=1, max_overflow=3)
    assert (engine.pool.size(), engine.pool._max_overflow) == (1, 3)  # type: ignore[attr-defined]


def test_the_connection_behind_a_pooled_one() -> None:
    assert "_con" in PoolConnectionProxy.__slots__


def test_the_sockets() -> None:
    assert "_transport" in AsyncpgConnection.__slots__
    assert hasattr(PyMySQLConnection, "_sock")


def test_the_block_of_a_test_case_is_marked() -> None:
    """Its transaction is never committed, and there is nothing beside it. Also what of asgiref is not documented."""
    assert Atomic("default", savepoint=True, durable=False)._from_testcase is False
    assert "_from_testcase = True" in getsource(TestCase._enter_atomics)
    assert hasattr(SyncToAsync, "context_to_thread_executor")


def test_what_mysql_connector_keeps_of_a_connection() -> None:
    """`_socket` is there without the C extension only; a cursor's `_connection` is a weak proxy with `get_self`."""
    connection = MySQLConnection()
    assert (connection._raw, connection._socket) == (False, None)
    assert MySQLCursor(connection)._connection.get_self() is connection
    assert "self._cnx = None" in getsource(PooledMySQLConnection.close)


def test_how_a_psycopg_pool_prepares_its_connections() -> None:
    prepare = print
    for kind in (ConnectionPool, AsyncConnectionPool):
        assert kind("", configure=prepare, open=False)._configure is prepare


def test_how_an_asyncpg_pool_makes_its_connections() -> None:
    """Before 0.30 it had no `_connect`."""
    loop = asyncio.new_event_loop()
    pool = asyncpg.create_pool("postgresql://x", user="u", init=print, setup=repr, connect=max, loop=loop)
    assert (pool._connect_args, pool._connect_kwargs["user"]) == (("postgresql://x",), "u")
    assert (pool._init, pool._setup, pool._connect, pool._loop) == (print, repr, max, loop)
    assert (pool._connection_class, pool._record_class) == (asyncpg.Connection, asyncpg.Record)
    loop.close()
