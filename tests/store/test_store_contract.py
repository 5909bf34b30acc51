"""The published store contract on every store and driver that relaybox ships."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from relaybox.drivers import AsyncDatabase, Database, open_async, open_sync
from relaybox.store.names import Tables
from relaybox.store.outbox import OutboxStore
from relaybox.store.outbox.mysql import MysqlStore
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.sqlite import SqliteStore
from relaybox.testing.servers import require
from store.contract import StoreContract


@cache
def url_for(kind: str, suite: str) -> str:
    """One database per suite: the tests make tables of their own in it."""
    return require(kind, durable=False).create_database()


@cache
def engine(url: str, driver: str) -> Engine:
    """Shared by the tests, so that they take connections from its pool as an application does."""
    return create_engine(with_driver(url, driver))


def with_driver(url: str, driver: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"{scheme.partition('+')[0]}+{driver}://{rest}"


@pytest.fixture(autouse=True)
def _folder(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.cls:
        request.instance.folder = tmp_path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    strategies = list(metafunc.cls.strategies if metafunc.cls else ())
    if "strategy" in metafunc.fixturenames:
        metafunc.parametrize("strategy", strategies)
    if "key_strategy" in metafunc.fixturenames:
        metafunc.parametrize("key_strategy", [strategy for strategy in strategies if strategy != "shards"])


class Suite(StoreContract):
    folder: Path
    kind = "postgres-wheel"
    store_type: type[OutboxStore] = PostgresStore
    strategies = ("shards", "advisory", "rows")

    def url(self, driver: str) -> str:
        return with_driver(url_for(self.kind, type(self).__name__), driver)

    def make_store(self, tables: Tables) -> OutboxStore:
        return self.store_type(tables)


class AsyncEngineSuite(Suite):
    """An async engine belongs to one event loop, and every test has its own."""

    driver: str
    engine: AsyncEngine | None = None

    def connect(self) -> AsyncDatabase:
        self.engine = self.engine or create_async_engine(self.url(self.driver))
        return open_async(self.engine)

    async def disconnect(self) -> None:
        if self.engine:
            await self.engine.dispose()


class Psycopg(Suite):
    def connect(self) -> Database:
        return open_sync(self.url("psycopg"))


class AsyncPsycopg(Suite):
    strategies = ("shards",)  # the others are the same statements, tried by the other libraries

    def connect(self) -> AsyncDatabase:
        return open_async(self.url("psycopg"))


class Asyncpg(Suite):
    def connect(self) -> AsyncDatabase:
        return open_async(self.url("asyncpg"))


class SqlAlchemyEngine(Suite):
    strategies = ("shards",)  # the others are the same statements, tried by the other libraries

    def connect(self) -> Database:
        return open_sync(engine(url_for(self.kind, type(self).__name__), "psycopg"))


class SqlAlchemyAsyncEngine(AsyncEngineSuite):
    strategies = SqlAlchemyEngine.strategies
    driver = "asyncpg"


class System:
    """Another release of the server: for the two libraries that speak its protocol; the others stand on them."""

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


class TestAsyncpgOnSystem(System, Asyncpg):
    pass


class Sqlite(Suite):
    """A file for each test: a connection reads all tables of its file before anything else."""

    store_type = SqliteStore
    strategies = ("shards",)

    def url(self, driver: str) -> str:
        return f"sqlite+{driver}:///{self.folder / 'contract.db'}"


class TestSqlite3(Sqlite):
    def connect(self) -> Database:
        return open_sync(self.url("sqlite3"))


class TestAsyncSqlite3(Sqlite):
    def connect(self) -> AsyncDatabase:
        return open_async(self.url("sqlite3"))


class TestSqlAlchemyEngineOnSqlite(Sqlite):
    engine: Engine | None = None

    def connect(self) -> Database:
        self.engine = self.engine or create_engine(self.url("pysqlite"))
        return open_sync(self.engine)

    async def disconnect(self) -> None:
        if self.engine:
            self.engine.dispose()


class TestSqlAlchemyAsyncEngineOnSqlite(Sqlite, AsyncEngineSuite):
    driver = "aiosqlite"


class MariaDB(Suite):
    kind = "mariadb"
    store_type = MysqlStore
    strategies = ("shards", "rows")


class TestPymysqlOnMariaDB(MariaDB):
    def connect(self) -> Database:
        return open_sync(self.url("pymysql"))


class TestAsyncmyOnMariaDB(MariaDB):
    def connect(self) -> AsyncDatabase:
        return open_async(self.url("asyncmy"))


class TestSqlAlchemyEngineOnMariaDB(MariaDB):
    strategies = SqlAlchemyEngine.strategies

    def connect(self) -> Database:
        return open_sync(engine(url_for(self.kind, type(self).__name__), "pymysql"))


@pytest.mark.parametrize("store_type", [PostgresStore, MysqlStore, SqliteStore])
def test_every_way_to_keep_an_order_is_tried(store_type: type[OutboxStore]) -> None:
    suites = [one for one in globals().values() if isinstance(one, type) and issubclass(one, Suite)]
    tried = {strategy for one in suites if one.store_type is store_type for strategy in one.strategies}
    assert tried == set(store_type(Tables("t")).capabilities.order_strategies)
