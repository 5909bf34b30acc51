"""Django handles: the caller's atomic block, on_commit callbacks, and connections of our own beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

from django.db import connection as default_connection
from django.db import connections, transaction

from relaybox import AsyncOutbox, Inbox, Listeners, Outbox, Reject, Retry, Settings
from relaybox.drivers import open_async, open_sync, wrap
from relaybox.drivers.django import _mysql_tls, url_of
from relaybox.errors import ConfigError, ConnectionLost, DuplicateEvent, SchemaMissing, StoreError, UnsupportedByEngine
from relaybox.event import Event
from relaybox.op import Copy, Query, run
from relaybox.store.claims import Claim
from relaybox.store.names import Tables
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.sqlite import SqliteStore
from relaybox.testing import deliver_pending
from relaybox.testing.servers import require
from relaybox.types import DeliverySettings

T0 = datetime(2031, 1, 1, tzinfo=UTC)


def register(alias: str, **database: Any) -> None:
    """Add a database as settings.DATABASES would have."""
    connections.databases[alias] = connections.configure_settings({"default": database})["default"]


@cache
def postgres_url() -> str:
    return require("postgres-wheel", durable=False).create_database()


def postgres_settings() -> dict[str, Any]:
    parts = urlsplit(postgres_url())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


class Place:
    """One Django database with its store."""

    def __init__(self, alias: str, store: Any) -> None:
        self.alias = alias
        self.store = store
        self.own = open_sync(connections[alias])
        self.own.run(store.migrate())
        self.calls: list[str] = []

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    def atomic(self) -> Any:
        return transaction.atomic(using=self.alias)

    def put(self, *events: Event, claim: Claim | None = None) -> None:
        adapter = wrap(self.connection)
        assert not adapter.is_async
        run(self.store.write(events or [Event("A", None)], claim, T0), adapter)

    def listen(self, name: str = "commit") -> None:
        assert wrap(self.connection).after_commit(lambda: self.calls.append(name))

    def stored(self, *ids: str) -> set[str]:
        return self.own.run(self.store.stored(ids))


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    alias = f"relaybox_{request.param}"
    if request.param == "postgres":
        register(alias, **postgres_settings())
        store: Any = PostgresStore(Tables(f"t{abs(hash(request.node.name)) % 10**9}"))
    else:
        register(alias, ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "x.db")
        store = SqliteStore()
    place = Place(alias, store)
    yield place
    place.own.close()
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]


def test_rows_share_the_fate_of_the_atomic_block(place: Place) -> None:
    events = [Event("100%", {"a": "%s"}, key="é", headers={"h": "v"}) for _ in range(3)]
    with place.atomic():
        place.put(events[0])
        place.put(*events[1:])
    assert place.stored(*(e.id for e in events)) == {e.id for e in events}
    with suppress(ZeroDivisionError), place.atomic():
        place.put(Event("A", None, id="undone"))
        raise ZeroDivisionError
    assert place.stored("undone") == set()


def test_autocommit_is_no_transaction(place: Place) -> None:
    adapter = wrap(place.connection)
    assert not adapter.in_transaction()
    assert adapter.silent
    assert not adapter.after_commit(lambda: None)
    with place.atomic():
        assert wrap(place.connection).in_transaction()
        assert not wrap(place.connection).silent


def test_autocommit_switched_off_is_a_transaction_without_callbacks(place: Place) -> None:
    transaction.set_autocommit(False, using=place.alias)
    try:
        adapter = wrap(place.connection)
        assert adapter.in_transaction()
        assert adapter.silent
        assert not adapter.after_commit(lambda: None)
        place.put(Event("A", None, id="by-hand"))
        transaction.commit(using=place.alias)
    finally:
        transaction.set_autocommit(True, using=place.alias)
    assert place.stored("by-hand") == {"by-hand"}


def test_callbacks_come_once_after_the_commit_of_their_own_block(place: Place) -> None:
    for n in range(2):
        with place.atomic():
            place.put(Event("A", None, id=f"e{n}"))
            place.listen(f"commit{n}")
            assert place.calls == [f"commit{m}" for m in range(n)]
    with place.atomic():
        place.put()
    assert place.calls == ["commit0", "commit1"]


def test_a_rolled_back_block_calls_nobody(place: Place) -> None:
    with suppress(ZeroDivisionError), place.atomic():
        place.put()
        place.listen()
        assert not wrap(place.connection).after_rollback(lambda: None)
        raise ZeroDivisionError
    with place.atomic():
        place.put()
    assert place.calls == []


def test_a_rolled_back_savepoint_takes_its_callbacks_with_it(place: Place) -> None:
    with place.atomic():
        place.put(Event("A", None, id="outer"))
        place.listen("outer")
        with suppress(ZeroDivisionError), place.atomic():
            place.put(Event("A", None, id="inner"))
            place.listen("inner")
            raise ZeroDivisionError
        with place.atomic():
            place.put(Event("A", None, id="kept"))
            place.listen("kept")
        assert place.calls == []
    assert place.calls == ["outer", "kept"]
    assert place.stored("outer", "inner", "kept") == {"outer", "kept"}


def test_a_savepoint_by_hand_is_not_trusted(place: Place) -> None:
    """Django keeps the callback though the row is gone: the hand-over must look."""
    with place.atomic():
        savepoint = transaction.savepoint(using=place.alias)
        place.put(Event("A", None, id="gone"))
        place.listen()
        transaction.savepoint_rollback(savepoint, using=place.alias)
    assert place.calls == ["commit"]
    assert place.stored("gone") == set()


def test_errors_become_ours_and_hide_the_payload(place: Place) -> None:
    event = Event("A", {"a": "swordfish"}, id="twice")
    with place.atomic():
        place.put(event)
    with pytest.raises(DuplicateEvent) as caught, place.atomic():
        place.put(event)
    assert "swordfish" not in f"{caught.value} {caught.value.__cause__}"
    other = type(place.store)(Tables("nowhere"))
    with pytest.raises(SchemaMissing), place.atomic():
        run(other.write([event], None, T0), wrap(place.connection))


def test_a_block_that_failed_inside_says_so(place: Place) -> None:
    with place.atomic():
        transaction.set_rollback(True, using=place.alias)
        with pytest.raises(StoreError, match="failed already"):
            place.put()


@pytest.mark.parametrize(
    "through", [lambda place: place.connection, lambda place: place.connection.cursor()], ids=["wrapper", "cursor"]
)
def test_what_may_be_handed_in(place: Place, through: Callable[[Place], Any]) -> None:
    with place.atomic():
        assert wrap(through(place)).raw is place.connection


def test_the_default_connection_is_a_proxy() -> None:
    assert wrap(default_connection).raw is connections["default"]


def test_the_transaction_stays_djangos(place: Place) -> None:
    adapter = wrap(place.connection)
    for action in (adapter.begin, adapter.commit, adapter.rollback, adapter.close):
        with pytest.raises(StoreError, match="Django owns"):
            action()
    with pytest.raises(UnsupportedByEngine, match="COPY"):
        adapter.execute(Copy("t", None, (), (), ()))


# -- connections of our own -----------------------------------------------------------------------------


def test_own_connections_are_not_the_callers(place: Place) -> None:
    with place.atomic():
        wrap(place.connection)
        assert place.own.run(place.store.status(T0)).due == 0

    def failing() -> Any:
        yield from place.store.write([Event("A", None, id="undone")], None, T0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.own.run(failing())
    assert place.stored("undone") == set()


def test_own_connections_serve_several_threads(place: Place) -> None:
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for m in range(5):
                place.own.run(place.store.write([Event("A", None, id=f"{n}-{m}")], None, T0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert place.own.run(place.store.status(T0)).due == 20


def test_times_are_utc_and_whole(place: Place) -> None:
    occurred = datetime(2020, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    with place.atomic():
        place.put(Event("A", None, occurred_at=occurred))
    [claimed] = place.own.run(place.store.claim(Claim(1, 2, timedelta(seconds=9)), 10, T0))
    found = Event.stored(claimed.row).occurred_at
    assert (found, found.tzinfo) == (occurred, UTC)


def test_the_async_side_opens_the_same_database(place: Place) -> None:
    with place.atomic():
        place.put(Event("A", None, id="shared"))
    target = connections[place.alias]

    async def look() -> set[str]:
        database = open_async(target)
        try:
            return await database.run(place.store.stored(["shared"]))
        finally:
            await database.close()

    assert asyncio.run(look()) == {"shared"}


def test_addresses_come_from_the_settings() -> None:
    register(
        "relaybox_url",
        ENGINE="django.db.backends.postgresql",
        NAME="shop db",
        USER="me@corp",
        PASSWORD="p/w:1",
        HOST="::1",
        PORT=5433,
        OPTIONS={"sslmode": "require", "isolation_level": 3},
    )
    try:
        assert url_of("relaybox_url") == "postgresql://me%40corp:p%2Fw%3A1@[::1]:5433/shop%20db?sslmode=require"
        connections["relaybox_url"].settings_dict.update(HOST="/run/pg", OPTIONS={}, PASSWORD="")
        assert url_of("relaybox_url") == "postgresql://me%40corp@/shop%20db?host=%2Frun%2Fpg&port=5433"
    finally:
        del connections["relaybox_url"]
        del connections.databases["relaybox_url"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {}),
        ({"ssl_mode": "REQUIRED"}, {"tls": "require"}),
        ({"ssl_mode": "verify_identity"}, {"tls": "verify"}),
        ({"ssl_mode": "REQUIRED", "ssl": {"ca": "ca.pem"}}, {"tls": "verify", "ca_file": "ca.pem"}),
        (
            {"ssl": {"ca": "ca.pem", "cert": "c.pem", "key": "k.pem"}},
            {"tls": "verify", "ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem"},
        ),
        ({"ssl": True}, {"tls": "verify"}),
    ],
)
def test_what_django_tells_mysql_about_tls_is_told_our_client(options: dict[str, Any], found: dict[str, str]) -> None:
    assert _mysql_tls(options) == found


def test_a_database_in_memory_cannot_be_shared() -> None:
    register("relaybox_memory", ENGINE="django.db.backends.sqlite3", NAME=":memory:")
    try:
        with pytest.raises(ConfigError, match="in-memory"):
            url_of("relaybox_memory")
    finally:
        del connections["relaybox_memory"]
        del connections.databases["relaybox_memory"]


def test_an_unreachable_server_is_a_lost_connection() -> None:
    register("relaybox_nobody", **{**postgres_settings(), "PORT": 1})

    def ask() -> Any:
        yield Query("test", "SELECT 1", "rows").bind()

    try:
        with pytest.raises(ConnectionLost):
            run(ask(), wrap(connections["relaybox_nobody"]))
        with pytest.raises(ConnectionLost):
            open_sync(connections["relaybox_nobody"]).run(ask())
    finally:
        del connections["relaybox_nobody"]
        del connections.databases["relaybox_nobody"]


# -- django://alias -------------------------------------------------------------------------------------


@contextmanager
def as_test_case(alias: str) -> Iterator[None]:
    """What a TestCase does around each test."""
    block: Any = transaction.atomic(using=alias)
    block._from_testcase = True
    with block:
        try:
            yield
        finally:
            transaction.set_rollback(True, using=alias)


@contextmanager
def moved(place: Place, tmp_path: Path) -> Iterator[None]:
    """The settings lead to another database, as while Django's test runner works."""
    settings_dict = place.connection.settings_dict
    before = settings_dict["NAME"]
    if place.connection.vendor == "sqlite":
        settings_dict["NAME"] = tmp_path / "test.sqlite3"
    else:
        settings_dict["NAME"] = f"test_{before}"
        with place.connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "test_{before}"')
    place.connection.close()
    try:
        yield
    finally:
        place.connection.close()
        settings_dict["NAME"] = before
        if place.connection.vendor != "sqlite":  # which fails if anybody has a connection open
            with place.connection.cursor() as cursor:
                cursor.execute(f'DROP DATABASE "test_{before}"')


