"""A fail-over that lost the latest commits, with work in flight: the new primary gives the lost numbers again.

What a process holds of the lost tail must not stand in for what the new primary acknowledged."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest

from kit import delivering
from relaybox import AsyncInbox, AsyncOutbox, Event, Listeners, Settings
from relaybox.testing.servers import PostgresPair, ServerUnavailable
from relaybox.types import DeliverySettings

EVENTS = 100
QUICK = Settings(delivery=DeliverySettings(instance_ttl="2s", lease="30s", workers=4))


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    try:
        made = PostgresPair.from_wheel()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with made:
        yield made


class Receiver:
    """Holds what is under way until the fail-over is over."""

    def __init__(self) -> None:
        self.begun: dict[str, int] = {}
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.failed_over = asyncio.Event()

    async def __call__(self, event: Event) -> None:
        self.begun[event.id] = 1
        await self.failed_over.wait()
        self.by_key[str(event.key)].append(event.payload)

    @property
    def seen(self) -> set[int]:
        return {number for numbers in self.by_key.values() for number in numbers}


class Outboxes:
    """Events by an outbox that delivers in the same process, so that hot rows are among them."""

    def __init__(self, url: str, receiver: Receiver, *, ordered: bool) -> None:
        listeners = Listeners()

        @listeners.on("E")
        async def listen(event: Event) -> None:
            await receiver(event)

        self._delivering = delivering(AsyncOutbox, url, listeners, ordered=ordered, settings=QUICK, migrate=True)
        self.box = self._delivering.box

    def running(self) -> AbstractAsyncContextManager[Any]:
        return self._delivering

    async def write(self, numbers: range) -> None:
        async with self.box.transaction() as tx:
            await self.box.write_all(tx, [Event("E", n, key=f"k{n % 10}") for n in numbers])

    async def left(self) -> int:
        status = await self.box.status()
        return status.due + status.claimed


class Inboxes:
    def __init__(self, url: str, receiver: Receiver) -> None:
        self.inbox = AsyncInbox(url, settings=QUICK)
        self._receiver = receiver

    def running(self) -> AbstractAsyncContextManager[Any]:
        async def handle(event: Event, handle: Any) -> None:
            await self._receiver(event)

        return self.inbox.process(handle)

    async def write(self, numbers: range) -> None:
        await self.inbox.accept_all(None, [Event("E", n, key=f"k{n % 10}") for n in numbers])

    async def left(self) -> int:
        return (await self.inbox.status()).pending


@pytest.mark.parametrize("product", ["plain", "ordered", "inbox"])
async def test_all_that_the_new_primary_acknowledged_is_delivered(pair: PostgresPair, product: str) -> None:
    url, receiver = pair.create_database(), Receiver()
    if product == "inbox":
        place: Outboxes | Inboxes = Inboxes(url, receiver)
        await place.inbox.migrate()
    else:
        place = Outboxes(url, receiver, ordered=product == "ordered")
    async with asyncio.timeout(100), place.running():
        pair.follow()
        pair.cut()
        await place.write(range(EVENTS))  # the tail: claimed, queued and running here, and lost
        while len(receiver.begun) < 4:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(pair.fail_over)
        acknowledged = range(1000, 1000 + EVENTS)
        while True:
            try:
                await place.write(acknowledged)
                break
            except Exception:
                await asyncio.sleep(0.05)
        receiver.failed_over.set()
        while not set(acknowledged) <= receiver.seen or await place.left():
            await asyncio.sleep(0.05)
    for numbers in receiver.by_key.values():
        new = [number for number in numbers if number in acknowledged]
        assert len(new) == len(set(new)), "delivered twice without need"
        if product == "ordered":
            assert new == sorted(new)


class Failing:
    """Waits for leave; "a1" fails then, the first time it comes."""

    def __init__(self) -> None:
        self.may = {name: asyncio.Event() for name in ("a1", "b")}
        self.begun: list[str] = []
        self.done: list[str] = []

    async def __call__(self, event: Event) -> None:
        self.begun.append(event.payload)
        if event.payload in self.may:
            await self.may[event.payload].wait()
        if event.payload == "a1" and self.begun.count("a1") == 1:
            raise ValueError("once")
        self.done.append(event.payload)


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
async def test_a_failure_that_was_forgotten_is_made_up_for(pair: PostgresPair, ordered: bool) -> None:
    """It failed after the standby was cut off, and waits for another try of which the new primary knows nothing. There
    it is in a claim of ours, with an event that is done since, and before one that is new."""
    failing, listeners = Failing(), Listeners()
    listeners.on("E")(failing)
    late = timedelta(minutes=10)
    patient = QUICK.replaced({"delivery.lease": "4s", "delivery.retry.base": late, "delivery.retry.max": late})
    url = pair.create_database()
    box = delivering(AsyncOutbox, url, listeners, ordered=ordered, settings=patient, migrate=True)

    async def write(*payloads: str) -> None:
        while True:
            try:
                async with writer.transaction() as tx:
                    return await writer.write_all(tx, [Event("E", payload, key=payload[0]) for payload in payloads])
            except Exception:
                await asyncio.sleep(0.05)

    async with asyncio.timeout(60), AsyncOutbox(url) as writer:
        await writer.migrate()
        await write("a1", "b")
        async with box:
            while len(failing.begun) < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(pair.follow)
            pair.cut()
            failing.may["a1"].set()
            while not (await writer.status()).delayed:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(pair.fail_over)
            await write("a2")
            if not ordered:  # else a1 is missed in its claim, and comes before a2 though b is still being handled
                failing.may["b"].set()
            while not {"a1", "a2"} <= set(failing.done):  # a1 not before the claim ends, if nothing is in a hurry
                await asyncio.sleep(0.01)
            failing.may["b"].set()
    assert not ordered or [payload for payload in failing.done if payload != "b"] == ["a1", "a2"]


async def test_a_process_that_was_forgotten_is_not_taken_for_the_next_one(pair: PostgresPair) -> None:
    """Two that beat under one number would take each other's claims for their own."""
    url, listeners = pair.create_database(), Listeners()
    listeners.on("E")(Receiver())
    async with asyncio.timeout(60), AsyncOutbox(url) as looker:
        await looker.migrate()
        await asyncio.to_thread(pair.follow)
        pair.cut()
        async with delivering(AsyncOutbox, url, listeners, settings=QUICK, ordered=True):
            await asyncio.to_thread(pair.fail_over)
            async with delivering(AsyncOutbox, url, listeners, settings=QUICK, ordered=True):
                while len(await looker.instances()) < 2:
                    await asyncio.sleep(0.02)
