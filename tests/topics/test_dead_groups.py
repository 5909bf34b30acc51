"""Groups that die, restart, come back or are removed lose nothing and keep nothing for ever; what a dead one means for
the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from kit import until
from relaybox.clock import SystemClock
from relaybox.drivers import open_async
from relaybox.drivers.script import play
from relaybox.op import Op, Query
from relaybox.store.topics import Beat, GroupRow, Range, Row, Start, TopicRow
from relaybox.testing.clock import ManualClock
from relaybox.topics.backfill import Job

from .kit import TTL, World, happened, numbers
from .liveness_kit import beating, check, context, group_at, joined, state_of

MARKS = "outbox_event_mark_1"
OPEN = f"SELECT count(*) FROM {MARKS} WHERE completed_at IS NULL"


@pytest.fixture
def bitmap() -> Iterator[World]:
    with World(options={"tracking": "bitmap"}) as world:
        yield world


@pytest.fixture
def offset() -> Iterator[World]:
    with World() as world:
        yield world


def die(world: World, group: GroupRow) -> GroupRow:
    dead: GroupRow = world.run(world.store.set_state(group, "dead", "test", world.now))
    return dead


def release(world: World, limit: int = 1000) -> int:
    """What the maintenance leader does until nothing is left."""
    total = 0
    while count := world.run(world.store.release(topic(world), world.now, limit=limit)):
        total += count
    return total


def topic(world: World) -> TopicRow:
    row: TopicRow = world.run(world.store.topic("t"))
    return row


def requires(world: World, bit: int | None) -> list[int]:
    return [row[0] for row in world.rows(f"SELECT seq FROM {MARKS} WHERE required & (1::bigint << {bit}) <> 0")]


@contextmanager
def together(*works: Any) -> Iterator[None]:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def test_events_written_while_a_group_is_declared_dead(bitmap: World) -> None:
    """A transaction begun after that does not count the group; what was under way is swept."""
    groups = [bitmap.group(f"g{n}") for n in range(3)]
    buried, stop = threading.Event(), threading.Event()
    after: list[int] = []
    lock = threading.Lock()

    def write() -> None:
        while not stop.is_set():
            late = buried.is_set()
            seqs = bitmap.write_many(3)
            if late:
                with lock:
                    after.extend(seqs)

    with together(write, write, write):
        while bitmap.one(f"SELECT count(*) FROM {MARKS}") < 100:
            pass
        bitmap.rows("UPDATE outbox_event_group SET heartbeat_at = '2020-01-01' WHERE name = 'g1'")
        assert [verdict.group for verdict in check(bitmap)] == ["g1"]
        buried.set()
        while len(after) < 100:
            pass
        stop.set()
    dead = set(requires(bitmap, groups[1].bit))
    assert dead, "some were written before"
    assert not dead & set(after)
    alive = {groups[0].bit, groups[2].bit}
    assert all(set(after) <= set(requires(bitmap, bit)) for bit in alive), "nobody else was forgotten"
    release(bitmap)
    assert requires(bitmap, groups[1].bit) == []


def flap(world: World, clock: ManualClock, group: GroupRow, rounds: int, *, progress: int) -> list[int]:
    """A restart every 30 s, with good heartbeats. The failures counted after each."""
    counted = []
    for n in range(rounds):
        member = world.member(group, f"life {n}")
        world.claim(group, member)
        for _ in range(3):
            clock.advance(seconds=10)
            world.now = clock.now()
            world.run(world.store.beat([Beat(member, processed=progress)], TTL, world.now))
        check(world)
        counted.append(world.one("SELECT failures FROM outbox_event_group"))
    return counted


def test_a_group_that_restarts_for_ever_and_does_nothing() -> None:
    """Heartbeats are fine, so progress must be looked at; an operator brings it back."""
    clock = ManualClock()
    with World(now=clock.now()) as world:
        group = world.group()
        world.write_many(10)
        world.tick()
        counted = flap(world, clock, group, 16, progress=0)
        assert sorted(set(counted)) == [0, 1, 2, 3]
        dead = world.run(world.store.group("t", "g"))
        assert (dead.state, dead.stalled) == ("dead", True)
        assert "without progress" in dead.reason
        again, _ = world.run(world.store.subscribe(world.topic, "g", Start(), None, world.now))
        assert again.state == "dead", "its own restarts do not resurrect it"
        group_at(context(world, clock=clock)).resume(reason="repaired")
        assert state_of(world) == "active"


@pytest.mark.parametrize("why", ["it gets on", "there is nothing to do"])
def test_a_group_that_restarts_is_left_alone_while(why: str) -> None:
    clock = ManualClock()
    with World(now=clock.now()) as world:
        group = world.group()
        if why == "it gets on":
            world.write_many(10)
            world.tick()
        assert set(flap(world, clock, group, 16, progress=int(why == "it gets on"))) == {0}
        assert state_of(world) == "active"


async def test_a_network_partition_that_heals(offset: World) -> None:
    """It is back by its heartbeat, the counter is reset, it gets what it missed; late acks are refused."""
    group = offset.group()
    offset.write_many(4)
    async with beating(offset) as heartbeats:
        member, told = await joined(heartbeats, group)
        taken = offset.take(group, member.member)
        heartbeats.held = True
        await until(lambda: member.silent)
        offset.rows("UPDATE outbox_event_group SET heartbeat_at = heartbeat_at - interval '1 hour', failures = 2")
        assert [verdict.died for verdict in check(offset)] == [True]
        missed = offset.write_many(100)
        heartbeats.held = False
        await until(lambda: state_of(offset) == "active")
        assert offset.one("SELECT failures FROM outbox_event_group") == 0
        await until(lambda: told.states == ["dead", "active"])
        assert offset.finish(group, taken) == len(taken.pages), "its acks from before come too late"
        seen = offset.drain(group, member.member)
        assert sorted(seen) == sorted(numbers(taken.pages) + missed)


class Skewed(SystemClock):
    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by


@pytest.mark.parametrize("minutes", [-5, 5])
async def test_clocks_that_differ(offset: World, minutes: int) -> None:
    """Only the database's clock decides who lives and what is leased."""
    clock = Skewed(timedelta(minutes=minutes))
    group = offset.group(heartbeat_timeout=timedelta(minutes=2))
    offset.write_many(10)
    async with beating(offset, clock=clock) as heartbeats:
        member, _ = await joined(heartbeats, group)
        await heartbeats.beat()
        off = "abs(extract(epoch FROM {} - clock_timestamp()))"
        assert offset.one(f"SELECT {off.format('seen_at')} FROM outbox_event_member") < 2
        assert offset.one(f"SELECT {off.format('heartbeat_at')} FROM outbox_event_group") < 2
        await asyncio.to_thread(two_consumers, offset, clock)
        assert check(offset) == []
        await until(lambda: not member.silent)


