"""What only a database can do: mark in the caller's transaction, through every handle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit import one, rows
from kit.handles import HANDLES, Django, DjangoSqlite, Handle, opened
from relaybox import AsyncGuard, ConfigError, Guard, NoTransaction, Outbox
from relaybox.drivers import open_sync
from relaybox.drivers.spi import Connection
from relaybox.errors import ConnectionLost, InProgress, SchemaDrift, SchemaMissing, StoreBusy
from relaybox.testing.clock import ManualClock
from relaybox.testing.servers import MariaDBServer

from .conftest import make_place
from .kit import EffectFailed, Place, deliver, fail, quicken, until


@pytest.fixture(params=HANDLES, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Handle]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def home(kind: type[Handle], tmp_path: Path) -> Place:
    """The place of a handle, with a table for effects."""
    return with_effects(make_place(kind.engine, tmp_path))


def with_effects(place: Place) -> Place:
    rows(place.url, "CREATE TABLE business (n bigint)")
    return place


def effects(place: Place) -> int:
    return int(one(place.url, "SELECT count(*) FROM business"))


async def test_the_mark_shares_the_fate_of_the_transaction(kind: type[Handle], home: Place) -> None:
    async with home.open(is_async=kind.is_async) as guard, opened(kind, home.url) as handle:
        for ending, expected in (("rollback", True), ("commit", True), ("commit", False), ("rollback", False)):
            await handle.begin()
            first = await guard.call("mark", handle.raw, "m1")
            if first:
                await handle.execute("INSERT INTO business VALUES (1)")
            await getattr(handle, ending)()
            assert first is expected
    assert effects(home) == 1
    assert home.state("m1") == "done"


async def test_a_savepoint_rolled_back_takes_the_mark_along(kind: type[Handle], home: Place) -> None:
    async with home.open(is_async=kind.is_async) as guard, opened(kind, home.url) as handle:
        await handle.begin()
        await handle.savepoint()
        assert await guard.call("mark", handle.raw, "m1")
        await handle.rollback_to()
        assert await guard.call("mark", handle.raw, "m1")
        assert not await guard.call("mark", handle.raw, "m1")
        await handle.commit()


async def test_outside_a_transaction_nothing_is_marked(kind: type[Handle], home: Place) -> None:
    async with home.open(is_async=kind.is_async) as guard, opened(kind, home.url, autocommit=True) as handle:
        with pytest.raises(NoTransaction, match="mark\\(\\) needs an open transaction"):
            await guard.call("mark", handle.raw, "m1")
    assert home.state("m1") is None


async def test_a_mark_knows_work_in_progress(kind: type[Handle], home: Place) -> None:
    """Both ways may meet on one message; neither takes the other's unfinished work for done."""
    async with home.open(is_async=kind.is_async) as guard, home.open() as block, opened(kind, home.url) as handle:
        async with block("m1"):
            await handle.begin()
            with pytest.raises(InProgress):
                await guard.call("mark", handle.raw, "m1")
            await handle.rollback()
        await handle.begin()
        assert not await guard.call("mark", handle.raw, "m1")
        await handle.commit()


# -- two transactions at once --------------------------------------------------------------------------

