"""The source that leases keys: a key is free as soon as nothing of it is left here, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from relaybox import Event, Settings
from relaybox.drivers import AsyncDatabase, open_async
from relaybox.engine.protocols import Delivery
from relaybox.errors import ConnectionLost, UnsupportedByEngine
from relaybox.facts import Fact, KeysChosen, Observers
from relaybox.ids import shard_of
from relaybox.op import arun
from relaybox.outbox.source import KeyedSource, OrderedSource, OutboxSource, make_source
from relaybox.outcome import DONE, Outcome, RetryAt
from relaybox.store.outbox import OutboxStore, open_store
from relaybox.testing import ManualClock
from relaybox.testing.servers import require
from relaybox.types import OrderSettings

LEASE = Settings().delivery.lease
AT_ONCE = RetryAt(timedelta(0), "bad")


class Place:
    """A database and sources on it, each with connections of its own."""

    def __init__(self, url: str, dialect: str, strategy: str) -> None:
        self.url = url
        self.store: OutboxStore = open_store(dialect)
        self.settings = Settings(order=OrderSettings(strategy=strategy))  # type: ignore[arg-type]
        self.clock = ManualClock()
        self.facts: list[Fact] = []
        self.dbs: list[AsyncDatabase] = []

    def connect(self) -> AsyncDatabase:
        self.dbs.append(open_async(self.url))
        return self.dbs[-1]

    def source(self, owner: int) -> KeyedSource:
        observers = Observers([self.facts.append])
        source = make_source(True, self.connect(), self.store, self.settings, self.clock, observers)
        assert isinstance(source, KeyedSource)
        source.owner = owner
        return source

    async def write(self, *keys: str) -> list[int]:
        events = [Event("E", None, key=key) for key in keys]
        return await self.dbs[0].run(self.store.write(events, None, self.clock.now()))


@pytest_asyncio.fixture(params=["postgres-advisory", "postgres-rows", "mysql-rows"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    dialect, strategy = request.param.split("-")
    server = require("mariadb" if dialect == "mysql" else "postgres-wheel", durable=False)
    place = Place(server.create_database(), dialect, strategy)
    await place.connect().run(place.store.migrate())
    yield place
    for db in place.dbs:
        await db.close()


def keys(claimed: list[Delivery]) -> str:
    return "".join(sorted(delivery.event.key or "" for delivery in claimed))


def of(claimed: list[Delivery], key: str) -> list[Delivery]:
    return [delivery for delivery in claimed if delivery.event.key == key]


def done(*deliveries: Delivery, outcome: Outcome = DONE) -> list[tuple[Delivery, Outcome]]:
    return [(delivery, outcome) for delivery in deliveries]


def remembers(source: KeyedSource) -> int:
    return len(source._lease) + len(source._rest)


async def test_one_slow_key_does_not_hold_up_the_others(place: Place) -> None:
    one, two = place.source(1), place.source(2)
    await place.write("a", "b", "c", "a")
    claimed = await one.claim(10)
    assert keys(claimed) == "aabc"
    await place.write("a", "b", "c")
    assert await one.settle(done(*of(claimed, "b"), of(claimed, "a")[0])) == 0
    assert keys(await two.claim(10)) == "b"
    await one.release(of(claimed, "c"))
    assert keys(await two.claim(10)) == "cc"
    assert await one.settle(done(of(claimed, "a")[1])) == 0
    assert keys(await two.claim(10)) == "a"
    assert remembers(one) == 0


async def test_a_failed_head_and_its_released_followers_free_the_key(place: Place) -> None:
    one, two = place.source(1), place.source(2)
    await place.write("a", "a", "a")
    first, *followers = await one.claim(10)
    await one.settle(done(first, outcome=AT_ONCE))
    assert await two.claim(10) == [], "the followers are still here"
    await one.release(followers)
    [again] = await two.claim(10)
    assert (again.seq, again.attempts) == (first.seq, 2)
    assert remembers(one) == 0


async def test_two_that_leave_at_once_free_their_key(place: Place) -> None:
    """A settle and a release, each of a part: one after the other, or both would think that the other part is left."""
    one, two = place.source(1), place.source(2)
    await place.write("a", "a")
    first, second = await one.claim(10)
    await asyncio.gather(one.settle(done(first)), one.release([second]))
    assert keys(await two.claim(10)) == "a"
    assert remembers(one) == 0


async def test_a_settle_that_failed_keeps_the_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = place.source(1), place.source(2)
    await place.write("a")
    claimed = await one.claim(10)
    await place.write("a")
    monkeypatch.setattr(one, "_db", Away())
    with pytest.raises(ConnectionLost):
        await one.settle(done(*claimed))
    monkeypatch.undo()
    assert await two.claim(10) == []
    assert await one.settle(done(*claimed)) == 0
    assert keys(await two.claim(10)) == "a"


class Away:
    async def run(self, op: Any, *, tx: bool = True) -> Any:
        op.close()
        raise ConnectionLost("the database is away")


async def test_a_claim_that_ran_out_and_came_back_has_a_new_title(place: Place) -> None:
    one, two = place.source(1), place.source(2)
    await place.write("a", "b")
    old = await one.claim(10)
    place.clock.advance(LEASE.total_seconds())
    new = await one.claim(10)
    assert [d.seq for d in new] == [d.seq for d in old]
    assert await one.settle(done(*old)) == 2, "too late, and under the old title"
    await place.write("a")
    assert await two.claim(10) == []
    assert await one.settle(done(*new)) == 0
    assert keys(await two.claim(10)) == "a"
    assert remembers(one) == 0


async def test_what_another_took_over_is_forgotten(place: Place) -> None:
    one, two = place.source(1), place.source(2)
    await place.write("a", "b", "a")
    old = await one.claim(10)
    place.clock.advance(LEASE.total_seconds())
    heirs = await two.claim(10)
    assert await one.renew(old) == set()
    await one.release(old)
    assert remembers(one) == 0
    assert await two.settle(done(*heirs)) == 0


async def test_a_claim_whose_reply_was_lost_is_found_again(place: Place) -> None:
    one = place.source(1)
    await place.write("a", "a")
    run = one._db.run

    async def deaf(op: Any, **options: Any) -> Any:
        await run(op, **options)
        raise ConnectionLost("the reply was lost")

    one._db.run = deaf  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost):
        await one.claim(10)
    one._db.run = run  # type: ignore[method-assign]
    await place.write("a")
    claimed = await one.claim(10)
    assert (keys(claimed), [d.attempts for d in claimed]) == ("aaa", [1, 1, 1])


async def test_the_rest_of_a_key_is_looked_for_when_it_is_free(place: Place) -> None:
    """Who saw rows of a key that was taken is woken when it is not: a poll might be seconds away."""
    one, woken = place.source(1), asyncio.Event()
    one.freed = woken.set
    await place.write("a", "a", "b")
    claimed = await one.claim(10)
    await one.settle(done(of(claimed, "a")[0]))
    await one.settle(done(*of(claimed, "b")))
    assert not woken.is_set(), "nothing was seen waiting"
    await place.write("a")
    assert await one.claim(10) == []
    await one.settle(done(of(claimed, "a")[1]))
    assert woken.is_set()
    assert keys(await one.claim(10)) == "a"


async def test_contention_is_told(place: Place) -> None:
    """Keys that somebody else is just claiming: tried and lost."""
    one, two = place.source(1), place.source(2)
    await place.write("a", "b", "c")
    async with one._db.connection() as slow:
        await slow.begin()
        await arun(one._pick(one.new_claim(), 10, ()), slow)
        await place.write("d")
        assert keys(await two.claim(10)) == "d"
        await slow.commit()
    assert place.facts == [KeysChosen(tried=4, taken=1)]


@pytest.mark.parametrize(
    ("dialect", "strategy", "kind"),
    [
        ("postgres", "shards", OrderedSource),
        ("postgres", "advisory", KeyedSource),
        ("postgres", "rows", KeyedSource),
        ("mysql", "shards", OrderedSource),
        ("mysql", "rows", KeyedSource),
        ("mysql", "advisory", "shards or rows"),
        ("sqlite", "shards", OrderedSource),
        ("sqlite", "rows", "shards"),
        ("sqlite", "advisory", "shards"),
    ],
)
def test_each_engine_has_its_strategies(dialect: str, strategy: Any, kind: Any) -> None:
    def make(ordered: bool) -> OutboxSource:
        nothing: Any = None
        return make_source(
            ordered, nothing, open_store(dialect), Settings(order=OrderSettings(strategy=strategy)), ManualClock()
        )

    assert type(make(False)) is OutboxSource, "where order does not matter no strategy does"
    if isinstance(kind, str):
        with pytest.raises(UnsupportedByEngine, match=f"to be {kind} on {dialect}, got '{strategy}'; PostgreSQL"):
            make(True)
    else:
        assert type(make(True)) is kind


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
async def test_a_claim_whose_leaving_part_could_not_be_given_back_is_in_doubt_as_a_whole(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance and an error of the database come together at every fail-over. The engine never learns of these rows,
    so they come back first: what is claimed next must not overtake them."""
    url = f"sqlite:///{tmp_path / 'a.db'}" if dialect == "sqlite" else require("postgres-wheel").create_database()
    place = Place(url, dialect, "shards")
    db, store = place.connect(), place.store
    await db.run(store.migrate())
    source = OrderedSource(db, store, place.settings, place.clock)
    source.owner = await db.run(store.register("one", "ordered", timedelta(minutes=1), place.clock.now()))
    await db.run(store.acquire_shards(source.owner, 16, 16, timedelta(minutes=1), place.clock.now()))
    seqs = await place.write("a", "b", "a", "b")
    pick, release = source._pick, store.release

    def told_meanwhile(*args: Any) -> Any:
        """While the claim is under way: else it would bring nothing of that shard."""
        op = pick(*args)
        source.leaving = {shard_of("b", 16)}
        return op

    monkeypatch.setattr(source, "_pick", told_meanwhile)

    def away(*args: Any) -> Any:
        raise ConnectionLost("away")
        yield

    monkeypatch.setattr(store, "release", away)
    with pytest.raises(ConnectionLost):
        await source.claim(2)
    monkeypatch.undo()
    assert store.release == release
    source.leaving = set()
    claimed = await source.claim(10)
    assert [delivery.seq for delivery in claimed] == seqs
    assert [delivery.attempts for delivery in claimed] == [1, 1, 1, 1]
    await db.close()


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
async def test_a_leaving_shard_fills_no_claim(dialect: str, tmp_path: Path) -> None:
    """Its rows are older than all others, and it is busy here: the other shards of this process go on."""
    url = f"sqlite:///{tmp_path / 'a.db'}" if dialect == "sqlite" else require("postgres-wheel").create_database()
    place = Place(url, dialect, "shards")
    db, store = place.connect(), place.store
    await db.run(store.migrate())
    source = OrderedSource(db, store, place.settings, place.clock)
    source.owner = await db.run(store.register("one", "ordered", timedelta(minutes=1), place.clock.now()))
    await db.run(store.acquire_shards(source.owner, 16, 16, timedelta(minutes=1), place.clock.now()))
    await place.write(*["b"] * 20, "a")
    source.leaving = {shard_of("b", 16)}
    assert keys(await source.claim(10)) == "a"
    await db.close()