def two_consumers(world: World, skewed: SystemClock) -> None:
    with group_at(context(world, clock=skewed)).consumer("c1") as consumer:
        batch = consumer.poll()
        with group_at(context(world)).consumer("c2") as other:
            assert set(other.poll()).isdisjoint(batch)
        consumer.commit(batch)


@pytest.mark.parametrize("k", range(7))
def test_cleanup_that_crashes_in_the_middle(bitmap: World, k: int) -> None:
    """What is left is found by the next run, which looks at all dead groups; nothing is taken off twice."""
    alive, early, late = (bitmap.group(name) for name in ("alive", "early", "late"))
    seqs = bitmap.write_many(6)
    member = bitmap.member(alive)
    assert sorted(bitmap.drain(alive, member)) == seqs
    die(bitmap, early)
    for _ in range(k):
        assert bitmap.run(bitmap.store.release(topic(bitmap), None, limit=1)) == 1
    with pytest.raises(ZeroDivisionError):
        bitmap.run(crash(bitmap.store.release(topic(bitmap), None, limit=3)))
    die(bitmap, late)
    release(bitmap, limit=2)
    assert requires(bitmap, early.bit) == requires(bitmap, late.bit) == []
    assert requires(bitmap, alive.bit) == seqs
    assert bitmap.one(OPEN) == 0, "all of them wait for nobody"
    assert release(bitmap) == 0


def crash(op: Op[Any]) -> Op[None]:
    """Its statements run, then the process ends before the commit."""
    yield from op
    raise ZeroDivisionError


