"""Every product that runs in the background, with one face: write a number, see which numbers have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ingest.scripted_source import ScriptedSource
from kit import WAYS, delivering
from relaybox import AsyncInbox, AsyncIngest, AsyncOutbox, AsyncRelay, Event, Inbox, Listeners, Settings
from relaybox.errors import StoreError
from relaybox.store.inbox.order import Order
from relaybox.topic import Topic
from relaybox.topics.start import StartFrom

from .sink import Sink

KEY = "k"
T = TypeVar("T")


class Running(NamedTuple):
    write: Callable[[int], Awaitable[None]]
    arrived: list[int]


Work = Callable[[], Awaitable[None]]  # what handlers do before they are done
Product = Callable[[str, str, Settings, Work], Any]


def event(number: int, **options: Any) -> Event:
    return Event("Counted", number, id=f"e{number}", key=KEY, **options)


async def written(direct: str, one: Event) -> None:
    async with AsyncOutbox(direct) as box, box.transaction() as tx:
        await box.write(tx, one)


# -- outbox -----------------------------------------------------------------------------------------------------------


def outbox(kind: str) -> Product:
    @asynccontextmanager
    async def product(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
        arrived: list[int] = []
        listeners = Listeners()

        @listeners.on("Counted")
        async def note(one: Event) -> None:
            await work()
            arrived.append(one.payload)

        async with AsyncOutbox(direct) as box:
            await box.migrate()
        async with delivering(AsyncOutbox, url, listeners, settings=settings, **WAYS[kind]):
            yield Running(lambda number: written(direct, event(number)), arrived)

    return product


@asynccontextmanager
async def relay(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
    sink = Sink(work)
    async with AsyncOutbox(direct) as box:
        await box.migrate()
    async with AsyncRelay(url, sink, to="orders", settings=settings):
        yield Running(lambda number: written(direct, event(number)), sink.arrived)


# -- topics -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def topic(direct: str, made: Topic) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    async with AsyncOutbox(direct) as box:
        await box.migrate()
        await box.topics.configure(made)
    yield lambda number: written(direct, event(number, topic=made.name))


@asynccontextmanager
async def topic_relay(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
    sink = Sink(work)
    async with (
        topic(direct, Topic.pub_sub("orders")) as write,
        AsyncRelay(AsyncOutbox(url).topics.group("orders", "g"), sink, to="orders", settings=settings),
    ):
        yield Running(write, sink.arrived)


def group(made: Topic) -> Product:
    @asynccontextmanager
    async def product(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
        arrived: list[int] = []

        async def note(one: Event) -> None:
            await work()
            arrived.append(one.payload)

        async with topic(direct, made) as write, AsyncOutbox(url, settings=settings) as box:
            members = box.topics.queue(made.name) if made.semantics == "queue" else box.topics.group(made.name, "g")
            await members.deliver(note).start()
            yield Running(write, arrived)

    return product


@asynccontextmanager
async def consumer(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
    """A program that polls and commits for ever, and tries again what failed for want of a database."""
    arrived: list[int] = []

    async def surely(step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await step()
            except StoreError:
                await asyncio.sleep(0.05)

    async def pull(box: AsyncOutbox) -> None:
        async with box.topics.group("orders", "g").consumer() as pulling:
            while True:
                batch = await surely(pulling.poll)
                for one in batch:
                    await work()
                    arrived.append(one.payload)
                await surely(partial(pulling.commit, batch))
                await asyncio.sleep(0.05)

    async with topic(direct, Topic.pub_sub("orders")) as write, AsyncOutbox(url, settings=settings) as box:
        await box.topics.group("orders", "g", start=StartFrom.earliest()).create()
        pulling = asyncio.create_task(pull(box))
        try:
            yield Running(write, arrived)
        finally:
            pulling.cancel()
            await asyncio.wait([pulling])


# -- inbox ------------------------------------------------------------------------------------------------------------


def inbox(order: Order | None) -> Product:
    @asynccontextmanager
    async def product(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
        arrived: list[int] = []

        async def note(one: Event, connection: Any) -> None:
            await work()
            arrived.append(one.payload)

        async def accept(number: int) -> None:
            async with AsyncInbox(direct) as receiver:
                await receiver.accept(
                    None, event(number, headers={"sequence": str(number)}) if order else event(number)
                )

        async with AsyncInbox(direct) as there:
            await there.migrate()
            await there.configure(order=order)
        async with AsyncInbox(url, settings=settings) as here, here.process(note):
            yield Running(accept, arrived)

    return product


@asynccontextmanager
async def ingest(direct: str, url: str, settings: Settings, work: Work) -> AsyncIterator[Running]:
    arrived: list[int] = []

    class Source(ScriptedSource):
        async def acknowledge(self, messages: Any) -> None:
            await super().acknowledge(messages)
            await work()
            arrived.extend(int(message.body) for message in messages)

    async def put(number: int) -> None:
        source.put(event(number))

    source = Source()
    with Inbox(direct) as there:
        there.migrate()
    async with (
        AsyncInbox(url) as here,
        AsyncIngest(source, here, settings=settings.replaced({"ingest.wait": "50ms"})),
    ):
        yield Running(put, arrived)


POSTGRES: dict[str, Product] = {
    "alone": outbox("alone"),
    "delivery": outbox("delivery"),
    "ordered": outbox("ordered"),
    "relay": relay,
    "topic_relay": topic_relay,
    "group": group(Topic.pub_sub("orders")),
    "bitmap_group": group(Topic.pub_sub("orders", tracking="bitmap")),
    "queue_by_rows": group(Topic.queue("orders", tracking="rows")),
    "queue_by_offset": group(Topic.queue("orders", tracking="offset")),
    "consumer": consumer,
    "inbox": inbox(None),
    "ordered_inbox": inbox(Order()),
    "ingest": ingest,
}
MARIADB = {name: POSTGRES[name] for name in ("delivery", "ordered", "relay", "inbox", "ingest")}
