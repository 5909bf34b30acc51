"""Whole processes that lease keys: order, policies, replay and hand-over, as with shards (test_ordered.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, make_box, make_database, one, waiting
from outbox.test_ordered import Log, firsts, write
from outbox.test_ordered import quick as quick_shards
from relaybox.drivers.pool import AsyncDatabase
from relaybox.errors import StoreBusy
from relaybox.facts import Died, KeysChosen, LoopFailed

LEASES = "SELECT count(*) FROM outbox_event_lease"
HOLDS = "SELECT count(*) FROM outbox_event_hold"


@pytest.fixture(params=["postgres-advisory", "postgres-rows", "mariadb-rows"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    engine, strategy = request.param.split("-")
    return make_database(engine, tmp_path), strategy


@pytest.fixture
def url(place: tuple[str, str]) -> str:
    return place[0]


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def quick(place: tuple[str, str]) -> Any:
    return lambda changes: quick_shards({"order.strategy": place[1], **changes})


async def test_order_survives_retries(url: str, probe: Probe, quick: Any) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] % 5 == 0 and attempts < 3)
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=quick({"delivery.batch": 7})) as box:
        await write(box, 200)
        await probe.until(probe.wrote(200))
    for key in range(4):
        assert log.done[f"k{key}"] == list(range(key, 200, 4))
    assert not log.overlaps
    assert (waiting(url), one(url, HOLDS)) == (0, 0)
    assert not probe.of(LoopFailed)
    assert probe.of(KeysChosen), "contention is told, also when there is none"


async def test_a_long_key_does_not_wait_for_polls(url: str, probe: Probe, quick: Any) -> None:
    """Its tail is not to be had while its head is here: who settles the last of it looks again at once."""
    log = Log(probe)
    settings = quick({"delivery.batch": 10, "delivery.cold_queue": 10, "delivery.poll": "60s"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 150, keys=1)
        await probe.until(probe.wrote(150))
    assert log.done["k0"] == list(range(150))


async def test_instances_share_the_keys_and_one_leaves(url: str, probe: Probe, quick: Any) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] % 11 == 0 and attempts < 2, pause=0.0005)
    settings = quick({"delivery.batch": 20, "delivery.cold_queue": 50, "order.keys_per_claim": 3})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as first:
        await write(first, 300, keys=12)
        async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as second:
            await write(second, 300, keys=12, first=300)
            await probe.until(probe.wrote(400))
        await write(first, 60, keys=12, first=600)
        await probe.until(lambda: len(set(probe.ids)) >= 660)
    for key in range(12):
        assert firsts(log.done[f"k{key}"]) == list(range(key, 660, 12))
    assert not log.overlaps
    assert len(probe.ids) == 660, "leaving is no fault: nothing is delivered twice"
    assert (waiting(url), one(url, LEASES)) == (0, 0)


async def test_a_release_that_fails_stalls_nobody(
    url: str, probe: Probe, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The followers of a failed head could not be given back (a deadlock): later, and meanwhile the rest goes on."""
    run, failures = AsyncDatabase.run, iter(range(3))

    async def busy(db: AsyncDatabase, op: Any, *, tx: bool = True) -> Any:
        if op.__name__ == "release" and next(failures, None) is not None:
            op.close()
            raise StoreBusy("deadlock")
        return await run(db, op, tx=tx)

    monkeypatch.setattr(AsyncDatabase, "run", busy)
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and attempts < 2)
    settings = quick({"delivery.batch": 4, "delivery.cold_queue": 4})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 40, keys=2)
        await probe.until(probe.wrote(40))
    assert len(probe.of(LoopFailed)) == 3
    assert (log.done["k0"], log.done["k1"]) == (list(range(0, 40, 2)), list(range(1, 40, 2)))


async def test_block_keeps_retrying_and_only_its_key_waits(url: str, probe: Probe, quick: Any) -> None:
    allowed: set[int] = set()
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and 0 not in allowed)
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "block"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 40, keys=2)
        await probe.until(probe.wrote(20))
        await probe.until(lambda: one(url, HOLDS) == 1)
        assert (log.done["k0"], log.done["k1"]) == ([], list(range(1, 40, 2)))
        assert [(b.key, b.cause) for b in await box.call("keys.list")] == [("k0", "retry")]
        allowed.add(0)
        await probe.until(probe.wrote(40))
    assert log.done["k0"] == list(range(0, 40, 2))
    assert not probe.of(Died)


@pytest.mark.parametrize("decision", ["replay", "release"])
async def test_park_holds_the_key_until_somebody_decides(url: str, probe: Probe, quick: Any, decision: str) -> None:
    allowed: set[int] = set()
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] == 0 and 0 not in allowed)
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "park"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        ids = await write(box, 10, keys=1)
        await probe.until(lambda: probe.of(Died))
        await write(box, 5, keys=1, first=10)
        await probe.until(lambda: one(url, HOLDS) == 1)
        [blocked] = await box.call("keys.list")
        assert (blocked.event_id, blocked.cause, log.done["k0"]) == (ids[0], "dead", [])
        allowed.add(0)
        if decision == "replay":
            assert await box.call("dead.replay", ids[0])
        else:
            assert await box.call("keys.release", "k0")
        await probe.until(probe.wrote(15 if decision == "replay" else 14))
        assert await box.call("keys.list") == []
    assert log.done["k0"] == list(range(0 if decision == "replay" else 1, 15))


async def test_skip_sends_the_head_to_the_dead_letters_and_goes_on(url: str, probe: Probe, quick: Any) -> None:
    log = Log(probe, fail=lambda event, attempts: event.payload["n"] in (0, 4))
    settings = quick({"delivery.retry.attempts": 2, "order.on_exhausted": "skip"})
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings) as box:
        await write(box, 10, keys=1)
        await probe.until(probe.wrote(8))
        assert (await box.call("dead.count"), await box.call("keys.list")) == (2, [])
    assert log.done["k0"] == [1, 2, 3, 5, 6, 7, 8, 9]


async def test_what_a_stopped_instance_gave_back_comes_first(url: str, probe: Probe, quick: Any) -> None:
    stuck = Log(Probe(), pause=60.0)
    settings = quick({"delivery.batch": 10, "delivery.cold_queue": 10, "delivery.stop_timeout": "20ms"})
    async with make_box("ordered", url, Probe(), listeners=stuck.listeners(), settings=settings) as first:
        await write(first, 50, keys=1)
        async with asyncio.timeout(10):
            while not stuck.running:
                await asyncio.sleep(0.01)
    log = Log(probe)
    async with make_box("ordered", url, probe, listeners=log.listeners(), settings=settings):
        await probe.until(probe.wrote(50))
    assert log.done["k0"] == list(range(50))