def test_a_group_dies_with_half_of_its_work_done(bitmap: World) -> None:
    """Acks of the dead are refused, nothing is completed twice or stuck, the rest comes after resurrection."""
    group, other = bitmap.group(), bitmap.group("other")
    seqs = bitmap.write_many(100)
    member = bitmap.member(group)
    bitmap.drain(other, bitmap.member(other))
    taken = bitmap.take(group, member, events=10)
    half = numbers(taken.pages)
    while len(half) < 50:
        more = bitmap.take(group, member, events=10)
        taken = taken._replace(pages=taken.pages + more.pages)
        half = numbers(taken.pages)
    done, in_flight = cut(taken.pages, 50)
    assert bitmap.settle(group, finished=[(held, [row[0] for row in page]) for held, page in done]) == 0
    die(bitmap, group)
    lost = bitmap.settle(group, finished=[(held, [row[0] for row in page]) for held, page in in_flight])
    assert lost == len(in_flight)
    bitmap.run(bitmap.store.apply(group, "beat", "test", None))
    seen = bitmap.drain(group, member)
    assert sorted(numbers(done) + seen) == seqs
    release(bitmap)
    assert bitmap.one(OPEN) == 0


def cut(
    pages: list[tuple[Range, list[Row]]], events: int
) -> tuple[list[tuple[Range, list[Row]]], list[tuple[Range, list[Row]]]]:
    """Ranges with so many events at least, and the others."""
    count = 0
    for n, (_, page) in enumerate(pages):
        if count >= events:
            return pages[:n], pages[n:]
        count += len(page)
    return pages, []


def test_ten_instances_come_back_together() -> None:
    """One resurrection, one backfill, and each missed event waits for the group once."""
    with World(options={"tracking": "bitmap"}) as world:
        group, other = world.group(), world.group("other")
        die(world, group)
        release(world)
        seqs: list[int] = []
        for _ in range(20):
            seqs += world.write_many(1000)
        assert requires(world, group.bit) == []
        results: list[str] = []
        moves: list[datetime] = []

        def come_back() -> None:
            back, new = world.run(world.store.subscribe(topic(world), "g", Start(), None, None))
            assert not new
            moves.append(back.state_at)
            results.append(play(Job(context(world), topic(world), back).run(), world.db).what)

        with together(*[come_back] * 10):
            pass
        assert len(set(moves)) == 1
        assert "backfill completed" in results
        assert all(what == "backfill completed" or "in progress" in what for what in results)
        assert sorted(requires(world, group.bit)) == seqs
        assert sorted(world.drain(group, world.member(group), events=1000)) == seqs
        world.drain(other, world.member(other), events=1000)
        assert world.one(OPEN) == 0


async def test_pitfall_8_a_group_is_removed_while_it_runs(bitmap: World) -> None:
    """Others see it at once, what is in flight may end, then its events are free."""
    group, other = bitmap.group(), bitmap.group("other")
    bitmap.write_many(20)
    bitmap.drain(other, bitmap.member(other))
    place = group_at(context(bitmap))
    async with beating(bitmap) as heartbeats:
        member, told = await joined(heartbeats, group)
        taken = bitmap.take(group, member.member)
        removal = asyncio.create_task(asyncio.to_thread(place.cancel, wait=30, reason="decommissioned"))
        await until(lambda: told.states == ["paused"])
        assert bitmap.take(group, member.member).pages == [], "it takes nothing more"
        assert not removal.done()
        assert bitmap.finish(group, taken) == 0, "what it had is finished"
        await removal
        await until(lambda: told.states[-1] == "cancelled")
        assert member.silent
        await heartbeats.beat()
    assert state_of(bitmap) == "cancelled"
    assert bitmap.one(OPEN) == 0
    place.cancel(wait=30)  # safe to repeat


def test_a_member_that_does_not_end_holds_up_a_removal_for_its_timeout_only(bitmap: World) -> None:
    group = bitmap.group()
    bitmap.write_many(5)
    taken = bitmap.take(group, bitmap.member(group))
    group_at(context(bitmap)).cancel(wait="300ms")
    assert bitmap.finish(group, taken) == len(taken.pages)
    assert bitmap.one(OPEN) == 0