@pytest.fixture
def box(place: Place) -> Iterator[Outbox]:
    with Outbox(f"django://{place.alias}", table=place.store.tables.event) as box:
        yield box


def test_a_name_is_looked_up_at_each_use(place: Place, box: Outbox, tmp_path: Path) -> None:
    """An outbox made when a module was imported, before the test database was there."""
    seen: list[str] = []
    with place.atomic():
        box.write(place.connection, Event("A", None, id="real"))
    assert box.status().due == 1
    with moved(place, tmp_path):
        box.migrate()
        with place.atomic():
            box.write(place.connection, Event("A", None, id="of a test"))
        deliver_pending(box, lambda event: seen.append(event.id))
        box.deliver(lambda event: seen.append(event.id)).once()
        assert seen == ["of a test"]
        with place.atomic():
            box.write(place.connection, Event("A", None, id="in the background"))
        box.deliver(lambda event: seen.append(event.id)).once()
        assert seen == ["of a test", "in the background"]
    assert box.status().due == 1


def test_async_connections_follow_the_name_too(place: Place, box: Outbox, tmp_path: Path) -> None:
    async def due(counts: list[int]) -> None:
        async with AsyncOutbox(f"django://{place.alias}", table=box.store.tables.event) as async_box:
            counts.append((await async_box.status()).due)
            settings_dict, before = place.connection.settings_dict, place.connection.settings_dict["NAME"]
            settings_dict["NAME"] = there
            try:
                counts.append((await async_box.status()).due)
            finally:
                settings_dict["NAME"] = before
            counts.append((await async_box.status()).due)

    with place.atomic():
        box.write_all(place.connection, [Event("A", None), Event("A", None)])
    counts: list[int] = []
    with moved(place, tmp_path):
        there = place.connection.settings_dict["NAME"]
        box.migrate()
        with place.atomic():
            box.write(place.connection, Event("A", None))
        box.dead.count()
    if place.connection.vendor == "sqlite":  # the server's is dropped by now
        asyncio.run(due(counts))
        assert counts == [2, 1, 2]
    assert box.status().due == 2


