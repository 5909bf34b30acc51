"""Claims whose answer was lost. The database says the events are ours, and we know nothing of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit import Box, Probe, claimed, make_box, rows
from relaybox import Event, Listeners, Settings
from relaybox.drivers.pool import AsyncDatabase
from relaybox.errors import ConnectionLost
from relaybox.facts import LoopFailed
from relaybox.types import DeliverySettings

SETTINGS = Settings(
    delivery=DeliverySettings(batch=5, cold_queue=5, lease="2s", instance_ttl="1s", stop_timeout="100ms", poll="50ms")
)
LASTING = SETTINGS.replaced({"delivery.lease": "5m", "delivery.instance_ttl": "1m"})  # beyond a test's patience


async def write(box: Box, count: int) -> list[str]:
    events = [Event("Happened", {"n": n}, key="k") for n in range(count)]
    async with box.raw.transaction() as tx:
        await box.raw.write_all(tx, events)
    return [event.id for event in events]


class Deaf:
    """Loses the answer of the next op whose generator has this name, after the database has done it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        run = AsyncDatabase.run
        self.times = 1

        async def deaf(db: AsyncDatabase, op: Any, *, tx: bool = True) -> Any:
            answer = await run(db, op, tx=tx)
            if op.__name__ in names and answer and self.times:
                self.times -= 1
                raise ConnectionLost("the reply was lost")
            return answer

        monkeypatch.setattr(AsyncDatabase, "run", deaf)


async def test_a_lost_claim_does_not_wait_for_its_lease(
    url: str, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_box("plain", url, Probe())
    ids = await write(plain, 5)
    await plain.close()
    Deaf(monkeypatch, "claim")
    async with make_box("delivery", url, probe, settings=LASTING):
        await probe.until(lambda: probe.of(LoopFailed))
        await probe.until(probe.has(*ids))


async def test_a_lost_ordered_claim_is_not_overtaken(url: str, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_box("plain", url, Probe())
    await write(plain, 30)
    await plain.close()
    Deaf(monkeypatch, "claim_ordered")
    async with make_box("ordered", url, probe, settings=SETTINGS):
        await probe.until(lambda: len(set(probe.ids)) == 30)
    assert [seen.event.payload["n"] for seen in probe.seen] == list(range(30))


async def test_a_failed_hand_over_does_not_wait_for_its_lease(
    pg: str, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncpg

    async with make_box("delivery", pg, probe, settings=LASTING) as box:
        Deaf(monkeypatch, "verify")
        connection = await asyncpg.connect(pg)
        async with connection.transaction():
            written_event = Event("Happened", {"n": 1})
            await box.raw.write(connection, written_event)
            written = written_event.id
        await connection.close()
        await probe.until(probe.has(written))


async def test_what_a_zombie_claims_is_free_at_the_next_heartbeat_of_anybody(pg: str, probe: Probe) -> None:
    """Declared dead, awake again, claims, is killed before its heartbeat: that owner is in no list of the dead.

    On the engines with row leases such a claim ends with its lease.
    """
    url = pg
    slow = Settings(delivery=DeliverySettings(lease="60s", instance_ttl="20s", stop_timeout="50ms"))
    gate = asyncio.Event()
    listeners = Listeners()

    async def hang(event: Event) -> None:
        gate.set()
        await asyncio.Event().wait()

    listeners.on("Happened")(hang)
    async with make_box("delivery", url, probe, settings=slow, listeners=listeners) as box:
        rows(url, "DELETE FROM outbox_event_instance")  # as others do to an instance that was silent too long
        async with box.raw.transaction() as tx:
            await box.raw.write(tx, Event("Happened", {"n": 1}))
        await gate.wait()
        assert claimed(url) == 1
        other = make_box("plain", url, Probe())
        assert await other.raw._db.run(other.raw.store.take_over(None, None)) == (0, 1)
        await other.close()
        assert claimed(url) == 0
