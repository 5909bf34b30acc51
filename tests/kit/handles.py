"""Every handle a caller may write through, behind one set of verbs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from relaybox.drivers.mysql_session import options as mysql_options

from .databases import with_driver


class Handle:
    """`raw` is what goes to write(). Verbs are awaitable for sync libraries too; those run in place."""

    engine: ClassVar[str]
    is_async: ClassVar[bool]
    orm: ClassVar[bool] = False
    sees_commit: ClassVar[bool] = False  # the library tells of its commit: hooks fire, the hot path works
    raw: Any

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, *, autocommit: bool = False) -> None:
        raise NotImplementedError

    async def begin(self) -> None: ...

    async def commit(self) -> None:
        raise NotImplementedError

    async def rollback(self) -> None:
        raise NotImplementedError

    async def execute(self, text: str) -> None:
        raise NotImplementedError

    async def savepoint(self) -> None:
        await self.execute("SAVEPOINT here")

    async def rollback_to(self) -> None:
        await self.execute("ROLLBACK TO SAVEPOINT here")

    async def close(self) -> None:
        raise NotImplementedError


class DbApi(Handle):
    """Connections with commit(), rollback(), close() and cursors."""

    is_async = False

    async def commit(self) -> None:
        self.raw.commit()

    async def rollback(self) -> None:
        self.raw.rollback()

    async def execute(self, text: str) -> None:
        self.raw.cursor().execute(text)

    async def close(self) -> None:
        self.raw.close()


class Psycopg(DbApi):
    engine = "postgres"

    async def open(self, *, autocommit: bool = False) -> None:
        import psycopg

        self.raw = psycopg.connect(self.url, autocommit=autocommit)


class PsycopgCursor(Psycopg):
    async def open(self, *, autocommit: bool = False) -> None:
        await super().open(autocommit=autocommit)
        self.raw = self.raw.cursor()

    async def commit(self) -> None:
        self.raw.connection.commit()

    async def rollback(self) -> None:
        self.raw.connection.rollback()

    async def execute(self, text: str) -> None:
        self.raw.execute(text)

    async def close(self) -> None:
        self.raw.connection.close()


class Psycopg2(DbApi):
    engine = "postgres"

    async def open(self, *, autocommit: bool = False) -> None:
        import psycopg2

        self.raw = psycopg2.connect(self.url)
        self.raw.autocommit = autocommit


class AsyncDbApi(Handle):
    is_async = True

    async def commit(self) -> None:
        await self.raw.commit()

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def execute(self, text: str) -> None:
        await self.raw.execute(text)

    async def close(self) -> None:
        await self.raw.close()


class AsyncPsycopg(AsyncDbApi):
    engine = "postgres"

    async def open(self, *, autocommit: bool = False) -> None:
        import psycopg

        self.raw = await psycopg.AsyncConnection.connect(self.url, autocommit=autocommit)


class Asyncpg(AsyncDbApi):
    engine = "postgres"
    sees_commit = True

    async def open(self, *, autocommit: bool = False) -> None:
        import asyncpg

        self.raw = await asyncpg.connect(self.url)

    async def begin(self) -> None:
        self._outer = self.raw.transaction()
        await self._outer.start()

    async def commit(self) -> None:
        await self._outer.commit()

    async def rollback(self) -> None:
        await self._outer.rollback()

    async def savepoint(self) -> None:
        self._inner = self.raw.transaction()
        await self._inner.start()

    async def rollback_to(self) -> None:
        await self._inner.rollback()


class AsyncpgPool(Asyncpg):
    async def open(self, *, autocommit: bool = False) -> None:
        import asyncpg

        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.raw = await self._pool.acquire()

    async def close(self) -> None:
        await self.raw.close()
        with contextlib.suppress(Exception):
            await self._pool.release(self.raw)
        await self._pool.close()


class Sqlite3(DbApi):
    engine = "sqlite"

    async def open(self, *, autocommit: bool = False) -> None:
        import sqlite3

        self.raw = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)

    async def begin(self) -> None:
        self.raw.execute("BEGIN IMMEDIATE")


class Aiosqlite(AsyncDbApi):
    engine = "sqlite"

    async def open(self, *, autocommit: bool = False) -> None:
        import aiosqlite

        self.raw = await aiosqlite.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)

    async def begin(self) -> None:
        await self.raw.execute("BEGIN IMMEDIATE")


class Pymysql(DbApi):
    engine = "mariadb"

    async def open(self, *, autocommit: bool = False) -> None:
        import pymysql

        self.raw = pymysql.connect(**{**mysql_options(self.url), "autocommit": autocommit})


def _plain(url: str) -> dict[str, Any]:
    """Where MariaDB is, in words that every client library takes."""
    given = mysql_options(url)
    return {name: given[name] for name in ("host", "port", "user", "password", "database")}


class Mysqlclient(DbApi):
    engine = "mariadb"

    async def open(self, *, autocommit: bool = False) -> None:
        MySQLdb = pytest.importorskip("MySQLdb")  # it has no wheels: it is where somebody has built it

        self.raw = MySQLdb.connect(**_plain(self.url), autocommit=autocommit, charset="utf8mb4")


class MysqlConnector(DbApi):
    engine = "mariadb"
    pure: ClassVar[bool] = True

    async def open(self, *, autocommit: bool = False) -> None:
        import mysql.connector

        self.raw = mysql.connector.connect(**_plain(self.url), autocommit=autocommit, use_pure=self.pure)


class MysqlConnectorC(MysqlConnector):
    pure = False

    async def open(self, *, autocommit: bool = False) -> None:
        pytest.importorskip("_mysql_connector", exc_type=ImportError)  # not for every version of OpenSSL
        await super().open(autocommit=autocommit)


class Asyncmy(AsyncDbApi):
    engine = "mariadb"

    async def open(self, *, autocommit: bool = False) -> None:
        import asyncmy

        self.raw = await asyncmy.connect(**{**mysql_options(self.url), "autocommit": autocommit})

    async def execute(self, text: str) -> None:
        async with self.raw.cursor() as cursor:
            await cursor.execute(text)

    async def close(self) -> None:
        self.raw.close()


class SqlAlchemy(Handle):
    """Core and ORM, sync."""

    is_async = False
    sees_commit = True
    driver: ClassVar[str]

    async def open(self, *, autocommit: bool = False) -> None:
        import sqlalchemy as sa
        from sqlalchemy.orm import Session

        level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._engine = sa.create_engine(with_driver(self.url, self.driver), poolclass=sa.NullPool, **level)
        self.raw = Session(self._engine) if self.orm else self._engine.connect()

    async def begin(self) -> None:
        self.raw.begin()

    async def commit(self) -> None:
        self.raw.commit()

    async def rollback(self) -> None:
        self.raw.rollback()

    async def execute(self, text: str) -> None:
        import sqlalchemy as sa

        self.raw.execute(sa.text(text))

    async def savepoint(self) -> None:
        self._inner = self.raw.begin_nested()

    async def rollback_to(self) -> None:
        self._inner.rollback()

    async def close(self) -> None:
        self.raw.close()
        self._engine.dispose()


class SaConnection(SqlAlchemy):
    engine = "postgres"
    driver = "psycopg"


class SaSession(SaConnection):
    orm = True


class SaSqlite(SqlAlchemy):
    engine = "sqlite"
    driver = "pysqlite"


class SaMysql(SqlAlchemy):
    engine = "mariadb"
    driver = "pymysql"
    orm = True


class SaPsycopg2(SaConnection):
    driver = "psycopg2"


class SaMysqlclient(SaMysql):
    driver = "mysqldb"
    orm = False

    async def open(self, *, autocommit: bool = False) -> None:
        pytest.importorskip("MySQLdb")
        await super().open(autocommit=autocommit)


class SaMysqlConnector(SaMysql):
    driver = "mysqlconnector"


class AsyncSqlAlchemy(SqlAlchemy):
    is_async = True

    async def open(self, *, autocommit: bool = False) -> None:
        import sqlalchemy as sa
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
        self._engine = create_async_engine(with_driver(self.url, self.driver), poolclass=sa.NullPool, **level)
        self.raw = AsyncSession(self._engine) if self.orm else await self._engine.connect()

    async def begin(self) -> None:
        await self.raw.begin()

    async def commit(self) -> None:
        await self.raw.commit()

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def execute(self, text: str) -> None:
        import sqlalchemy as sa

        await self.raw.execute(sa.text(text))

    async def savepoint(self) -> None:
        self._inner = await self.raw.begin_nested()

    async def rollback_to(self) -> None:
        await self._inner.rollback()

    async def close(self) -> None:
        await self.raw.close()
        await self._engine.dispose()


class SaAsyncConnection(AsyncSqlAlchemy):
    engine = "postgres"
    driver = "asyncpg"


class SaAsyncSession(SaAsyncConnection):
    orm = True


class SaAsyncSessionPsycopg(SaAsyncSession):
    driver = "psycopg"


class SaAiosqlite(AsyncSqlAlchemy):
    engine = "sqlite"
    driver = "aiosqlite"
    orm = True


class SaAsyncmy(AsyncSqlAlchemy):
    engine = "mariadb"
    driver = "asyncmy"


class Django(Handle):
    """One alias per handle. Django guards against use in an event loop; these tests use it there on purpose."""

    engine = "postgres"
    is_async = False
    sees_commit = True

    async def open(self, *, autocommit: bool = False) -> None:
        import os
        import uuid

        import django
        from django.conf import settings
        from django.db import connections

        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
        if not settings.configured:
            settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
            django.setup()
        self._alias = f"flow_{uuid.uuid4().hex[:8]}"
        connections.databases[self._alias] = connections.configure_settings({"default": self._database()})["default"]
        self.raw = connections[self._alias]

    def _database(self) -> dict[str, Any]:
        from urllib.parse import urlsplit

        parts = urlsplit(self.url)
        address = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
        return {"ENGINE": "django.db.backends.postgresql", **address}

    async def begin(self) -> None:
        self._blocks = [self._atomic()]

    def _atomic(self) -> Any:
        from django.db import transaction

        block = transaction.Atomic(self._alias, savepoint=True, durable=False)
        block.__enter__()
        return block

    async def commit(self) -> None:
        self._blocks.pop().__exit__(None, None, None)

    async def rollback(self) -> None:
        error = ZeroDivisionError()
        while self._blocks:
            self._blocks.pop().__exit__(ZeroDivisionError, error, None)

    async def savepoint(self) -> None:
        self._blocks.append(self._atomic())

    async def rollback_to(self) -> None:
        self._blocks.pop().__exit__(ZeroDivisionError, ZeroDivisionError(), None)

    async def execute(self, text: str) -> None:
        with self.raw.cursor() as cursor:
            cursor.execute(text)

    async def close(self) -> None:
        from django.db import connections

        with contextlib.suppress(Exception):
            self.raw.in_atomic_block = False
            self.raw.close()
        connections.databases.pop(self._alias, None)


class DjangoSqlite(Django):
    engine = "sqlite"

    def _database(self) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.url.removeprefix("sqlite:///")}


HANDLES: tuple[type[Handle], ...] = (
    Django,
    DjangoSqlite,
    Psycopg,
    PsycopgCursor,
    Psycopg2,
    AsyncPsycopg,
    Asyncpg,
    AsyncpgPool,
    SaConnection,
    SaSession,
    SaPsycopg2,
    SaAsyncConnection,
    SaAsyncSession,
    SaAsyncSessionPsycopg,
    Sqlite3,
    Aiosqlite,
    SaSqlite,
    SaAiosqlite,
    Pymysql,
    Mysqlclient,
    MysqlConnector,
    MysqlConnectorC,
    Asyncmy,
    SaMysql,
    SaMysqlclient,
    SaMysqlConnector,
    SaAsyncmy,
)


@contextlib.asynccontextmanager
async def opened(kind: type[Handle], url: str, **options: Any) -> AsyncIterator[Handle]:
    handle = kind(url)
    await handle.open(**options)
    try:
        yield handle
    finally:
        await handle.close()