def test_in_a_test_case_everything_is_part_of_its_transaction(place: Place, box: Outbox) -> None:
    seen: list[str] = []
    listeners = Listeners()

    @listeners.on("A")
    def write_another(event: Event) -> None:
        seen.append(event.id)
        with place.atomic():
            box.write(place.connection, Event("B", None, id="second"))

    @listeners.on("B")
    async def take(event: Event) -> None:
        seen.append(event.id)

    @listeners.on("C")
    def refuse(event: Event) -> None:
        raise Reject("no")

    with as_test_case(place.alias):
        with place.atomic():
            box.write_all(place.connection, [Event("A", None, id="first"), Event("C", None, id="third")])
        assert box.status().due == 2
        deliver_pending(box, listeners, raise_errors=False)
        assert sorted(seen) == ["first", "second"]
        assert box.dead.count() == 1
        assert box.dead.replay("third", reason="test") == 1
        with pytest.raises(SchemaMissing):  # which does not take the test's transaction along
            Outbox(f"django://{place.alias}", table="nowhere").status()
        with box.transaction() as tx:
            box.write(tx, Event("A", None, id="fourth"))
        assert box.status().due == 2
    assert box.status().due == box.dead.count() == 0


def test_in_a_block_of_the_program_our_own_commits_by_itself(place: Place, box: Outbox) -> None:
    with box.transaction() as tx:
        box.write(tx, Event("A", None, id="a"))
    with suppress(ZeroDivisionError), place.atomic():
        if place.connection.vendor != "sqlite":
            assert box.events.discard("a", reason="it stands") == 1
        assert box.status().events >= 0
        raise ZeroDivisionError
    assert box.status().due == (1 if place.connection.vendor == "sqlite" else 0)


