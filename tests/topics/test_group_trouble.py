"""Seeks, moves, replays and rejoins at bad moments: no event is lost or held for ever, no member stops for good."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kit import until
from relaybox import ALL, AsyncMaintainer
from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.drivers.script import play
from relaybox.errors import BrokerUnavailable, Reject, StoreBusy, StoreError
from relaybox.event import Event
from relaybox.ids import key_hash
from relaybox.op import Copy, Query, Result, Statement, run
from relaybox.store.topics import ClaimedRanges, GroupOptions, ParkedOutcome, Parking, Start
from relaybox.topic import Topic
from relaybox.topics import source
from relaybox.topics.move import move
from relaybox.topics.start import StartFrom

from .kit import START, World, happened, numbers
from .liveness_kit import beating, context, joined
from .pull_kit import Pulled
from .test_group import QUICK, in_batches, process
from .world import World as Queue


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


# -- ticks that are gone -----------------------------------------------------------------------------------------------


def test_a_goal_that_was_thinned_away_is_no_goal() -> None:
    """Groups of a process are sent to the tick that one of them read to last; it may be old, and gone."""
    with World(now=START) as world:
        group = world.group("first")
        member = world.member(group, ttl=timedelta(hours=1))
        world.tick(force=True)
        seqs = world.write_many(8)
        taken = world.take(group, member)
        goal = taken.pages[0][0].place.target
        assert world.finish(group, taken) == 0
        world.tick(force=True)
        while world.claim(group, member).behind:
            pass
        world.now = START + timedelta(minutes=20)
        world.run(world.store.thin_ticks(world.topic, 0, 1000, world.now))
        assert world.rows(f"SELECT 1 FROM outbox_event_tick WHERE tick = {goal}") == [], "else this shows nothing"
        other = world.group("second")
        reader = world.member(other)
        seen = numbers(world.take(other, reader, target=goal).pages)
        assert sorted(seen) == seqs
        more = world.write_many(4)
        assert sorted(world.drain(other, reader)) == more


def test_a_tick_that_a_subscription_under_way_begins_at_stays() -> None:
    with World(now=START) as world:
        for second in range(4):
            world.now = START + timedelta(seconds=second)
            world.write_many(2)
            world.tick(force=True)
        world.now = START + timedelta(minutes=20)
        event = world.write_many(1)[0]
        world.tick(force=True)
        start = Start("event", event=event)
        subscribe: Any = world.store.subscribe(world.topic, "g", start, GroupOptions(), world.now)
        with psycopg.connect(world.url) as slow:
            group, _ = run(subscribe, PsycopgConnection(slow))
            world.run(world.store.thin_ticks(world.topic, 0, 1000, world.now))
            slow.commit()
        base = world.one("SELECT min(base) FROM outbox_event_cursor")
        assert world.rows(f"SELECT 1 FROM outbox_event_tick WHERE tick = {base}")
        assert world.drain(group, world.member(group)) == [event]


def test_a_bit_that_marks_name_outlives_its_group() -> None:
    """Otherwise the next group has it, and is done with what it never had."""
    with World(options={"tracking": "bitmap"}) as world:
        gone, slow = world.group("gone"), world.group("slow")
        member = world.member(gone)
        world.write_many(4)
        assert len(world.drain(gone, member)) == 4
        world.run(world.store.set_state(gone, "cancelled", "test", None))
        assert not world.run(world.store.forget_group(world.topic, gone.id, timedelta(0), None))
        fresh = world.group("fresh")
        assert fresh.bit not in (gone.bit, slow.bit)


# -- policies ----------------------------------------------------------------------------------------------------------


def parked(world: World, taken: ClaimedRanges, seq: int, state: Any) -> tuple[int, Parking]:
    for held, page in taken.pages:
        for row in page:
            if row[0] == seq:
                event = Event.stored(row)
                delay = timedelta()
                return held.token, Parking(event, held.place.shard, key_hash("k"), state, 1, delay, "no")
    raise AssertionError(seq)


def test_what_a_dead_event_held_goes_on_when_the_group_stops_parking_keys(world: World) -> None:
    group = world.group(on_exhausted="park")
    member = world.member(group)
    first, second, third = world.write(*(happened(n, "k") for n in range(3)))
    taken = world.take(group, member)
    leaving = [
        parked(world, taken, first, "dead"),
        parked(world, taken, second, "held"),
        parked(world, taken, third, "held"),
    ]
    assert world.finish(group, taken, leaving) == 0
    group = world.group(on_exhausted="skip")
    seen = []
    for _ in range(3):
        found = world.run(world.store.claim_parked(world.topic, group, member, 10, timedelta(seconds=30), None))
        seen += [one.row[0] for one in found]
        world.settle(group, parked=[ParkedOutcome(one.row[0], one.token, None, None) for one in found])
    assert seen == [second, third]


def test_a_replayed_queue_does_not_stand_before_other_keys(world: World) -> None:
    """A claim looks at a bounded number of due ones; those that wait behind their head must not fill it."""
    group = world.group()
    member = world.member(group)
    lease = timedelta(seconds=30)
    seqs = world.write(*(happened(n, "k") for n in range(150)))
    taken = world.take(group, member, events=1000)
    assert world.finish(group, taken, [parked(world, taken, seq, "dead") for seq in seqs]) == 0
    kept = world.kept(group)
    _, now = world.run(kept.newest(None))
    assert world.run(kept.replay("dead", seqs, now, None)) == len(seqs)
    head = world.run(world.store.claim_parked(world.topic, group, member, 1, lease, None))
    assert [one.row[0] for one in head] == seqs[:1]
    world.settle(group, parked=[ParkedOutcome(seqs[0], head[0].token, timedelta(hours=1), "again")])
    (other,) = world.write(happened(0, "z"))
    taken = world.take(group, member)
    token, parking = parked(world, taken, other, "retry")
    assert world.finish(group, taken, [(token, parking._replace(key_hash=key_hash("z")))]) == 0
    found = world.run(world.store.claim_parked(world.topic, group, member, 1, lease, None))
    assert [one.row[0] for one in found] == [other]


# -- seeks -------------------------------------------------------------------------------------------------------------


class Trapped(PsycopgConnection):
    """Asks a clock that a test can stop."""

    def execute(self, statement: Statement | Copy) -> Result:
        assert isinstance(statement, Statement)
        query = statement.query
        text = query.text.replace("pg_catalog.clock_timestamp()", "trap.clock_timestamp()")
        return super().execute(Query(query.name, text, query.answer).bind(**statement.params))


def test_a_claim_that_began_before_a_seek_ended_goes_by_the_new_place(world: World) -> None:
    """Its first statement has a snapshot from before, and finds the cursor where the seek has put it."""
    seqs = world.write_many(8)
    group = world.group(start=Start("event", event=1000))
    member = world.member(group)
    world.tick(force=True)
    with psycopg.connect(world.url, autocommit=True) as gate, psycopg.connect(world.url) as slow:
        gate.execute("CREATE SCHEMA trap")
        gate.execute(
            "CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_lock_shared(77); PERFORM pg_advisory_unlock_shared(77); "
            "RETURN pg_catalog.clock_timestamp(); END $$"
        )
        gate.execute("SELECT pg_advisory_lock(77)")
        answer: list[ClaimedRanges] = []
        claim: Any = world.store.claim(
            world.topic, group, member, events=100, ranges=64, lease=timedelta(seconds=30), now=None
        )
        thread = threading.Thread(target=lambda: answer.append(run(claim, Trapped(slow))))
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        while not world.one(waiting):
            pass
        world.run(world.store.seek(world.topic, group, Start("earliest"), None))
        gate.execute("SELECT pg_advisory_unlock(77)")
        thread.join()
        slow.commit()
    seen = numbers(answer[0].pages)
    seen += world.drain(group, member)
    assert sorted(seen) == seqs


# -- shares ------------------------------------------------------------------------------------------------------------


def test_a_member_that_lives_and_does_not_ask_leaves_no_shard_unread() -> None:
    """Its process may have no connection left to claim with, while its heartbeats have their own."""
    with World(now=START) as world:
        group = world.group()
        world.member(group, "silent", ttl=timedelta(days=1))
        member = world.member(group, "busy", ttl=timedelta(days=1))
        world.write_many(400)
        read: set[int] = set()
        last = None
        for second in range(40):
            world.now = START + timedelta(seconds=second)
            taken = world.take(group, member, events=1)
            read |= {held.place.shard for held, _ in taken.pages}
            if last is not None:  # it always holds something
                assert world.finish(group, last) == 0
            last = taken
        assert read == {0, 1, 2, 3}


# -- heartbeats --------------------------------------------------------------------------------------------------------


async def test_a_member_that_could_not_join_anew_tries_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    group = world.group()
    async with beating(world) as heartbeats:
        member, told = await joined(heartbeats, group)
        heartbeats.held = True
        world.run(world.store.leave(member.member, None))
        enter = heartbeats._enter

        async def refuse(_: Any) -> Any:
            raise StoreBusy("the database is away")

        monkeypatch.setattr(heartbeats, "_enter", refuse)
        await heartbeats.beat()
        assert told.losses == 0
        monkeypatch.setattr(heartbeats, "_enter", enter)
        await heartbeats.beat()
        assert told.losses == 1
        assert not member.silent


# -- the engine --------------------------------------------------------------------------------------------------------


async def test_a_batch_that_loses_one_range_while_it_waits_delivers_the_others() -> None:
    """The destination is away; meanwhile another takes one of the ranges the batch was made of."""
    seen: list[Any] = []
    calls = 0
    away = True

    async def handle(events: Sequence[Event]) -> None:
        nonlocal calls
        calls += 1
        if away:
            raise BrokerUnavailable("not now")
        seen.extend(event.payload for event in events)

    async with process(None, Topic.pub_sub("orders", shards=4)) as ours:
        await ours.write(*range(40), key=lambda n: f"k{n}")
        service = await ours.deliver(in_batches(100, handle)).start()
        try:
            await until(lambda: calls >= 1)
            assert (await ours.row("SELECT count(DISTINCT shard) FROM outbox_event_range"))[0] > 1
            (other,) = await ours.row(
                "UPDATE outbox_event_range SET token = token + 1, owner = 0, until = '-infinity' "
                "WHERE shard = (SELECT min(shard) FROM outbox_event_range) RETURNING token"
            )
            engine: Any = service._member.engine  # type: ignore[attr-defined]
            await until(lambda: not any(t.token == other - 1 and t.lease_end for t in engine._holding.all()))
            away = False
            await until(lambda: set(seen) == set(range(40)), patience=10)
            await until(lambda: not engine._holding.all(), patience=10)
        finally:
            await service.stop()


async def test_an_event_that_may_kill_its_process_gets_its_turn_while_others_keep_coming() -> None:
    handled = 0

    async def handle(event: Event) -> None:
        nonlocal handled
        if event.payload == "poison":
            raise ValueError("never")
        handled += 1
        await asyncio.sleep(0.002)

    async with process(
        None, Topic.pub_sub("orders", shards=4), settings=QUICK.replaced({"delivery.workers": 2})
    ) as ours:
        await ours.write("poison", key="bad")
        await ours.write(*range(4000), key=lambda n: f"k{n}")
        service = ours.deliver(handle, retry=replace(QUICK.delivery.retry, attempts=6), on_exhausted="skip")
        service._in_flight = 200  # type: ignore[attr-defined]
        await service.start()
        try:
            async with asyncio.timeout(40):
                while not (await ours.row("SELECT count(*) FROM outbox_event_parked WHERE state = 'dead'"))[0]:
                    await asyncio.sleep(0.02)
            assert handled < 3500
        finally:
            await service.stop()


async def test_a_replayed_event_that_waits_behind_one_that_fails_is_not_forgotten() -> None:
    """Both are here at once, of one key: the older was dead and passed over when the younger began."""
    handled: list[Any] = []
    began, go = asyncio.Event(), asyncio.Event()
    calls: list[Any] = []

    async def handle(event: Event) -> None:
        calls.append(event.payload)
        if event.payload == 1 and calls.count(1) == 1:
            raise Reject("not this one")
        if event.payload == 2 and calls.count(2) == 1:
            began.set()
            await go.wait()
            raise ValueError("once")
        handled.append(event.payload)

    async with process(None, Topic.pub_sub("orders", shards=1)) as ours:
        service = await ours.deliver(handle, on_exhausted="skip").start()
        try:
            await ours.write(1, key="k")
            await service.drain()
            await ours.write(2, key="k")
            await asyncio.wait_for(began.wait(), 10)
            assert await ours.group().dead.replay(ALL) == 1
            async with asyncio.timeout(10):
                while not (await ours.row("SELECT count(token) FROM outbox_event_parked"))[0]:
                    await asyncio.sleep(0.01)
            engine: Any = service._member.engine  # type: ignore[attr-defined]
            await until(lambda: any(taken.parked and taken.next for taken in engine._holding.all()))
            go.set()
            await until(lambda: sorted(handled) == [1, 2], patience=10)
            await until(lambda: not engine._holding.all(), patience=10)
        finally:
            go.set()
            await service.stop()


# -- moves -------------------------------------------------------------------------------------------------------------

OPEN = "SELECT count(*) FROM outbox_event_mark_1 WHERE completed_at IS NULL"


async def test_a_running_group_acks_with_the_bit_that_a_move_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "REFRESH", 0.05)
    seen: list[Any] = []

    async def handle(event: Event) -> None:
        seen.append(event.payload)

    async with process(None, Topic.pub_sub("orders", tracking="offset", shards=2)) as ours:
        service = await ours.deliver(handle).start()
        try:
            await ours.write(1, key="a")
            await service.drain()
            await ours.box.topics.move("orders", tracking="bitmap")
            await ours.write(2, key="a")
            await until(lambda: seen == [1, 2])
            await asyncio.sleep(0.1)
            await ours.write(3, key="a")
            await until(lambda: seen == [1, 2, 3])
            await service.drain()
            assert (await ours.row(f"{OPEN} AND seq = 3"))[0] == 0
        finally:
            await service.stop()


def test_a_pull_consumer_learns_of_a_move() -> None:
    pulled = Pulled(shards=2)
    pulled.group()
    consumer = pulled.consumer()
    pulled.world.write_many(2)
    consumer.commit(consumer.poll())
    for tracking in ("bitmap", "acks", "offset"):
        pulled.world.write_many(2)
        batch = consumer.poll()
        assert len(batch) == 2
        play(move(pulled.context, "t", tracking), pulled.context.db)
        with suppress(StoreError):  # once: it did not know yet
            consumer.commit(batch)
        consumer.commit(batch)
        pulled.later(5)
        pulled.world.topic = pulled.world.run(pulled.world.store.topic("t"))
        pulled.world.write_many(2)
        batch = consumer.poll()
        assert len(batch) == 2
        consumer.commit(batch)
        if tracking != "offset":
            newest = max(event.seq or 0 for event in batch)
            assert pulled.world.one(f"{OPEN} AND seq = {newest}") == 0, tracking


def test_what_a_consumer_seeks_past_is_waited_for_no_more() -> None:
    pulled = Pulled(shards=2, tracking="bitmap")
    pulled.group()
    consumer = pulled.consumer()
    consumer.poll()
    pulled.world.write_many(4)
    pulled.at().seek(StartFrom.latest())
    assert not consumer.poll()
    assert pulled.world.one(OPEN) == 0


async def test_what_was_settled_without_an_ack_is_noted_later(world: World) -> None:
    """By a member that did not know of a move yet."""
    group = world.group()
    member = world.member(group)
    old = world.topic
    play(move(context(world, [], SYSTEM_CLOCK), "t", "bitmap"), world.db)
    world.topic = world.run(world.store.topic("t"))
    world.write_many(4)
    world.topic = old
    assert len(world.drain(group, member)) == 4
    assert world.one(OPEN) == 4
    await AsyncMaintainer(world.url, jobs=("detect",)).once()
    assert world.one(OPEN) == 0


def test_a_writer_with_an_old_view_does_not_write_to_a_log_that_is_given_up() -> None:
    """REPEATABLE READ: it sees the version of before for as long as it lives."""
    world = Queue("offset", semantics="queue")
    try:
        group, _ = world.run(world.store.subscribe(world.topic, "default", Start("earliest"), None, None))
        old, event = world.topic, Event("Placed", {"n": 1}, key="k")
        assert group.state == "active"
        with psycopg.connect(world.url) as slow:
            slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            slow.execute("SELECT 1")
            world.run(world.store.begin_move("orders", "rows", None))
            phase = ""
            while phase != "drain_log":
                moving = world.run(world.store.move_step("orders", None))
                assert moving is not None
                phase = moving["phase"]
            write: Any = world.store.write(old, [event], None)
            written = True
            try:
                run(write, PsycopgConnection(slow))
                slow.commit()
            except (StoreError, psycopg.Error):
                slow.rollback()
                written = False
        while world.run(world.store.move_step("orders", None)) is not None:
            pass
        kept = world.sql(f"SELECT count(*) FROM {world.store.tables.queue(old.id).event}")[0][0]
        assert kept == written, "what was committed must be there"
    finally:
        world.close()


# -- leases ------------------------------------------------------------------------------------------------------------


def test_who_was_removed_cannot_renew_what_is_free_for_all(world: World) -> None:
    """A member came back after a silence, with a new id: what it had may be another's at any moment."""
    group = world.group()
    member, other = world.member(group, "m1"), world.member(group, "m2")
    world.write_many(4)
    taken = world.take(group, member)
    tokens = [held.token for held, _ in taken.pages]
    world.run(world.store.leave(member, None))
    assert world.run(world.store.renew(group, tokens, timedelta(seconds=30), None)) == set()
    assert world.take(group, other).pages
