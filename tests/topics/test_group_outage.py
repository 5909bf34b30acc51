"""A push group and a database that is away for longer than every timeout of the group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from relaybox import AsyncOutbox, Event, Listeners, Settings, StartFrom, Topic
from relaybox.facts import TaskEnded
from relaybox.testing import Probe
from relaybox.testing.servers import require
from relaybox.testing.servers.gate import TcpGate
from relaybox.types import DeliverySettings

SETTINGS = Settings(delivery=DeliverySettings(timeout="200ms", instance_ttl="1s", lease="3s", workers=4))
OUTAGE = 2.5  # seconds: the process is silent after one, and each worker then waits with an event in hand
CALLS = 300


@pytest.mark.parametrize("batch", [None, 5])
async def test_a_group_delivers_again_after_the_outage(batch: int | None) -> None:
    url = require("postgres-wheel", durable=False).create_database()
    probe, seen, begun = Probe(), Counter[int](), asyncio.Event()
    events_in_all = CALLS * (batch or 1)
    writer = AsyncOutbox(url)
    await writer.migrate()
    await writer.topics.configure(Topic.pub_sub("orders"))

    listeners: Listeners = Listeners()

    async def handle(given: Any) -> None:
        events: Sequence[Event] = [given] if isinstance(given, Event) else given
        begun.set()
        await asyncio.sleep(0.03)
        seen.update([event.payload for event in events])

    with TcpGate(urlsplit(url).port or 5432) as gate:
        async with asyncio.timeout(60), AsyncOutbox(gate.through(url), settings=SETTINGS, observers=[probe]) as box:
            (listeners.on("E") if batch is None else listeners.on_batch("E", size=batch))(handle)
            group = box.topics.group("orders", "mailer", start=StartFrom.earliest())
            await group.deliver(listeners).start()
            async with writer.transaction() as tx:
                await writer.write_all(tx, [Event("E", n, topic="orders", key=f"k{n}") for n in range(events_in_all)])
            await begun.wait()
            gate.refuse()
            await asyncio.sleep(OUTAGE)
            before = len(seen)
            gate.open()
            while len(seen) < events_in_all:
                await asyncio.sleep(0.01)
            assert before < events_in_all
            assert not probe.of(TaskEnded)
    await writer.close()
