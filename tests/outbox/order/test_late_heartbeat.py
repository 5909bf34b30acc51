"""A process whose heartbeat is late, and which nobody declared dead, keeps what it has: its work is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, make_box, make_database, waiting
from outbox.test_ordered import quick
from relaybox import Event, Listeners
from relaybox.facts import ClaimLost, Delivered
from relaybox.outbox.presence import OutboxRegistration
from relaybox.testing import ManualClock


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path)


async def test_what_is_under_way_is_settled(url: str, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tend, tended = ManualClock(), OutboxRegistration.tend, asyncio.Queue[None]()

    async def told(registration: OutboxRegistration) -> None:
        await tend(registration)
        tended.put_nowait(None)

    monkeypatch.setattr(OutboxRegistration, "tend", told)
    listeners, runs, may_end = Listeners(), asyncio.Queue[int](), asyncio.Event()

    async def listen(event: Event, delivery: Any) -> None:
        runs.put_nowait(delivery.attempts)
        await may_end.wait()
        probe.deliver(event, delivery)

    listeners.on("Happened")(listen)
    one_at_a_time = {"delivery.batch": 1, "delivery.cold_queue": 1, "delivery.lease": "1h", "delivery.timeout": None}
    settings = quick({"order.strategy": "shards", **one_at_a_time})
    async with make_box("ordered", url, probe, listeners=listeners, settings=settings, clock=clock) as box:
        await tended.get()
        async with box.raw.transaction() as tx:
            await box.raw.write_all(tx, [Event("Happened", n, key="a") for n in range(2)])
        assert await asyncio.wait_for(runs.get(), 20) == 1
        clock.advance(3 * settings.delivery.instance_ttl)
        await asyncio.wait_for(tended.get(), 20)
        may_end.set()
        await probe.until(lambda: sum(fact.count for fact in probe.of(Delivered)) + len(probe.of(ClaimLost)) >= 2)
        assert not probe.of(ClaimLost)
    assert [seen.event.payload for seen in probe.seen] == [0, 1]
    assert waiting(url) == 0
