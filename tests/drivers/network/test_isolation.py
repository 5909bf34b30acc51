"""A server whose transactions are repeatable read or serializable by default: who waited for a lock sees what the
holder has committed, all the same."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from kit import delivering
from relaybox import AsyncInbox, AsyncOutbox, Event, Listeners, Retry, Settings
from relaybox.drivers import open_async, open_sync
from relaybox.op import Op, Query
from relaybox.store.inbox.order import Order
from relaybox.testing.servers import require
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom
from relaybox.types import DeliverySettings, OrderSettings

KEYS, EACH = 4, 12
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
PATIENCE = 60.0
SETTINGS = Settings(delivery=DeliverySettings(retry=Retry(base="1ms", max="5ms"), poll="20ms"))


@pytest.fixture(params=["repeatable read", "serializable"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = urlsplit(url).path.lstrip("/")
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{request.param}'")
    yield url
    server.drop_database(url)


@asynccontextmanager
async def target(url: str, driver: str) -> AsyncIterator[Any]:
    if driver != "engine":
        yield url.replace("://", f"+{driver}://", 1)
        return
    engine = create_async_engine(url.replace("://", "+asyncpg://", 1))
    try:
        yield engine
    finally:
        await engine.dispose()


def look_behind_a_lock() -> Op[int]:
    """As every op that changes what others may be changing: first the lock, then a look."""
    yield Query("test.first", "SELECT 1", "rows").bind()  # takes the snapshot, where there is one for all
    yield Query("test.lock", "SELECT 1 FROM place FOR UPDATE", "rows").bind()
    return int((yield Query("test.look", "SELECT n FROM there", "rows").bind()).rows[0][0])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "engine", "sync", "bounced asyncpg", "bounced psycopg"])
async def test_who_waited_for_a_lock_sees_what_its_holder_has_committed(url: str, driver: str) -> None:
    async with AsyncExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(url))
        holder.execute("CREATE TABLE place AS SELECT 1 AS here")
        holder.execute("CREATE TABLE there AS SELECT 1 AS n")
        holder.commit()
        holder.execute("SELECT 1 FROM place FOR UPDATE")
        holder.execute("UPDATE there SET n = 2")
        looking: Awaitable[int]
        if driver == "sync":
            blocking = stack.enter_context(closing(open_sync(url)))
            looking = asyncio.to_thread(blocking.run, look_behind_a_lock())
        else:
            reached = str(require("pgbouncer", durable=False).url(url)) if driver.startswith("bounced ") else url
            place = await stack.enter_async_context(target(reached, driver.removeprefix("bounced ")))
            database = open_async(place)
            stack.push_async_callback(database.close)
            looking = database.run(look_behind_a_lock())
        waiting = asyncio.ensure_future(looking)
        with psycopg.connect(url, autocommit=True) as watch:
            while watch.execute(WAITING).fetchone() != (1,):
                await asyncio.sleep(0.01)
        holder.commit()
        assert await waiting == 2


class Handler:
    """Every third event fails at its first attempt: others of its key wait behind it."""

    def __init__(self) -> None:
        self.done: defaultdict[str | None, list[int]] = defaultdict(list)
        self._tried: set[str] = set()

    async def __call__(self, event: Event, *_: Any) -> None:
        if event.payload % 3 == 0 and event.id not in self._tried:
            self._tried.add(event.id)
            raise ValueError("not yet")
        self.done[event.key].append(event.payload)

    async def finished(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while sum(map(len, self.done.values())) < KEYS * EACH:
                await asyncio.sleep(0.01)
        assert dict(self.done) == {f"k{key}": list(range(1, EACH + 1)) for key in range(KEYS)}


def events(**options: Any) -> list[Event]:
    return [
        Event("T", n, key=f"k{key}", headers={"sequence": str(n)}, **options)
        for n in range(1, EACH + 1)
        for key in range(KEYS)
    ]


async def write(url: str, **options: Any) -> None:
    async with AsyncOutbox(url) as box:
        for event in events(**options):
            async with box.transaction() as tx:
                await box.write(tx, event)


@pytest.mark.parametrize("driver", ["asyncpg", "engine"])
async def test_an_ordered_group_of_two_processes(url: str, driver: str) -> None:
    handler = Handler()
    async with target(url, driver) as place, AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(AsyncOutbox(place, settings=SETTINGS)) for _ in range(2)]
        await boxes[0].migrate()
        await boxes[0].topics.configure(Topic.pub_sub("t", shards=4, fetch_batch=5))
        for box in boxes:
            retry = replace(SETTINGS.delivery.retry, attempts=1000)
            group = box.topics.group("t", "g", start=StartFrom.earliest(), retry=retry)
            await group.deliver(handler).start()
        await write(url, topic="t")
        await handler.finished()


@pytest.mark.parametrize("driver", ["asyncpg", "engine"])
@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
async def test_an_ordered_outbox_of_two_processes(url: str, driver: str, strategy: Any) -> None:
    handler, listeners = Handler(), Listeners()
    listeners.on("T")(handler)
    settings = Settings(
        delivery=DeliverySettings(
            retry=Retry(base=SETTINGS.delivery.retry.base, max=SETTINGS.delivery.retry.max, attempts=1000),
            poll=SETTINGS.delivery.poll,
        ),
        order=OrderSettings(strategy=strategy),
    )
    async with AsyncOutbox(url) as box:
        await box.migrate()
    async with target(url, driver) as place, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(delivering(AsyncOutbox, place, listeners, settings=settings, ordered=True))
        await write(url)
        await handler.finished()


@pytest.mark.parametrize("driver", ["asyncpg", "engine"])
async def test_an_ordered_inbox_of_two_processes(url: str, driver: str) -> None:
    handler = Handler()
    async with target(url, driver) as place, AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(AsyncInbox(place, settings=SETTINGS)) for _ in range(2)]
        await boxes[0].migrate()
        await boxes[0].configure(order=Order())
        for box in boxes:
            await stack.enter_async_context(box.process(handler))
        for event in events():
            await boxes[0].accept(None, event)
        await handler.finished()