WAITING = {
    "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
async def test_a_concurrent_duplicate_waits_for_the_first(engine: str, ending: str, tmp_path: Path) -> None:
    place = make_place(engine, tmp_path)
    database = open_sync(place.url)
    guard = place.open().raw

    def second() -> bool:
        with database.connection() as connection:
            connection.begin()
            first: bool = guard.mark(connection, "m1")
            connection.commit()
            return first

    with ThreadPoolExecutor(1) as thread, database.connection() as connection:
        connection.begin()
        assert guard.mark(connection, "m1")
        answer = thread.submit(second)
        await until(lambda: one(place.url, WAITING[engine]), "waiting transaction")
        assert not answer.done()
        getattr(connection, ending)()
        assert answer.result(20) is (ending == "rollback")
    database.close()
    guard.close()


async def test_sqlite_lets_one_transaction_write_at_a_time(tmp_path: Path) -> None:
    import sqlite3

    place = make_place("sqlite", tmp_path)
    guard = place.open().raw
    file = place.url.removeprefix("sqlite:///")
    first = sqlite3.connect(file, isolation_level=None)
    second = sqlite3.connect(file, isolation_level=None, timeout=0)
    first.execute("BEGIN")
    assert guard.mark(first, "m1")
    second.execute("BEGIN")
    with pytest.raises(StoreBusy):
        guard.mark(second, "m1")
    first.commit()
    assert not guard.mark(second, "m1")
    for connection in (first, second):
        connection.close()
    guard.close()


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
async def test_a_mark_that_the_snapshot_does_not_show_is_seen_or_refused(engine: str, tmp_path: Path) -> None:
    """REPEATABLE READ: MySQL looks past the snapshot, PostgreSQL asks for the transaction to be run again."""
    place = with_effects(make_place(engine, tmp_path))
    guard = place.open().raw
    database = open_sync(place.url)
    with database.connection() as old, database.connection() as new:
        _repeatable(old)
        assert old.in_transaction()
        new.begin()
        assert guard.mark(new, "m1")
        new.commit()
        if engine == "postgres":
            with pytest.raises(StoreBusy):
                guard.mark(old, "m1")
        else:
            assert not guard.mark(old, "m1")
        old.rollback()
    database.close()
    guard.close()


def _repeatable(connection: Connection) -> None:
    cursor = connection.raw.cursor()
    if connection.dialect == "postgres":
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    else:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SELECT count(*) FROM business")
    cursor.fetchall()


async def test_a_narrow_character_set_changes_no_key(tmp_path: Path) -> None:
    import pymysql

    from relaybox.drivers.mysql_session import options

    place = make_place("mariadb", tmp_path)
    guard = place.open().raw
    narrow = pymysql.connect(**{**options(place.url), "charset": "latin1", "autocommit": False})
    assert guard.mark(narrow, "日本")
    assert guard.mark(narrow, "日木")
    narrow.commit()
    assert not guard.mark(narrow, "日本")
    narrow.close()
    with guard("日本") as first:
        assert not first
    guard.close()


# -- time ----------------------------------------------------------------------------------------------


async def test_a_lease_ends_and_a_zombie_can_do_nothing(sql: Place, is_async: bool) -> None:
    clock = ManualClock()
    async with sql.open(is_async=is_async, lease="30s", clock=clock) as guard:
        marks = guard.raw._marks

        async def run(steps: Any) -> Any:
            result = guard.raw._run(steps)
            return await result if is_async else result

        assert await run(marks.enter("m1", 1)) == "first"
        clock.advance(29)
        assert await run(marks.enter("m1", 2)) == "in progress"
        assert await run(marks.renew("m1", 1))
        clock.advance(29)
        assert await run(marks.enter("m1", 2)) == "in progress"
        clock.advance(1)
        assert await run(marks.enter("m1", 2)) == "first"
        for zombie in (marks.renew, marks.finish, marks.leave):
            assert not await run(zombie("m1", 1))
        assert sql.mark("m1") == ("in-progress", "2")
        assert await run(marks.finish("m1", 2))
        for zombie in (marks.renew, marks.finish, marks.leave):
            assert not await run(zombie("m1", 1))
        assert sql.mark("m1") == ("done", "2")


async def test_an_async_block_is_renewed_every_third_of_its_lease(sql: Place) -> None:
    clock = ManualClock()
    guard = sql.open(is_async=True, lease="30s", clock=clock).raw
    assert isinstance(guard, AsyncGuard)
    async with guard, guard("m1"):
        for _ in range(6):  # two leases
            await clock.wait_for_sleepers()
            clock.advance(10)
        await clock.wait_for_sleepers()
        with pytest.raises(InProgress):
            async with guard("m1"):
                pytest.fail("entered")


async def test_an_expired_mark_counts_no_more_and_is_purged(sql: Place, is_async: bool) -> None:
    clock = ManualClock()
    async with sql.open(is_async=is_async, ttl="1h", clock=clock) as guard:
        for n in range(5):
            async with guard(f"old{n}"):
                pass
        clock.advance(hours=1)
        async with guard("old0") as first:
            assert first
        async with guard("new") as first:
            assert first
        assert await guard.call("purge", batch_size=2) == 4
        assert await guard.call("purge", batch_size=2) == 0
        assert sorted(row[0] for row in keys(sql)) == ["new", "old0"]


def keys(place: Place) -> list[tuple[str]]:
    return [
        (row[0].decode() if isinstance(row[0], bytes) else row[0],)
        for row in rows(place.url, "SELECT event_id FROM relaybox_guard")
    ]


async def test_a_purge_takes_an_expired_lease_and_the_owner_finishes_all_the_same(sql: Place) -> None:
    clock = ManualClock()
    gone: list[int] = []
    async with sql.open(lease="30s", clock=clock) as guard:
        await deliver(guard, "m1", lambda: clock.advance(30), lambda: gone.append(guard.raw.purge()))
        for wrong in (0, -1):
            with pytest.raises(ConfigError, match="batch_size"):
                await guard.call("purge", batch_size=wrong)
    assert gone == [1]
    assert sql.state("m1") == "done"


# -- the database is away --------------------------------------------------------------------------------


async def test_a_database_that_goes_hides_no_error_and_ends_no_renewal(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with MariaDBServer.from_system(durable=False) as server:
        place = Place("mariadb", server.create_database())
        place.migrate()

        async def outage() -> None:
            server.stop()
            await until(lambda: "could not be renewed" in caplog.text, "failed renewal")

        async def recovery() -> None:
            server.start()
            seen = place.until("m2")
            await until(lambda: place.until("m2") > seen, "renewal")

        async with place.open(is_async=is_async, lease="30s") as guard:
            quicken(guard.raw)
            with pytest.raises(EffectFailed):
                await deliver(guard, "m1", outage, fail)
            assert "could not be taken back" in caplog.text
            with pytest.raises(ConnectionLost):
                await deliver(guard, "m2")
            server.start()
            caplog.clear()
            await deliver(guard, "m2", outage, recovery)
        assert place.state("m2") == "done"


# -- the table -----------------------------------------------------------------------------------------


def tables(url: str) -> set[str]:
    if url.startswith("sqlite"):
        return {row[0] for row in rows(url, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    here = "current_schema()" if url.startswith("postgres") else "database()"
    return {
        row[0] for row in rows(url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = {here}")
    }


async def test_a_consumer_needs_no_outbox(sql: Place) -> None:
    assert tables(sql.url) == {"relaybox_guard", "relaybox_guard_migration"}


async def test_guard_and_outbox_live_side_by_side(sql: Place) -> None:
    box = Outbox(sql.url)
    assert box.migrate()
    assert box.migrate() == []
    box.verify()
    with Guard.sql(sql.url, consumer="email") as guard:
        assert guard.migrate() == []
        guard.verify()
        with box.transaction() as tx:
            assert guard.mark(tx, "m1")
        with box.transaction() as tx:
            assert not guard.mark(tx, "m1")
    box.close()


async def test_many_migrate_at_once(sql: Place) -> None:
    def migrate() -> int:
        with Guard.sql(sql.url, consumer="email", table="another") as guard:
            start.wait()
            return len(guard.migrate())

    start = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        done = [thread.result(60) for thread in [threads.submit(migrate) for _ in range(4)]]
    assert sorted(done) == [0, 0, 0, 1]


async def test_the_table_is_compared_with_what_it_should_be(sql: Place, is_async: bool) -> None:
    async with sql.open(is_async=is_async, table="missing") as guard:
        with pytest.raises(SchemaMissing):
            await guard.call("verify")
        with pytest.raises(SchemaMissing, match="call migrate"):
            async with guard("m1"):
                pytest.fail("entered")
        assert [migration.name for migration in await guard.call("migrate")] == ["guard"]
        await guard.call("verify")
        assert run_drift(sql, "missing") == []
        drop = "DROP INDEX missing_until" + (" ON missing" if sql.kind == "mariadb" else "")
        rows(sql.url, drop)
        assert run_drift(sql, "missing") == ["index missing_until is missing"]
        rows(sql.url, "UPDATE missing_migration SET checksum = 'x'")
        with pytest.raises(SchemaDrift):
            await guard.call("verify")


def run_drift(place: Place, table: str) -> list[str]:
    with Guard.sql(place.url, consumer="email", table=table) as guard:
        drift: list[str] = guard._run(guard._sql().schema.drift())
        return drift


async def test_table_and_schema_have_any_name(tmp_path: Path, is_async: bool) -> None:
    place = make_place("postgres", tmp_path)
    async with place.open(is_async=is_async, table="Select", schema="Order") as guard:
        await guard.call("migrate")
        async with guard("m1") as first:
            assert first
    assert rows(place.url, 'SELECT event_id FROM "Order"."Select"') == [("m1",)]
    assert rows(place.url, "SELECT count(*) FROM relaybox_guard") == [(0,)]
    sqlite = make_place("sqlite", tmp_path)
    with pytest.raises(ConfigError, match="SQLite has no schemas"):
        sqlite.open(is_async=is_async, schema="x")
    with pytest.raises(ConfigError, match="table name"):
        sqlite.open(is_async=is_async, table="x; DROP TABLE users")


# -- handles and targets -------------------------------------------------------------------------------


async def test_a_handle_of_another_database_is_refused(tmp_path: Path) -> None:
    import sqlite3

    place = make_place("postgres", tmp_path)
    other = sqlite3.connect(":memory:")
    with place.open().raw as guard, pytest.raises(ConfigError, match="on postgres, the handle is a sqlite"):
        guard.mark(other, "m1")
    other.close()


async def test_an_async_handle_needs_an_async_guard(tmp_path: Path) -> None:
    import aiosqlite

    place = make_place("sqlite", tmp_path)
    async with aiosqlite.connect(place.url.removeprefix("sqlite:///")) as handle:
        with place.open().raw as guard, pytest.raises(ConfigError, match="use AsyncGuard"):
            guard.mark(handle, "m1")


async def test_redis_cannot_join_a_transaction(redis_place: Place) -> None:
    async with redis_place.open() as guard:
        for verb, arguments in (("mark", (object(), "m1")), ("migrate", ()), ("purge", ()), ("verify", ())):
            with pytest.raises(ConfigError, match=r"made with Guard\.sql"):
                await guard.call(verb, *arguments)


@pytest.mark.parametrize(
    ("engine", "driver"),
    [("postgres", "psycopg"), ("postgres", "asyncpg"), ("sqlite", "pysqlite"), ("sqlite", "aiosqlite"),
     ("mariadb", "pymysql"), ("mariadb", "asyncmy")],
)  # fmt: skip
async def test_an_engine_gives_the_connections(engine: str, driver: str, tmp_path: Path) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    from kit import with_driver

    place = make_place(engine, tmp_path)
    is_async = driver in ("asyncpg", "aiosqlite", "asyncmy")
    made: Any = (create_async_engine if is_async else create_engine)(with_driver(place.url, driver))
    async with Place(engine, made).open(is_async=is_async) as guard:
        await guard.call("migrate")
        with pytest.raises(ZeroDivisionError):
            async with guard("m1"):
                raise ZeroDivisionError
        for expected in (True, False):
            async with guard("m1") as first:
                assert first is expected
        assert await guard.call("purge") == 0
    await made.dispose() if is_async else made.dispose()
    assert place.state("m1") == "done"


@pytest.mark.parametrize("kind", [Django, DjangoSqlite], ids=lambda kind: kind.engine)
async def test_django_gives_the_connections(kind: type[Handle], home: Place, is_async: bool) -> None:
    async with opened(kind, home.url) as handle, Place(home.kind, handle.raw).open(is_async=is_async) as guard:
        for expected in (True, False):
            async with guard("m1") as first:
                assert first is expected
    assert home.state("m1") == "done"
