"""One key with a long queue does not make the others wait: at default settings, on every engine and strategy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from kit import delivering
from relaybox import AsyncInbox, AsyncOutbox, AsyncRelay, Event, Listeners, Settings, Topic
from relaybox.spi import Features, Message
from relaybox.testing.servers import require
from relaybox.topics.start import StartFrom
from relaybox.types import DeliverySettings, Order, OrderSettings

HOT = 6_000  # more than a process holds at once
OTHERS = 40
PAUSE = 0.005


def url_for(engine: str, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'hot.db'}"
    return require("mariadb" if engine == "mysql" else "postgres-wheel", durable=False).create_database()


async def fill(url: str) -> None:
    outbox = AsyncOutbox(url)
    await outbox.migrate()
    hot = [Event("E", n, key="hot") for n in range(HOT)]
    others = [Event("E", n, key=f"k{k}") for n in range(2) for k in range(OTHERS)]
    async with outbox.transaction() as tx:
        await outbox.write_all(tx, [*hot, *others])
    await outbox.close()


class Seen:
    """What was delivered, by key, and how many of the hot key were when the first of each other was."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.all_others = asyncio.Event()
        self.first_other = asyncio.Event()
        self.waited: dict[str, int] = {}

    def add(self, event: Event) -> None:
        key = str(event.key)
        self.waited.setdefault(key, len(self.by_key["hot"]))
        self.by_key[key].append(event.payload)
        if key != "hot":
            self.first_other.set()
        if len(self.waited) == OTHERS + 1 and all(len(n) == 2 for k, n in self.by_key.items() if k != "hot"):
            self.all_others.set()

    async def check(self) -> None:
        async with asyncio.timeout(60):
            await self.all_others.wait()
        self.check_first()

    def check_first(self) -> None:
        first = min(waited for key, waited in self.waited.items() if key != "hot")
        assert first < 200, f"{first} of the hot key went before any other"
        assert all(numbers == sorted(numbers) for numbers in self.by_key.values())


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        ("postgres", "shards"),
        ("postgres", "advisory"),
        ("postgres", "rows"),
        ("mysql", "rows"),
        ("sqlite", "shards"),
    ],
)
async def test_ordered_delivery(engine: str, strategy: str, tmp_path: Path) -> None:
    url, seen, listeners = url_for(engine, tmp_path), Seen(), Listeners()
    await fill(url)

    @listeners.on("E")
    async def listen(event: Event) -> None:
        await asyncio.sleep(PAUSE)
        seen.add(event)

    settings = Settings(order=OrderSettings(strategy=strategy))  # type: ignore[arg-type]
    async with delivering(AsyncOutbox, url, listeners, settings=settings, ordered=True):
        await seen.check()


class SlowSink:
    """Takes `PAUSE` for each message it is given."""

    name = "slow"

    def __init__(self, seen: Seen, *, sequences: bool) -> None:
        self.features = Features(keyed_order=True, dedup=False, sequences=sequences, batch=100)
        self._seen = seen

    async def open(self) -> None: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, messages: list[Message]) -> list[None]:
        for message in messages:
            await asyncio.sleep(PAUSE)
            self._seen.add(Event("E", int(message.body), key=message.key))
        return [None] * len(messages)


@pytest.mark.parametrize("sequences", [True, False])
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
async def test_relay(engine: str, sequences: bool, tmp_path: Path) -> None:
    url, seen = url_for(engine, tmp_path), Seen()
    await fill(url)
    async with AsyncRelay(url, SlowSink(seen, sequences=sequences), to="there"):  # type: ignore[arg-type]
        await seen.check()


async def test_ordered_group() -> None:
    url, seen = require("postgres-wheel", durable=False).create_database(), Seen()
    outbox = AsyncOutbox(url)
    await outbox.migrate()
    await outbox.topics.configure(Topic.pub_sub("orders"))
    hot = [Event("E", n, key="hot", topic="orders") for n in range(HOT)]
    others = [Event("E", n, key=f"k{k}", topic="orders") for n in range(2) for k in range(OTHERS)]
    async with outbox.transaction() as tx:
        await outbox.write_all(tx, [*hot, *others])

    async def handle(event: Event) -> None:
        await asyncio.sleep(PAUSE)
        seen.add(event)

    await outbox.topics.group("orders", "mailer", start=StartFrom.earliest()).deliver(handle).start()
    async with asyncio.timeout(60):
        await seen.first_other.wait()
    seen.check_first()
    await outbox.close()


@pytest.mark.parametrize("engine", ["postgres", "sqlite", "mysql"])
async def test_ordered_inbox(engine: str, tmp_path: Path) -> None:
    """Smaller: each message costs a transaction."""
    url, seen = url_for(engine, tmp_path), Seen()
    settings = Settings(delivery=DeliverySettings(cold_queue=200, workers=4))
    inbox = AsyncInbox(url, settings=settings)
    await inbox.migrate()
    await inbox.configure(order=Order())
    hot = [("hot", n) for n in range(1, 1_200)]
    others = [(f"k{k}", n) for n in (1, 2) for k in range(OTHERS)]
    numbered = [Event("E", n, key=key, headers={"sequence": str(n)}) for key, n in [*hot, *others]]
    for start in range(0, len(numbered), 100):
        await inbox.accept_all(None, numbered[start : start + 100])

    async def handle(event: Event, handle: object) -> None:
        await asyncio.sleep(PAUSE)
        seen.add(event)

    async with inbox.process(handle):
        await seen.check()
    await inbox.close()
