"""Django handles: the caller's atomic block, on_commit callbacks, and connections of our own beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection as default_connection
from django.db import connections, transaction
from django_places import T0, Place, postgres_settings, register

from relaybox.drivers import open_async, open_sync, wrap
from relaybox.drivers.django import _mysql_tls, url_of
from relaybox.errors import ConfigError, ConnectionLost, DuplicateEvent, SchemaMissing, StoreError, UnsupportedByEngine
from relaybox.event import Event
from relaybox.op import Copy, Query, run
from relaybox.store.claims import Claim
from relaybox.store.names import Tables


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
