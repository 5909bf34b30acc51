"""The published store contract on every store and driver that relaybox ships."""

from __future__ import annotations

from functools import cache

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from relaybox.drivers import AsyncDatabase, Database, open_async, open_sync
from relaybox.store.names import Tables
from relaybox.store.postgres import PostgresStore
from relaybox.testing.servers import require
from relaybox.testing.store_contract import StoreContract


@cache
def url_for(kind: str, suite: str) -> str:
    """One database per suite: the tests make tables of their own in it."""
    return require(kind, durable=False).create_database()


def with_driver(url: str, driver: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"{scheme.partition('+')[0]}+{driver}://{rest}"


class Postgres(StoreContract):
    kind = "postgres-wheel"

    def url(self) -> str:
        return url_for(self.kind, type(self).__name__)

    def make_store(self, tables: Tables) -> PostgresStore:
        return PostgresStore(tables)


class Psycopg(Postgres):
    def connect(self) -> Database:
        return open_sync(self.url())


class AsyncPsycopg(Postgres):
    def connect(self) -> AsyncDatabase:
        return open_async(with_driver(self.url(), "psycopg"))


class Asyncpg(Postgres):
    def connect(self) -> AsyncDatabase:
        return open_async(with_driver(self.url(), "asyncpg"))


class SqlAlchemyEngine(Postgres):
    def connect(self) -> Database:
        return open_sync(create_engine(with_driver(self.url(), "psycopg"), poolclass=NullPool))


class SqlAlchemyAsyncEngine(Postgres):
    def connect(self) -> AsyncDatabase:
        return open_async(create_async_engine(with_driver(self.url(), "asyncpg"), poolclass=NullPool))


class System:
    kind = "postgres-system"


class TestPsycopgOnWheel(Psycopg):
    pass


class TestAsyncPsycopgOnWheel(AsyncPsycopg):
    pass


class TestAsyncpgOnWheel(Asyncpg):
    pass


class TestSqlAlchemyEngineOnWheel(SqlAlchemyEngine):
    pass


class TestSqlAlchemyAsyncEngineOnWheel(SqlAlchemyAsyncEngine):
    pass


class TestPsycopgOnSystem(System, Psycopg):
    pass


class TestAsyncPsycopgOnSystem(System, AsyncPsycopg):
    pass


class TestAsyncpgOnSystem(System, Asyncpg):
    pass


class TestSqlAlchemyEngineOnSystem(System, SqlAlchemyEngine):
    pass


class TestSqlAlchemyAsyncEngineOnSystem(System, SqlAlchemyAsyncEngine):
    pass
