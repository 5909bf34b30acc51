"""Programs and handlers that hold every connection of their outbox: claims, renewals and settles have their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from kit import WAYS, delivering
from relaybox import AsyncOutbox, Event, Listeners, Outbox, Settings
from relaybox.testing.servers import require
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom
from relaybox.types import DeliverySettings

CONNECTIONS = 4  # that callers share
EVENTS = 6
LEASE = timedelta(seconds=1.5)
SETTINGS = Settings(delivery=DeliverySettings(lease=LEASE, instance_ttl="700ms", poll="50ms", workers=EVENTS))
PATIENCE = 20.0


@pytest.fixture
def url() -> Iterator[str]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    yield url
    server.drop_database(url)


@asynccontextmanager
async def target(url: str, kind: str) -> AsyncIterator[Any]:
    if kind == "url":
        yield url
        return
    engine = create_async_engine(url.replace("://", "+asyncpg://", 1), pool_size=CONNECTIONS, max_overflow=0)
    try:
        yield engine
    finally:
        await engine.dispose()


class Handler:
    """Each call wants a transaction of the outbox, and keeps it for longer than a lease."""

    def __init__(self) -> None:
        self.box: AsyncOutbox
        self.begun: list[int] = []
        self.done: list[int] = []

    async def __call__(self, event: Event) -> None:
        self.begun.append(event.payload)
        async with self.box.transaction():
            await asyncio.sleep(LEASE.total_seconds() * 1.5)
        self.done.append(event.payload)

    async def finished(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.done) < EVENTS:
                await asyncio.sleep(0.01)


async def write(url: str, topic: str | None = None) -> None:
    async with AsyncOutbox(url) as box, box.transaction() as tx:
        await box.write_all(tx, [Event("T", n, key=f"k{n}", topic=topic) for n in range(EVENTS)])


@pytest.mark.parametrize("kind", ["url", "engine"])
@pytest.mark.parametrize("topic", [Topic.pub_sub("t"), Topic.queue("t", tracking="rows")], ids=["group", "queue"])
async def test_handlers_of_a_group_with_transactions_of_its_outbox_run_once(url: str, topic: Topic, kind: str) -> None:
    handler = Handler()
    async with target(url, kind) as place, AsyncOutbox(place, settings=SETTINGS) as box:
        handler.box = box
        await box.migrate()
        await box.topics.configure(topic)
        earliest = StartFrom.earliest()
        group = box.topics.queue("t") if topic.semantics == "queue" else box.topics.group("t", "g", start=earliest)
        service = await group.deliver(handler).start()
        await write(url, "t")
        await handler.finished()
        await service.drain()
    assert sorted(handler.begun) == list(range(EVENTS))


@pytest.mark.parametrize("kind", ["url", "engine"])
@pytest.mark.parametrize("way", ["delivery", "ordered"])
async def test_listeners_with_transactions_of_their_outbox_run_once(url: str, way: str, kind: str) -> None:
    handler, listeners = Handler(), Listeners()
    listeners.on("T")(handler)
    async with AsyncOutbox(url) as box:
        await box.migrate()
    async with target(url, kind) as place:
        async with delivering(AsyncOutbox, place, listeners, **WAYS[way], settings=SETTINGS) as box:
            handler.box = box
            await write(url)
            await handler.finished()
    assert sorted(handler.begun) == list(range(EVENTS))


async def test_a_program_that_holds_all_connections_can_poll_and_commit(url: str) -> None:
    async with AsyncOutbox(url) as box, asyncio.timeout(PATIENCE):
        await box.migrate()
        await box.topics.configure(Topic.pub_sub("t"))
        await box.topics.group("t", "g", start=StartFrom.earliest()).create()
        await write(url, "t")
        async with AsyncExitStack() as busy:
            for _ in range(CONNECTIONS):
                await busy.enter_async_context(box.transaction())
            async with box.topics.group("t", "g").consumer() as consumer:
                batch = await consumer.poll()
                await consumer.extend(batch)
                await consumer.commit(batch)
                assert len(batch) == EVENTS


def test_a_synchronous_program_that_holds_all_connections_can_poll_and_commit(url: str) -> None:
    started = time.monotonic()
    with Outbox(url) as box, ExitStack() as busy:
        box.migrate()
        box.topics.configure(Topic.pub_sub("t"))
        box.topics.group("t", "g", start=StartFrom.earliest()).create()
        asyncio.run(write(url, "t"))
        for _ in range(CONNECTIONS):
            busy.enter_context(box.transaction())
        with box.topics.group("t", "g").consumer() as consumer:
            batch = consumer.poll()
            consumer.extend(batch)
            consumer.commit(batch)
            assert len(batch) == EVENTS
    assert time.monotonic() - started < PATIENCE
