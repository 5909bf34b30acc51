"""Where a group stands: seeks in every way, and how far behind it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from relaybox import Event
from relaybox.ids import key_hash
from relaybox.store.event_rows import lane_key
from relaybox.store.topics import GroupRow, Lag, Parking, Start

from .kit import START, World, happened, numbers

MINUTE = timedelta(minutes=1)


@pytest.fixture
def world() -> Iterator[World]:
    with World(now=START) as world:
        yield world


def seek(world: World, group: GroupRow, to: Start) -> None:
    world.run(world.store.seek(world.topic, group, to, world.now))


def lag(world: World, group: GroupRow) -> Lag:
    lag: Lag = world.run(world.store.lag(world.topic, group, world.now), tx=False)
    return lag


def pass_time(world: World, time: timedelta = MINUTE) -> None:
    assert world.now is not None
    world.now += time


def test_seeks(world: World) -> None:
    group = world.group()
    member = world.member(group, ttl=timedelta(days=1))
    old = world.write_many(5)
    tick = world.tick()
    pass_time(world)
    new = world.write_many(5)
    everything = old + new
    assert sorted(world.drain(group, member)) == everything
    places = {
        Start("earliest"): everything,
        Start("earliest", limit=3): everything[-3:],
        Start("latest"): [],
        Start("event", event=old[2]): everything[2:],
        Start("time", since=START + MINUTE): new,
        Start("time", since=START): everything,
        Start("tick", tick=tick): new,
    }
    for place, expected in places.items():
        seek(world, group, place)
        assert lag(world, group).events == len(expected), place
        assert sorted(world.drain(group, member)) == expected, place


def test_a_seek_refuses_what_was_taken_before_it(world: World) -> None:
    group = world.group()
    member = world.member(group)
    seqs = world.write_many(10)
    taken = world.take(group, member)
    seek(world, group, Start("earliest"))
    assert world.run(world.store.renew(group, [held.token for held, _ in taken.pages], MINUTE, world.now)) == set()
    assert world.finish(group, taken) == len(taken.pages)
    assert world.rows("SELECT DISTINCT epoch FROM outbox_event_cursor") == [(2,)]
    assert sorted(world.drain(group, member)) == seqs


def test_a_seek_holds_for_members_that_know_the_group_from_before(world: World) -> None:
    """Their GroupRow still says where it started."""
    world.write_many(10)
    group = world.group(start=Start("event", event=8))
    member = world.member(group)
    assert sorted(world.drain(group, member)) == [8, 9, 10]
    seek(world, group, Start("event", event=4))
    assert sorted(world.drain(group, member)) == [4, 5, 6, 7, 8, 9, 10]


def test_a_start_at_a_time_passes_over_what_was_created_before_and_commits_later(world: World) -> None:
    with psycopg.connect(world.url) as slow:
        world.write(happened(1), on=slow)
        pass_time(world)
        group = world.group(start=Start("time", since=world.now))
        member = world.member(group)
        seqs = world.write(happened(2))
        slow.commit()
    assert world.drain(group, member) == seqs
    assert lag(world, group).events == 0


def test_latest_gets_everything_that_commits_after_the_group(world: World) -> None:
    with psycopg.connect(world.url) as slow:
        late = world.write(happened(1), on=slow)
        group = world.group(start=Start("latest"))
        soon = world.write(happened(2))
        slow.commit()
    assert sorted(world.drain(group, world.member(group))) == late + soon


def test_lag_counts_what_is_unread_taken_parked_and_dead(world: World) -> None:
    group = world.group()
    member = world.member(group, ttl=timedelta(days=1))
    assert lag(world, group) == Lag("g", 0, 0, 0, 0, None, dict.fromkeys(range(4), 0))
    world.write_many(40)
    pass_time(world)
    assert lag(world, group).events == 40
    assert lag(world, group).oldest == MINUTE
    taken = world.take(group, member, events=3)
    assert (lag(world, group).events, lag(world, group).taken) == (40, len(numbers(taken.pages)))
    held, page = taken.pages[0]
    states = ["retry", "dead"]
    parkings = []
    for row, state in zip(page, states, strict=False):
        event = Event.stored(row)
        hashed = key_hash(lane_key(event))
        parkings.append((held.token, Parking(event, held.place.shard, hashed, state, 1, MINUTE, "why")))  # type: ignore[arg-type]
    assert world.finish(group, taken, parkings) == 0
    now = lag(world, group)
    assert (now.taken, now.parked, now.dead) == (0, 1, 1)
    assert now.events == 40 - len(numbers(taken.pages)) + 1
    assert sum(now.shards.values()) == now.events - 1
    world.drain(group, member)
    assert (lag(world, group).events, lag(world, group).oldest) == (1, MINUTE)


def test_lag_sees_late_commits_also_behind_the_part_that_is_being_read(world: World) -> None:
    group = world.group()
    member = world.member(group)
    with psycopg.connect(world.url) as slow:
        world.write(*(happened(n, "k") for n in range(10)), on=slow)
        world.write(*(happened(n, "k") for n in range(10)))
        world.finish(group, world.take(group, member, events=4))
        assert lag(world, group).events == 6
        slow.commit()
    world.write(happened(0, "k"))
    assert lag(world, group).events == 17
    world.finish(group, world.take(group, member, events=4))
    assert lag(world, group).events == 13
    world.drain(group, member)
    assert lag(world, group).events == 0


def test_lag_of_a_large_backlog_is_reckoned(world: World) -> None:
    group = world.group()
    for _ in range(40):
        world.write_many(1_000)
    found = lag(world, group)
    assert not found.exact
    assert 36_000 < found.events < 44_000
    times = []
    for _ in range(5):
        began = time.perf_counter()
        lag(world, group)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.2, times


def test_seeks_while_members_claim() -> None:
    """Nobody waits for another for ever, and after the last seek everything comes, although others claim."""
    with World() as world:
        group = world.group()
        stop, mark = threading.Event(), threading.Lock()
        settled: list[int] = []
        failed: list[BaseException] = []

        def work(name: str) -> None:
            try:
                member = world.member(group, name)
                while not stop.is_set():
                    taken = world.take(group, member, events=5, ranges=2)
                    for held, page in taken.pages:
                        with mark:
                            if world.settle(group, finished=[(held, ())]) == 0:
                                settled.extend(row[0] for row in page)
            except BaseException as error:
                failed.append(error)

        written = world.write_many(100)
        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for to in [Start("event", event=50), Start("latest"), Start("time", since=world.one("SELECT now()"))] * 4:
            seek(world, group, to)
            written += world.write_many(10)
        with mark:
            seek(world, group, Start("earliest"))
            settled.clear()
        until = time.monotonic() + 30
        while set(settled) != set(written) and not failed and time.monotonic() < until:
            time.sleep(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert sorted(settled) == sorted(written)
