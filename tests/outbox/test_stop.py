"""Closing an outbox: what runs may finish, nothing else begins, and nothing runs twice afterwards."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kit import QUICK, WAYS, Probe, delivering, happened
from relaybox import AsyncOutbox, Event, Listeners, Outbox, Settings, StartFrom, Topic
from relaybox.facts import Released
from relaybox.types import DeliverySettings

EVENTS = 40
EARLIEST = StartFrom.earliest()


def fill(url: str) -> None:
    with Outbox(url) as box, box.transaction() as tx:
        box.write_all(tx, [happened(n, key=f"k{n}") for n in range(EVENTS)])


@pytest.mark.parametrize("way", ["alone", "delivery", "ordered"])
@pytest.mark.parametrize("engine", ["postgres", "sqlite"])
async def test_nothing_begins_and_nothing_runs_twice(url: str, way: str, probe: Probe) -> None:
    begun: Counter[int] = Counter()
    four, finish = threading.Semaphore(0), threading.Event()

    def listen(event: Event) -> None:
        begun[event.payload["n"]] += 1
        four.release()
        assert finish.wait(30)

    listeners = Listeners()
    listeners.on("Happened")(listen)
    fill(url)
    async with delivering(AsyncOutbox, url, listeners, **WAYS[way], settings=QUICK, observers=[probe]) as box:
        for _ in range(4):
            assert await asyncio.to_thread(four.acquire, True, 30)
        closing = asyncio.create_task(box.close())
        await asyncio.sleep(0)  # close has begun
        finish.set()
        await closing
    assert sum(begun.values()) == 4
    assert probe.of(Released)
    async with delivering(AsyncOutbox, url, listeners, **WAYS[way], settings=QUICK) as again:
        async with asyncio.timeout(30):
            while len(begun) < EVENTS or (await again.status()).due:
                await asyncio.sleep(0.01)
    assert begun == Counter(range(EVENTS))


async def test_what_is_cut_off_is_named_in_the_log(pg: str, caplog: pytest.LogCaptureFixture) -> None:
    begun: list[str] = []
    started = asyncio.Event()
    listeners = Listeners()

    @listeners.on("Happened")
    async def listen(event: Event, delivery: Any) -> None:
        begun.append(event.id)
        if len(begun) == 4:
            started.set()
        await asyncio.sleep(60)

    fill(pg)
    settings = Settings(delivery=DeliverySettings(stop_timeout="100ms"))
    with caplog.at_level(logging.WARNING, logger="relaybox"):
        async with delivering(AsyncOutbox, pg, listeners, settings=settings):
            async with asyncio.timeout(30):
                await started.wait()
    line = next(record.getMessage() for record in caplog.records if "cut off" in record.getMessage())
    assert all(event_id in line for event_id in begun)
    assert len(begun) == 4


@pytest.mark.parametrize("product", ["outbox", "group"])
async def test_of_a_batch_nothing_begins_after_the_stop(pg: str, product: str) -> None:
    """A registry with a batch listener is called with batches, of which other listeners get one event after another."""
    begun: list[int] = []
    started, finish = asyncio.Event(), asyncio.Event()
    listeners = Listeners()

    @listeners.on_batch("Other")
    async def take(events: Sequence[Event]) -> None: ...

    @listeners.on("Happened")
    async def listen(event: Event) -> None:
        begun.append(event.payload["n"])
        started.set()
        await finish.wait()

    settings = Settings(delivery=DeliverySettings(workers=1))
    async with AsyncOutbox(pg, settings=settings) as box:
        if product == "group":
            await box.topics.configure(Topic.pub_sub("orders", shards=1))
        deliver = box.deliver if product == "outbox" else box.topics.group("orders", "g", start=EARLIEST).deliver
        topic = "orders" if product == "group" else None
        async with box.transaction() as tx:
            await box.write_all(tx, [Event("Happened", {"n": n}, topic=topic) for n in range(5)])
        service = await deliver(listeners).start()
        async with asyncio.timeout(30):
            await started.wait()
        service.halt()
        finish.set()
        await service.stop()
        assert begun == [0]
        again = await deliver(listeners).once()
        assert (sorted(begun), again.done) == ([0, 1, 2, 3, 4], 4)
