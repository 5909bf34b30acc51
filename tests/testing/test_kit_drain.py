"""deliver_pending: everything due, once, in order, in this thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from relaybox import AsyncOutbox, Event, Listeners, Outbox, Reject, Retry, Settings
from relaybox.errors import ConfigError
from relaybox.facts import Delivered, Died, Retried
from relaybox.spi import Interceptor
from relaybox.testing import ManualClock, Probe, deliver_pending
from relaybox.types import DeliverySettings


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def relaybox_options(probe: Probe) -> dict[str, Any]:
    return {"observers": [probe], "settings": Settings(delivery=DeliverySettings(retry=Retry(attempts=2), batch=2))}


def write(outbox: Outbox, *events: Event) -> None:
    with outbox.transaction() as tx:
        outbox.write_all(tx, events)


def test_delivers_in_order_with_plain_and_async_listeners(outbox: Outbox, probe: Probe) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("Plain")
    def plain(event: Event) -> None:
        seen.append((event.payload, threading.current_thread()))

    @listeners.on("Async")
    async def other(event: Event) -> None:
        seen.append((event.payload, threading.current_thread()))

    write(outbox, *(Event("Plain" if n % 2 else "Async", n) for n in range(5)))
    drained = deliver_pending(outbox, listeners)
    here = threading.current_thread()
    assert seen == [(n, here) for n in range(5)]
    assert [event.payload for event in drained.delivered] == list(range(5))
    assert probe.count(Delivered) == 5
    assert (outbox.status().due, outbox.instances()) == (0, [])
    assert len(deliver_pending(outbox, listeners)) == 0


def test_plain_listeners_see_no_event_loop(outbox: Outbox) -> None:
    """As in the threads of production, where they may call asyncio.run()."""
    listeners, seen = Listeners(), []

    @listeners.on("Plain")
    def plain(event: Event) -> None:
        seen.append(asyncio.run(asyncio.sleep(0, event.payload)))

    @listeners.on("Async")
    async def other(event: Event) -> None:
        seen.append(await asyncio.sleep(0, event.payload))

    write(outbox, Event("Plain", 1), Event("Async", 2), Event("Plain", 3))
    deliver_pending(outbox, listeners)
    assert seen == [1, 2, 3]


def test_an_outbox_on_a_django_connection(tmp_path: Path) -> None:
    """Django refuses to work in an event loop: for relaybox's own statements, and for those of listeners."""
    import django
    from django.conf import settings as django_settings
    from django.db import connections, transaction

    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "x.db"}
    connections.databases["drain"] = connections.configure_settings({"default": file})["default"]
    connection = connections["drain"]

    def confirm(event: Event) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO confirmed VALUES (%s)", [event.key])

    with Outbox(connection) as shop, connection.cursor() as cursor:
        shop.migrate()
        cursor.execute("CREATE TABLE confirmed (key TEXT)")
        with transaction.atomic(using="drain"):
            shop.write(connection, Event("OrderPlaced", None, key="order-7"))
        deliver_pending(shop, confirm)
        cursor.execute("SELECT key FROM confirmed")
        assert cursor.fetchall() == [("order-7",)]
    connection.close()


def test_includes_what_listeners_write(outbox: Outbox) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("First")
    def first(event: Event) -> None:
        write(outbox, Event("Second", 2))

    listeners.on("Second")(lambda event: seen.append(event.payload))
    write(outbox, Event("First", 1))
    assert [event.type for event in deliver_pending(outbox, listeners).delivered] == ["First", "Second"]
    assert seen == [2]


def test_a_circle_of_events_ends(outbox: Outbox) -> None:
    listeners = Listeners()
    listeners.on("Loop")(lambda event: write(outbox, Event("Loop", 1)))
    write(outbox, Event("Loop", 1))
    with pytest.raises(AssertionError, match="circle"):
        deliver_pending(outbox, listeners, limit=5)