async def test_heartbeats_when_the_pool_is_exhausted_and_the_database_slow(offset: World) -> None:
    """Own connections. 200 members in 40 groups, their pool of 4 held by slow queries for four timeouts."""
    timeout = timedelta(seconds=1.5)
    groups = [
        offset.group(f"g{n}", heartbeat_interval=timedelta(seconds=0.3), heartbeat_timeout=timeout) for n in range(40)
    ]
    pool = open_async(offset.url, size=4)
    sleep = Query("sleep", "SELECT pg_sleep(6)", "rows")

    def work() -> Op[None]:
        yield sleep.bind()

    async with beating(offset) as heartbeats:
        for group in groups:
            for n in range(5):
                await joined(heartbeats, group, f"m{n}")
        busy = [asyncio.create_task(pool.run(work())) for _ in range(20)]
        deaths = []
        async with asyncio.timeout(60):
            while not any(task.done() for task in busy):
                deaths += await asyncio.to_thread(check, offset)
                await asyncio.sleep(0.2)
        assert [verdict for verdict in deaths if verdict.died] == []
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    await pool.close()


async def test_the_same_without_connections_of_their_own_would_die(offset: World) -> None:
    """What the test above guards against: beats that wait for the pool of the handlers."""
    group = offset.group(heartbeat_interval=timedelta(seconds=0.1), heartbeat_timeout=timedelta(seconds=1))
    pool = open_async(offset.url, size=1)
    sleep = Query("sleep", "SELECT pg_sleep(3)", "rows")

    def work() -> Op[None]:
        yield sleep.bind()

    async with beating(offset) as heartbeats:
        await joined(heartbeats, group)
        heartbeats._beats, own = pool, heartbeats._beats
        busy = asyncio.create_task(pool.run(work()))
        await asyncio.sleep(0)
        died = False
        while not busy.done():
            died = died or any(verdict.died for verdict in await asyncio.to_thread(check, offset))
            await asyncio.sleep(0.1)
        assert died
        heartbeats._beats = own
    await pool.close()


# -- what a death means -----------------------------------------------------------------------------


def test_the_third_of_three_groups_dies_and_nothing_waits_for_it(bitmap: World) -> None:
    """Two are done, one is dead: complete without further acks."""
    first, second, third = (bitmap.group(f"g{n}") for n in range(3))
    seqs = bitmap.write_many(10)
    for group in (first, second):
        assert sorted(bitmap.drain(group, bitmap.member(group))) == seqs
    assert bitmap.one(OPEN) == 10
    bitmap.rows(f"UPDATE outbox_event_group SET heartbeat_at = '2020-01-01' WHERE id = {third.id}")
    assert [verdict.group for verdict in check(bitmap)] == ["g2"]
    assert release(bitmap) == 10
    assert bitmap.one(OPEN) == 0


@pytest.mark.parametrize("how", ["crashed", "decommissioned", "no network", "hangs", "scaled to zero"])
async def test_all_ways_to_be_dead(offset: World, how: str) -> None:
    """Nobody gives a sign, whatever the reason."""
    group = offset.group(heartbeat_interval=timedelta(0), heartbeat_timeout=timedelta(seconds=1))
    hangs = False
    async with beating(offset) as heartbeats:
        member, _ = await joined(heartbeats, group, alive=lambda: not hangs)
        await heartbeats.beat()
        assert check(offset) == []
        match how:
            case "crashed" | "no network":
                heartbeats.held = True
            case "hangs":
                hangs = True
            case "decommissioned" | "scaled to zero":
                await member.leave()
        await until(lambda: any(verdict.died for verdict in check(offset)))
        assert state_of(offset) == "dead"


def test_what_was_produced_while_a_group_was_dead_is_there_until_retention_ends(offset: World) -> None:
    """The promise, and it can be seen: a dead group has a lag."""
    group = offset.group()
    die(offset, group)
    seqs = offset.write_many(100)
    assert group_at(context(offset)).info().pending == 100
    back: GroupRow = offset.run(offset.store.apply(group, "beat", "test", None))
    assert sorted(offset.drain(back, offset.member(back))) == seqs


def test_events_of_a_writer_that_is_slow_to_commit_reach_the_group_that_was_dead_meanwhile(offset: World) -> None:
    group = offset.group()
    with psycopg.connect(offset.url) as slow:
        written = offset.write(happened(1), on=slow)
        die(offset, group)
        back: GroupRow = offset.run(offset.store.apply(group, "beat", "test", None))
        slow.commit()
    assert offset.drain(back, offset.member(back)) == written
