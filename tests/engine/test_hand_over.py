"""From commit to listener in one process, on SQLite: the hot path, its refusals, and the clock."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from kit import delivering
from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.facts import Claimed, ClaimLost, Delivered, HotDropped, HotEnqueued, Retried
from relaybox.testing import ManualClock, Probe
from relaybox.testing.plugin import relaybox_url
from relaybox.types import DeliverySettings

__all__ = ["relaybox_url"]


async def write(box: AsyncOutbox, *events: Event) -> None:
    async with box.transaction() as tx:
        await box.write_all(tx, events)


@pytest.fixture
async def migrated(relaybox_url: str) -> str:
    async with AsyncOutbox(relaybox_url) as box:
        await box.migrate()
    return relaybox_url


async def test_handed_over_after_the_commit_without_a_poll(migrated: str, probe: Probe) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("T")
    async def listen(event: Event, delivery: Any) -> None:
        seen.append((event.payload, delivery.source, delivery.attempts))

    settings = Settings(delivery=DeliverySettings(poll="1h"))
    async with delivering(AsyncOutbox, migrated, listeners, observers=[probe], settings=settings) as box:
        await write(box, Event("T", 1), Event("T", 2))
        await probe.wait(Delivered, 2)
    assert sorted(seen) == [(1, "HOT", 1), (2, "HOT", 1)]
    assert probe.count(HotEnqueued) == 2


async def test_what_the_hot_queue_refuses_is_given_back_and_polled(migrated: str, probe: Probe) -> None:
    listeners, gate, seen = Listeners(), asyncio.Event(), Counter[int]()

    @listeners.on("T")
    async def listen(event: Event) -> None:
        await gate.wait()
        seen[event.payload] += 1

    settings = Settings(delivery=DeliverySettings(hot_queue=1, workers=1))
    async with delivering(AsyncOutbox, migrated, listeners, observers=[probe], settings=settings) as box:
        await write(box, *(Event("T", n) for n in range(5)))
        await probe.wait(HotDropped)
        assert probe.of(HotDropped) == [HotDropped(4)]
        await probe.wait(Claimed, 4)  # at once, not when their leases end
        gate.set()
        await probe.wait(Delivered, 5)
        assert (await box.status()).due == 0
    assert seen == Counter(range(5))


async def write_and_fail(box: AsyncOutbox, block: Any, tx: Any = None) -> None:
    async with block as begun:
        await box.write(tx or begun, Event("T", "ghost"))
        raise KeyError


async def test_what_was_rolled_back_is_not_delivered(migrated: str, probe: Probe) -> None:
    listeners, seen = Listeners(), []
    listeners.on("T")(lambda event: seen.append(event.payload))
    async with delivering(AsyncOutbox, migrated, listeners, observers=[probe]) as box:
        with pytest.raises(KeyError):
            await write_and_fail(box, box.transaction())
        async with box.transaction() as tx:
            with pytest.raises(KeyError):
                await write_and_fail(box, tx.savepoint(), tx)
            await box.write(tx, Event("T", "real"))
        await probe.wait(Delivered)
    assert seen == ["real"]


async def test_a_manual_clock_rules_leases_and_retries(migrated: str, probe: Probe) -> None:
    """One clock for process and database: nothing is due, and no lease ends, before the test says so."""
    clock, listeners, attempts = ManualClock(), Listeners(), []

    @listeners.on("T")
    async def listen(event: Event, delivery: Any) -> None:
        attempts.append(delivery.attempts)
        if delivery.attempts == 1:
            raise ValueError("first time")

    settings = Settings(delivery=DeliverySettings(poll="10ms"))
    options: dict[str, Any] = {"observers": [probe], "clock": clock, "settings": settings}
    async with delivering(AsyncOutbox, migrated, listeners, **options) as box:
        await write(box, Event("T", 1))
        await probe.wait(Retried)
        assert (await box.status()).delayed == 1
        clock.advance(seconds=1)
        await probe.wait(Delivered)
    assert (attempts, probe.of(ClaimLost)) == ([1, 2], [])


class Shouting:
    """A codec that leaves its mark on what it decodes."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data).upper()


async def test_polled_events_are_decoded_by_the_outbox_codec(migrated: str, probe: Probe) -> None:
    listeners, seen = Listeners(), []

    @listeners.on("T")
    async def listen(event: Event) -> None:
        seen.append(event.payload)

    async with AsyncOutbox(migrated) as writer:
        await write(writer, Event("T", "quiet"))
    async with delivering(AsyncOutbox, migrated, listeners, observers=[probe], codec=Shouting()):
        await probe.wait(Delivered)
    assert seen == ["QUIET"]
