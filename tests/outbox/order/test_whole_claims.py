"""Claims settled as a whole: nothing is said event by event, and still nothing more is settled than was done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from relaybox import Event, Settings
from relaybox.drivers import AsyncDatabase, open_async
from relaybox.engine.protocols import Delivery
from relaybox.errors import ConnectionLost
from relaybox.op import Op, arun
from relaybox.outbox.source import OutboxSource, make_source
from relaybox.outcome import DONE, Dead, Outcome, RetryAt
from relaybox.store.outbox import OutboxStore, open_store
from relaybox.store.outbox.values import Settlement
from relaybox.testing import ManualClock
from relaybox.testing.servers import require
from relaybox.types import OrderSettings

AT_ONCE = RetryAt(timedelta(0), "bad")


class Place:
    """A source on a fresh database, and what its store was asked to settle."""

    def __init__(self, url: str, *, ordered: bool) -> None:
        self.clock = ManualClock()
        self.settings = Settings(order=OrderSettings(shards=1))
        self.db: AsyncDatabase = open_async(url)
        self.store: OutboxStore = open_store("postgres")
        self.source: OutboxSource = make_source(ordered, self.db, self.store, self.settings, self.clock)
        self.asked: list[Settlement] = []
        settle = self.store.settle

        def noted(settlement: Settlement, now: Any) -> Op[int]:
            self.asked.append(settlement)
            return settle(settlement, now)

        self.store.settle = noted  # type: ignore[method-assign]

    async def register(self) -> None:
        now, ttl = self.clock.now(), timedelta(minutes=5)
        self.source.owner = await self.db.run(self.store.register("one", "relay", ttl, now))
        await self.db.run(self.store.acquire_shards(self.source.owner, 1, 1, ttl, now))

    async def die(self) -> None:
        """As an instance does whose successor is here: its claims and shards are free."""
        await self.db.run(self.store.retire(self.source.owner, self.clock.now()))
        await self.db.run(self.store.release_shards(self.source.owner, [0]))

    async def write(self, *keys: str) -> None:
        for key in keys:
            await self.db.run(self.store.write([Event("E", None, key=key)], None, self.clock.now()))

    async def claim(self, limit: int = 100) -> list[Delivery]:
        return await self.source.claim(limit)

    async def settle(self, *deliveries: Delivery, outcome: Outcome = DONE) -> int:
        return await self.source.settle([(delivery, outcome) for delivery in deliveries])

    async def count(self, part: str) -> int:
        async with self.db.connection() as connection:
            raw: Any = connection.raw
            return int(await raw.fetchval(f"SELECT count(*) FROM outbox_event_{part}"))

    async def waiting(self) -> str:
        """Keys that could be claimed by the next process."""
        await self.die()
        await self.register()
        return "".join(delivery.event.key or "" for delivery in await self.claim())


@pytest_asyncio.fixture(params=[True, False], ids=["ordered", "unordered"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    place = Place(require("postgres-wheel", durable=False).create_database(), ordered=request.param)
    await place.db.run(place.store.migrate())
    await place.register()
    yield place
    await place.db.close()


async def test_a_claim_that_is_done_goes_as_a_whole(place: Place) -> None:
    await place.write(*"abc")
    claimed = await place.claim()
    assert await place.settle(*claimed) == 0
    (settlement,) = place.asked
    assert (settlement.done, settlement.whole) == ([], {claimed[0].token: 3})
    assert await place.waiting() == ""


async def test_the_last_part_of_a_claim_is_its_whole(place: Place) -> None:
    await place.write(*"abcd")
    a, b, c, d = await place.claim()
    assert await place.settle(a, b) == 0
    assert await place.settle(c, d) == 0
    assert [bool(settlement.whole) for settlement in place.asked] == [False, True]
    assert place.source._left == {}


@pytest.mark.parametrize("how", ["given back", "failed"])
async def test_what_left_a_claim_undone_is_not_settled_with_it(place: Place, how: str) -> None:
    """A fail-over may forget that it left."""
    await place.write(*"ab")
    a, b = await place.claim()
    if how == "failed":
        await place.settle(a, outcome=AT_ONCE)
    else:
        await place.source.release([a])
    assert await place.settle(b) == 0
    assert not place.asked[-1].whole
    assert place.source._left == {}
    assert place.source._undone == set()
    assert await place.waiting() == "a"


async def test_what_failed_is_not_swept_away_with_the_rest(place: Place) -> None:
    await place.write(*"abc")
    a, b, c = await place.claim()
    await place.write("d")
    (d,) = await place.claim()
    assert await place.source.settle([(a, DONE), (b, AT_ONCE), (c, Dead("no")), (d, DONE)]) == 0
    assert place.asked[0].whole == {d.token: 1}
    assert await place.count("dead") == 1
    assert await place.waiting() == "b"


async def test_a_lost_reply_costs_nobody_its_event(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part is settled and nobody told us: that it is settled again must not take the other part along."""
    await place.write(*"abcd")
    a, b, c, d = await place.claim()

    async def run_and_lose(op: Op[Any], *, tx: bool = True) -> Any:
        async with place.db.connection() as connection:
            await connection.begin()
            await arun(op, connection)
            await connection.commit()
        raise ConnectionLost("no reply")

    with monkeypatch.context() as patch:
        patch.setattr(place.db, "run", run_and_lose)
        with pytest.raises(ConnectionLost):
            await place.settle(a, b)
    assert await place.settle(a, b) == 2, "they were settled already"
    assert await place.settle(a, b) == 2, "also when asked once more"
    assert await place.waiting() == "cd"
    assert [bool(settlement.whole) for settlement in place.asked] == [False] * 3
    assert (c.event.key, d.event.key) == ("c", "d")


async def test_a_zombie_settles_nothing(place: Place) -> None:
    await place.write(*"ab")
    old = await place.claim()
    await place.die()
    await place.register()
    new = await place.claim()
    assert await place.settle(*old) == 2
    assert await place.settle(*new) == 0
    assert [len(settlement.whole) for settlement in place.asked] == [1, 1]


async def test_a_head_that_goes_with_its_claim_frees_its_key() -> None:
    place = Place(require("postgres-wheel", durable=False).create_database(), ordered=True)
    await place.db.run(place.store.migrate())
    await place.register()
    await place.write("a", "a", "b")
    first, second, other = await place.claim()
    assert await place.settle(first, outcome=AT_ONCE) == 0
    await place.source.release([second, other])
    assert await place.count("hold") == 1
    again = await place.claim()
    assert [delivery.seq for delivery in again] == [first.seq, other.seq]
    assert await place.settle(*again) == 0
    assert place.asked[-1].whole
    assert await place.count("hold") == 0
    assert [delivery.seq for delivery in await place.claim()] == [second.seq]
    await place.db.close()