def test_a_block_that_fails_rolls_back(place: Place, box: Outbox) -> None:
    with suppress(ZeroDivisionError), box.transaction() as tx:
        box.write(tx, Event("A", None))
        raise ZeroDivisionError
    assert box.status().due == 0


def test_a_thread_is_left_as_it_was_found(place: Place, box: Outbox) -> None:
    place.connection.close()
    box.status()
    assert place.connection.connection is None
    place.connection.ensure_connection()
    box.status()
    assert place.connection.connection is not None


def test_names_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no database 'defualt'; do you mean 'default'\?"):
        Outbox("django://defualt")


def test_an_inbox_shares_the_transaction_of_the_orm(place: Place) -> None:
    with Inbox(f"django://{place.alias}", f"in{abs(hash(place.store.tables.event)) % 10**6}") as inbox:
        inbox.migrate()
        with place.connection.cursor() as cursor:
            cursor.execute("CREATE TABLE confirmed (key TEXT)")
        try:
            inbox.accept(None, Event("A", None, key="stays"))
            inbox.accept(None, Event("A", None, key="fails"))

            def confirm(event: Event, connection: Any) -> None:
                assert connection is connections[place.alias]
                with place.atomic(), connection.cursor() as cursor:
                    cursor.execute("INSERT INTO confirmed VALUES (%s)", [event.key])
                if event.key == "fails":
                    raise Reject("no")

            inbox.process(confirm).once()
            with place.connection.cursor() as cursor:
                cursor.execute("SELECT key FROM confirmed")
                assert cursor.fetchall() == [("stays",)]
            assert inbox.dead.count() == 1
        finally:
            with place.connection.cursor() as cursor:
                cursor.execute("DROP TABLE confirmed")
        inbox.drop()