def test_an_error_is_raised_and_the_event_waits_for_its_retry(outbox: Outbox, probe: Probe) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("Bad")
    def bad(event: Event) -> None:
        raise ValueError("no")

    listeners.on("Good")(lambda event: seen.append(event.payload))
    write(outbox, Event("Bad", 1), Event("Good", 2))
    with pytest.raises(ValueError, match="no"):
        deliver_pending(outbox, listeners)
    status = outbox.status()
    assert (status.delayed, status.due, status.claimed, seen) == (1, 1, 0, [])
    assert [fact.attempts for fact in probe.of(Retried)] == [1]
    deliver_pending(outbox, listeners)
    assert seen == [2]


def test_errors_can_be_collected(outbox: Outbox) -> None:
    listeners, calls = Listeners(), []

    @listeners.on("Bad")
    def bad(event: Event) -> None:
        calls.append(event.payload)
        raise ValueError(event.payload)

    write(outbox, *(Event("Bad", n) for n in range(5)))
    drained = deliver_pending(outbox, listeners, raise_errors=False)
    assert calls == list(range(5))  # once each, although their retries could be due meanwhile
    assert [str(error) for _, error in drained.failed] == ["0", "1", "2", "3", "4"]


def test_once_each_however_long_it_takes(outbox: Outbox, relaybox_clock: ManualClock) -> None:
    listeners, calls = Listeners(), []

    @listeners.on("Slow")
    def slow(event: Event) -> None:
        calls.append(event.payload)
        relaybox_clock.advance(minutes=5)  # beyond an ordinary lease, and beyond the retry
        raise ValueError

    write(outbox, *(Event("Slow", n) for n in range(5)))
    deliver_pending(outbox, listeners, raise_errors=False)
    assert calls == list(range(5))


def test_dead_letters_and_unroutable_as_in_production(outbox: Outbox, probe: Probe) -> None:
    listeners = Listeners()

    @listeners.on("Refused")
    def refused(event: Event) -> None:
        raise Reject("never")

    write(outbox, Event("Refused", 1), Event("Unknown", 2))
    drained = deliver_pending(outbox, listeners, raise_errors=False)
    assert [event.type for event, _ in drained.failed] == ["Refused", "Unknown"]
    assert outbox.dead.count() == 2
    assert [fact.event_type for fact in probe.of(Died)] == ["Refused", "Unknown"]


def test_retries_run_when_the_clock_moves(outbox: Outbox, relaybox_clock: ManualClock) -> None:
    listeners = Listeners()

    @listeners.on("Bad")
    def bad(event: Event) -> None:
        raise ValueError

    write(outbox, Event("Bad", 1))
    deliver_pending(outbox, listeners, raise_errors=False)
    assert len(deliver_pending(outbox, listeners, raise_errors=False)) == 0
    relaybox_clock.advance(minutes=2)
    assert len(deliver_pending(outbox, listeners, raise_errors=False).failed) == 1
    assert outbox.dead.count() == 1  # after two attempts


def test_interceptors_run(relaybox_url: str) -> None:
    seen: list[str] = []
    interceptor = Interceptor.before(lambda delivery: seen.append(delivery.event.type))
    listeners = Listeners(interceptors=[interceptor])
    listeners.on("A")(lambda event: seen.append("listener"))
    with Outbox(relaybox_url) as outbox:
        outbox.migrate()
        write(outbox, Event("A", 1))
        deliver_pending(outbox, listeners)
    assert seen == ["A", "listener"]


async def test_async_twin(async_outbox: AsyncOutbox) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("A")
    async def listen(event: Event) -> None:
        seen.append(event.payload)

    async with async_outbox.transaction() as tx:
        await async_outbox.write_all(tx, [Event("A", 1), Event("A", 2)])
    assert len(await deliver_pending(async_outbox, listeners)) == 2
    assert seen == [1, 2]


async def test_sync_twin_inside_a_loop_says_what_to_use(outbox: Outbox) -> None:
    with pytest.raises(ConfigError, match="AsyncOutbox"):
        deliver_pending(outbox, Listeners())
