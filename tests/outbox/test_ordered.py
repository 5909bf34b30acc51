"""Ordered delivery: the events of a key one after the other, whatever fails, dies or moves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kit import Box, Probe, make_box, one, waiting
from relaybox import Event, Listeners, Reject, Retry, Settings
from relaybox.facts import ClaimLost, Died, LoopFailed, TakenOver
from relaybox.types import DeliverySettings


def quick(changes: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    delivery = DeliverySettings(retry=Retry(base="5ms", max="20ms"), instance_ttl="1s", lease="3s", workers=4)
    return Settings(delivery=delivery).replaced(changes)


class Log:
    """What was delivered with success, per key; `fail` decides which attempts fail."""

    def __init__(self, probe: Probe, fail: Any = lambda event, attempts: False, pause: float = 0.0) -> None:
        self.probe = probe
        self.fail = fail
        self.pause = pause
        self.done: dict[str, list[int]] = defaultdict(list)
        self.running: set[str] = set()
        self.overlaps: list[str] = []

    def listeners(self) -> Listeners:
        listeners = Listeners()

        async def listen(event: Event, delivery: Any) -> None:
            key = str(event.key)
            if key in self.running:
                self.overlaps.append(key)
            self.running.add(key)
            try:
                await asyncio.sleep(self.pause)
                if self.fail(event, delivery.attempts):
                    raise ValueError("not now")
                self.done[key].append(event.payload["n"])
                self.probe.deliver(event, delivery)
            finally:
                self.running.discard(key)

        listeners.on("Happened")(listen)
        return listeners


async def write(box: Box, count: int, keys: int = 4, first: int = 0) -> list[str]:
    events = [Event("Happened", {"n": n}, key=f"k{n % keys}") for n in range(first, first + count)]
    async with box.raw.transaction() as tx:
        await box.raw.write_all(tx, events)
    return [event.id for event in events]


def firsts(numbers: list[int]) -> list[int]:
    """Without repetitions: at-least-once may repeat the last ones after a take-over."""
    return list(dict.fromkeys(numbers))


async def test_order_survives_retries(url: str, probe: Probe) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] % 5 == 0 and attempts < 3)
    box = make_box("ordered", url, probe, listeners=log.listeners(), settings=quick({"delivery.batch": 7}))
    async with box:
        await write(box, 200)
        await probe.until(probe.wrote(200))
    for key in range(4):
        assert log.done[f"k{key}"] == list(range(key, 200, 4))
    assert not log.overlaps
    assert waiting(url) == 0
    assert one(url, "SELECT count(*) FROM outbox_event_hold") == 0


async def test_followers_released_behind_a_failed_head_come_back_before_later_events(url: str, probe: Probe) -> None:
    """The head fails while its batch is claimed; what was released must not be overtaken by what never was."""
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and attempts < 3)
    box = make_box("plain", url, Probe())
    await write(box, 60, keys=1)
    await box.close()
    settings = quick({"delivery.batch": 10, "delivery.cold_queue": 10})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings):
        await probe.until(probe.wrote(60))
    assert log.done["k0"] == list(range(60))


async def test_what_a_stopped_instance_gave_back_comes_first(url: str, probe: Probe) -> None:
    """Stop in the middle of a backlog: the released rows are older than the unclaimed ones."""
    gate = asyncio.Event()
    blocked = Listeners()

    async def hang(event: Event) -> None:
        gate.set()
        await asyncio.Event().wait()

    blocked.on("Happened")(hang)
    settings = quick({"delivery.batch": 10, "delivery.cold_queue": 10, "delivery.stop_timeout": "20ms"})
    first = make_box("ordered", url, Probe(), listeners=blocked, settings=settings)
    async with first:
        await write(first, 50, keys=1)
        await gate.wait()
    log = Log(probe)
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings):
        await probe.until(probe.wrote(50))
    assert log.done["k0"] == list(range(50))


async def test_two_instances_and_a_rebalance(url: str, probe: Probe) -> None:
    """A second instance joins and leaves under load: shards move, nothing overtakes."""
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] % 11 == 0 and attempts < 2, pause=0.0005)
    settings = quick({"delivery.batch": 20, "delivery.cold_queue": 50})
    owners = "SELECT count(DISTINCT owner) FROM outbox_event_shard WHERE owner IS NOT NULL"
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as one_box:
        await write(one_box, 300, keys=8)
        async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as two_box:
            first = 300
            while one(url, owners) < 2:
                await write(one_box, 8, keys=8, first=first)
                first += 8
            await write(two_box, 304, keys=8, first=first)
            first += 304
            await probe.until(probe.wrote(first // 2))
        await write(one_box, 80, keys=8, first=first)
        total = first + 80
        await probe.until(lambda: len(set(probe.ids)) >= total)
    for key in range(8):
        assert firsts(log.done[f"k{key}"]) == list(range(key, total, 8))
    assert not log.overlaps
    faults = [f for f in probe.facts if isinstance(f, (ClaimLost, TakenOver, LoopFailed))]
    assert len(probe.ids) == total, f"a rebalance is no fault: nothing is delivered twice {faults}"


async def test_block_keeps_retrying_and_only_its_key_waits(url: str, probe: Probe) -> None:
    allowed: set[int] = set()
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and 0 not in allowed)
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "block"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 40, keys=2)
        await probe.until(probe.wrote(20))
        await probe.until(lambda: one(url, "SELECT count(*) FROM outbox_event_hold") == 1)
        assert log.done["k1"] == list(range(1, 40, 2))
        assert log.done["k0"] == []
        blocked = await box.call("keys.list")
        assert [(b.key, b.cause) for b in blocked] == [("k0", "retry")]
        while blocked[0].error is None:  # PostgreSQL does not show it while the head is being tried (decision 007)
            blocked = await box.call("keys.list")
        assert "not now" in blocked[0].error
        allowed.add(0)
        await probe.until(probe.wrote(40))
        assert await box.call("keys.list") == []
    assert log.done["k0"] == list(range(0, 40, 2))
    assert not probe.of(Died)


async def test_park_holds_the_key_until_its_head_is_replayed(url: str, probe: Probe) -> None:
    allowed: set[int] = set()
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and 0 not in allowed)
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "park"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        ids = await write(box, 10, keys=1)
        await probe.until(lambda: probe.of(Died))
        await write(box, 5, keys=1, first=10)
        [blocked] = await box.call("keys.list")
        assert (blocked.key, blocked.event_id, blocked.cause) == ("k0", ids[0], "dead")
        assert log.done["k0"] == []
        allowed.add(0)
        assert await box.call("dead.replay", ids[0])
        await probe.until(probe.wrote(15))
        assert await box.call("keys.list") == []
    assert log.done["k0"] == list(range(15))


async def test_releasing_lets_a_parked_key_go_on_without_its_head(url: str, probe: Probe) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0)
    settings = quick({"delivery.retry.attempts": 1, "order.on_exhausted": "park"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 10, keys=1)
        await probe.until(lambda: probe.of(Died))
        await probe.until(lambda: one(url, "SELECT count(*) FROM outbox_event_hold") == 1)
        assert await box.call("keys.release", "k0")
        assert not await box.call("keys.release", "k0")
        await probe.until(probe.wrote(9))
        assert await box.call("dead.count") == 1
    assert log.done["k0"] == list(range(1, 10))


async def test_skip_sends_the_head_to_the_dead_letters_and_goes_on(url: str, probe: Probe) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] in (0, 4))
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "skip"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 10, keys=1)
        await probe.until(probe.wrote(8))
        assert await box.call("dead.count") == 2
        assert await box.call("keys.list") == []
    assert log.done["k0"] == [1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("policy", ["block", "park", "skip"])
async def test_a_rejected_head(url: str, probe: Probe, policy: Any) -> None:
    """Reject is final at once. Only park holds the key for it."""
    listeners = Listeners()

    async def listen(event: Event, delivery: Any) -> None:
        if event.payload["n"] == 0:
            raise Reject("never")
        probe.deliver(event, delivery)

    listeners.on("Happened")(listen)
    settings = quick({"order.on_exhausted": policy})
    async with make_box("ordered", url, probe, listeners=listeners, settings=settings) as box:
        await write(box, 5, keys=1)
        await probe.until(lambda: probe.of(Died))
        if policy == "park":
            await probe.until(lambda: one(url, "SELECT count(*) FROM outbox_event_hold") == 1)
            assert not probe.seen
            await box.call("keys.release", "k0")
        await probe.until(probe.wrote(4))
    assert [seen.event.payload["n"] for seen in probe.seen] == [1, 2, 3, 4]