# -- around listeners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("age", [0, None], ids=["closed after each", "kept"])
def test_a_lost_connection_fails_one_event_at_most_and_none_stays_open(
    place: Place, box: Outbox, kind: str, age: int | None
) -> None:
    """As when the database restarts: what a thread holds is dead, and the next listener there gets another."""
    seen: list[int] = []
    place.connection.settings_dict["CONN_MAX_AGE"] = age
    opened: list[Any] = []

    def ask(event: Event) -> None:
        mine = connections[place.alias]
        with mine.cursor() as cursor:
            cursor.execute("SELECT 1")
            opened.append(mine)
            seen.append(event.payload)
        if event.payload == 1 and place.connection.vendor == "postgresql":
            mine.connection.close()  # behind Django's back

    async def ask_async(event: Event) -> None:
        await sync_to_async(ask)(event)

    settings = Settings(delivery=DeliverySettings(workers=1, retry=Retry(base="1ms", jitter=0)))
    with Outbox(f"django://{place.alias}", table=box.store.tables.event, settings=settings) as shop:
        with place.atomic():
            shop.write_all(place.connection, [Event("A", n) for n in range(5)])
        service = shop.deliver(ask if kind == "plain" else ask_async)
        counts = service.once()
    assert sorted(seen) == list(range(5))
    assert (counts.done, counts.dead) == (5, 0)
    assert counts.failed <= 1
    assert [each for each in opened if each.connection is not None] == []
    place.connection.settings_dict["CONN_MAX_AGE"] = 0


def test_listeners_that_are_registered_later_are_found(place: Place, box: Outbox) -> None:
    listeners, seen = Listeners(), []
    service = box.deliver(listeners)
    listeners.on("A")(lambda event: seen.append(event.id))
    with place.atomic():
        box.write(place.connection, Event("A", None, id="a"))
    service.once()
    assert seen == ["a"]
