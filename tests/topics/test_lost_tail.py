"""Groups after a fail-over that lost the tail, and after a crash that lost what had not reached the disk.

Numbers given in the lost part are given again. What a process has in its memory of the lost part must not stand in for
what is there now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kit import until
from relaybox import Event, Retry, Settings
from relaybox.testing.servers import PostgresPair, PostgresServer, ServerUnavailable
from relaybox.topic import Topic
from relaybox.types import AsyncService, DeliverySettings

from .test_group import Process, Seen, process

SHARDS = 2
# Not a beat while a test runs: it would bring to the disk what shall be lost.
SILENT = Settings(delivery=DeliverySettings(instance_ttl="10m", lease="20m", retry=Retry(base="5ms")))


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    try:
        made = PostgresPair.from_wheel()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with made:
        yield made


@pytest.fixture
def forgetful() -> Iterator[PostgresServer]:
    """What is committed without waiting for the disk stays in memory until somebody does wait."""
    try:
        made = PostgresServer.from_wheel(settings={"wal_writer_delay": "10s", "autovacuum": "off"})
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with made:
        yield made


async def started(here: Process, name: str, handler: Any) -> AsyncService:
    return await here.deliver(handler, name).start()


async def written(here: Process, *payloads: Any, key: Any = str) -> None:
    """Acknowledged: tried until the database has said so."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await here.write(*payloads, key=key)
            except Exception:
                await asyncio.sleep(0.02)


async def lags(here: Process, *groups: str) -> list[int]:
    return [(await here.group(group).lag()).events for group in groups]


async def has(here: Process, kind: str, count: int) -> None:
    async with asyncio.timeout(30):
        while getattr(await here.group().lag(), kind) < count:
            await asyncio.sleep(0.01)


def _key(payload: str) -> str:
    return payload[0]


async def caught_up(here: Process, *groups: str) -> None:
    async with asyncio.timeout(30):
        while any(await lags(here, *groups)):
            await asyncio.sleep(0.02)


async def test_a_group_gets_what_the_new_primary_has_and_nothing_of_the_lost_tail(pair: PostgresPair) -> None:
    """Both groups are in one process and share what they read; one of them was paused while the tail was written."""
    topic = Topic.pub_sub("orders", shards=SHARDS)
    async with process(pair.create_database(), topic) as here:
        quick, slow = Seen(), Seen()
        await started(here, "quick", quick.note)
        await started(here, "slow", slow.note)
        paused = here.group("slow")
        before = [f"before-{n}" for n in range(20)]
        await here.write(*before, key=str)
        await until(lambda: len(quick) == len(slow) == 20)
        await caught_up(here, "quick", "slow")
        await paused.pause()
        pair.follow()
        pair.cut()
        await here.write(*(f"tail-{n}" for n in range(20)), key=str)
        await until(lambda: len(quick) == 40)
        await asyncio.to_thread(pair.fail_over)
        after = [f"after-{n}" for n in range(20)]
        await written(here, *after)
        await until(lambda: set(after) <= set(quick))
        await paused.resume()
        await caught_up(here, "quick", "slow")
        await until(lambda: set(after) <= set(slow))
        assert sorted(slow) == sorted(before + after)
        assert set(quick) - {f"tail-{n}" for n in range(20)} == {*before, *after}


async def test_a_member_that_was_forgotten_is_not_taken_for_the_next_one(pair: PostgresPair) -> None:
    """Two processes that beat for one member would take each other's ranges for their own."""
    async with process(pair.create_database()) as here:
        await (await started(here, "g", Seen().note)).stop()
        pair.follow()
        pair.cut()
        async with process(here.url) as forgotten:
            await started(forgotten, "g", Seen().note)
            forgotten.box.topics._context.heartbeats.held = True
            await asyncio.to_thread(pair.fail_over)
            await written(here, 1)
            async with process(here.url) as other:
                await started(other, "g", Seen().note)
                forgotten.box.topics._context.heartbeats.held = False
                async with asyncio.timeout(30):
                    while len((await other.group().info()).members) < 2:
                        await asyncio.sleep(0.02)


async def test_a_crash_that_forgets_a_tick_loses_no_acknowledged_event(forgetful: PostgresServer) -> None:
    """One group has read by the tick that is forgotten, the other one was paused."""
    topic = Topic.pub_sub("orders", shards=1)
    async with process(forgetful.create_database(), topic, settings=SILENT) as here:
        quick, slow = Seen(), Seen()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(event: Event) -> None:
            begun.set()
            await go_on.wait()
            await quick.note(event)

        await started(here, "quick", handle)
        await started(here, "slow", slow.note)
        paused = here.group("slow")
        await paused.pause()
        await here.write("first", key="k")
        await begun.wait()  # claimed by a tick, neither of which has reached the disk
        await asyncio.to_thread(forgetful.kill)
        await asyncio.to_thread(forgetful.start)
        await written(here, "second")
        assert (await lags(here, "slow")) == [2]
        go_on.set()
        await until(lambda: {"first", "second"} <= set(quick))
        await paused.resume()
        await until(lambda: {"first", "second"} <= set(slow))
        await caught_up(here, "quick", "slow")


@pytest.mark.parametrize("together", [True, False], ids=["claimed before", "new"])
async def test_a_failure_that_was_forgotten_comes_before_what_follows_it(pair: PostgresPair, together: bool) -> None:
    """It failed after the standby was cut off, and was parked. What follows it is here already, with an event of
    another key that is done since; or it is new."""
    patient = Settings(delivery=DeliverySettings(instance_ttl="2s", retry=Retry(base="5m", max="5m")))
    topic = Topic.pub_sub("orders", shards=1)
    may = {name: asyncio.Event() for name in ("a1", "b")}
    begun, done = Seen(), Seen()

    async def handle(event: Event) -> None:
        await begun.note(event)
        if event.payload in may:
            await may[event.payload].wait()
        if event.payload == "a1" and begun.count("a1") == 1:
            raise ValueError("once")
        await done.note(event)

    async with process(pair.create_database(), topic, settings=patient) as here:
        await started(here, "g", handle)
        await here.write("a1", key=_key)
        await until(lambda: begun == ["a1"])
        if together:
            await here.write("b", "a2", key=_key)
            await has(here, "taken", 3)
        await asyncio.to_thread(pair.follow)
        pair.cut()
        may["a1"].set()
        await has(here, "parked", 1)
        await asyncio.to_thread(pair.fail_over)
        may["b"].set()
        if not together:
            await written(here, "a2", key=_key)
        await until(lambda: "a2" in done)
        assert done.index("a1") < done.index("a2")
