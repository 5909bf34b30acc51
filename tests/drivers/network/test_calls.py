"""Calls of a program on connections that relaybox opened and that fell silent: they end with an error, and the next one
has a connection that works."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from relaybox import AsyncInbox, AsyncOutbox, Event, Guard, Inbox, Outbox, Settings, Topic
from relaybox.errors import ConnectionLost
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate
from relaybox.types import DeliverySettings

LIMIT = 0.4
BATCH = 6 * LIMIT
SLACK = 2.0
SHORT = Settings(delivery=DeliverySettings(database_timeout=timedelta(seconds=LIMIT)))
MINUTE = timedelta(minutes=1)


class Place(NamedTuple):
    direct: str
    url: str
    gate: TcpGate


@pytest.fixture(params=["postgres-wheel", "mariadb"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("RELAYBOX_DELIVERY_DATABASE_TIMEOUT", f"{LIMIT}s")  # for what is made without settings
    direct = require(request.param, durable=False).create_database()
    with TcpGate(urlsplit(direct).port or 0) as gate:
        yield Place(direct, gate.through(direct), gate)


async def silent(place: Place, call: Callable[[], Any], limit: float) -> None:
    """It works; it ends in time when the network has fallen silent; it works again."""
    run = call if inspect.iscoroutinefunction(call) else lambda: asyncio.to_thread(call)
    await run()
    place.gate.strand()
    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="database_timeout"):
        await run()
    assert time.monotonic() - started < limit + SLACK
    await run()


OUTBOX = [
    lambda box: box.status(),
    lambda box: box.dead.count(),
    lambda box: box.keys.release("k"),
    lambda box: box.resolve(["x"]),
    lambda box: box.purge(),
]


@pytest.mark.parametrize("call", OUTBOX, ids=["status", "dead", "release", "resolve", "purge"])
async def test_of_an_outbox(place: Place, call: Callable[[Any], Any]) -> None:
    with Outbox(place.url, settings=SHORT) as box:
        box.migrate()
        await silent(place, lambda: call(box), BATCH)


async def test_of_an_async_outbox(place: Place) -> None:
    async with AsyncOutbox(place.url, settings=SHORT) as box:
        await box.migrate()
        await silent(place, box.status, BATCH)


@pytest.mark.parametrize(
    "call",
    [lambda inbox: inbox.status(), lambda inbox: inbox.dead.list(), lambda inbox: inbox.purge()],
    ids=["status", "dead", "purge"],
)
async def test_of_an_inbox(place: Place, call: Callable[[Any], Any]) -> None:
    with Inbox(place.url) as inbox:
        inbox.migrate()
        await silent(place, lambda: call(inbox), BATCH)


async def test_of_an_async_inbox(place: Place) -> None:
    async with AsyncInbox(place.url) as inbox:
        await inbox.migrate()
        await silent(place, inbox.status, BATCH)


async def test_of_a_guard(place: Place) -> None:
    with Guard.sql(place.url, consumer="c") as guard:
        guard.migrate()
        await silent(place, guard.purge, BATCH)


@pytest.fixture
def topic(place: Place) -> Iterator[Outbox]:
    if place.url.startswith("mysql"):
        pytest.skip("topics are on PostgreSQL")
    with Outbox(place.url, settings=SHORT) as box:
        box.migrate()
        box.topics.configure(Topic.pub_sub("orders"))
        box.topics.group("orders", "g").create()
        yield box


async def test_of_topics(place: Place, topic: Outbox) -> None:
    await silent(place, lambda: topic.topics.groups("orders"), BATCH)
    await silent(place, lambda: topic.topics.group("orders", "g").lag(), BATCH)


async def test_of_a_consumer(place: Place, topic: Outbox) -> None:
    with topic.topics.group("orders", "g").consumer() as consumer:
        await silent(place, consumer.poll, LIMIT)


async def test_a_consumer_commits_on_a_new_connection(place: Place, topic: Outbox) -> None:
    with topic.transaction() as tx:
        topic.write(tx, Event("Counted", 1, topic="orders"))
    with topic.topics.group("orders", "g").consumer() as consumer:
        batch = consumer.poll(lease=MINUTE)
        place.gate.strand()
        with pytest.raises(ConnectionLost, match="database_timeout"):
            await asyncio.to_thread(consumer.commit, batch)
        consumer.commit(batch)
        assert topic.topics.group("orders", "g").lag().events == 0


async def test_a_consumer_that_cannot_sign_off_closes(
    place: Place, topic: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = topic.topics.group("orders", "g").consumer()
    consumer.poll()
    place.gate.strand()
    started = time.monotonic()
    await asyncio.to_thread(consumer.close)
    assert time.monotonic() - started < LIMIT + SLACK
    assert "could not sign off" in caplog.text
    await asyncio.to_thread(topic.close)
    assert time.monotonic() - started < LIMIT + 2 * SLACK
