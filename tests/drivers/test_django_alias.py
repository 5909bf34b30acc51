"""`django://alias`, looked up at each use; and what is done around listeners that use Django."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django_places import Place

from relaybox import AsyncOutbox, Inbox, Listeners, Outbox, Reject, Retry, Settings
from relaybox.errors import ConfigError, SchemaMissing
from relaybox.event import Event
from relaybox.testing import deliver_pending
from relaybox.types import DeliverySettings

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
    with pytest.raises(ConfigError, match=r"no database 'defualt'; did you mean 'default'\?"):
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


def test_an_async_outbox_of_a_test_delivers_to_plain_listeners_that_use_the_orm(place: Place, box: Outbox) -> None:
    """Django refuses to work in the thread of an event loop."""
    seen: list[int] = []

    def ask(event: Event) -> None:
        with connections[place.alias].cursor() as cursor:
            cursor.execute("SELECT 7")
            seen.append(cursor.fetchone()[0])
        connections[place.alias].close()

    async def main() -> None:
        async with AsyncOutbox(f"django://{place.alias}", table=box.store.tables.event) as shop:
            await deliver_pending(shop, ask)

    with place.atomic():
        box.write(place.connection, Event("A", None))
    asyncio.run(main())
    assert seen == [7]
    assert box.status().due == 0


def test_listeners_run_where_django_is_imported_and_not_configured(tmp_path: Path) -> None:
    """By a program that has it for something else."""
    program = (
        "import relaybox.drivers.django\n"
        "from relaybox import Event, Inbox\n"
        "with Inbox('sqlite:///in.db') as inbox:\n"
        "    inbox.migrate()\n"
        "    inbox.accept(None, Event('A', 1))\n"
        "    print(inbox.process(lambda event: None).once().done)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n", done.stderr
