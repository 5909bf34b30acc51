"""Moving a topic to another tracking while it is used: nothing lost, nothing twice, nobody's place changed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import relaybox.store.topics.moves as moves
from relaybox import Event
from relaybox.drivers.script import play
from relaybox.errors import ConfigError
from relaybox.ids import key_hash
from relaybox.op import drive
from relaybox.store.topics import ClaimedRanges, ParkedOutcome, Parking, RangeSettlement
from relaybox.topic import Tracking
from relaybox.topics.move import move

from .world import TTL, World

WAYS: list[tuple[Tracking, Tracking]] = [
    ("offset", "bitmap"),
    ("offset", "acks"),
    ("bitmap", "offset"),
    ("acks", "offset"),
    ("bitmap", "acks"),
    ("acks", "bitmap"),
]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "WINDOW", 7)


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def one(tracking: Tracking, **options: Any) -> World:
        made.append(World(tracking, **options))
        return made[-1]

    yield one
    for world in made:
        world.close()


@pytest.mark.parametrize(("was", "to"), WAYS)
def test_every_group_keeps_its_place(make: Callable[..., World], was: Tracking, to: Tracking) -> None:
    """One is ahead, one is behind, one is paused, one has gaps: a range under way, one parked."""
    world = make(was)
    for name in ("ahead", "behind", "paused", "gaps"):
        world.join(name)
    world.state("paused", "paused")
    seqs = world.write(30)
    assert sorted(world.drain("ahead")) == seqs
    world.tick()
    held = world.claim("gaps", events=3, ranges=2)
    parked = park_one(world, "gaps", held)
    later = world.write(5)
    play(move(world.context, world.name, to), world.db)
    topic = world.topic
    assert (topic.topic.tracking, topic.moving) == (to, None)
    assert topic.version > 1
    newest = world.write(4)

    assert sorted(world.drain("ahead")) == later + newest
    assert sorted(world.drain("behind")) == seqs + later + newest
    world.state("paused", "active")
    assert sorted(world.drain("paused")) == seqs + later + newest
    assert world.settle("gaps", held) == 0
    rest = world.drain("gaps")
    done = {row[0] for _, rows in held.pages for row in rows}
    assert sorted({*rest, *done, *parked}) == seqs + later + newest
    assert len(rest) + len(done) + len(parked) == 39
    if to != "offset":
        assert world.open() == sorted(parked)
        retry(world, "gaps")
        assert world.complete() == seqs + later + newest


def park_one(world: World, name: str, before: ClaimedRanges | None = None) -> set[int]:
    """The first event of the next claim fails, the rest of it is done. `before`: what the member has besides."""
    taken = world.claim(name, events=1, ranges=1)
    (held, rows), *_ = taken.pages
    event = Event.stored(rows[0][:12])
    parking = Parking(event, held.place.shard, key_hash(event.id), "retry", 1, TTL * 0, "no")
    settlement = RangeSettlement(finished=[(held, [rows[0][0]])], parkings=[(held.token, parking)])
    settlement = settlement._replace(known=[range.token for range, _ in before.pages] if before else ())
    assert world.run(world.store.settle(world.topic, world.group(name), settlement, None)) == 0
    return {rows[0][0]}


def retry(world: World, name: str) -> None:
    group = world.group(name)
    claimed = world.run(world.store.claim_parked(world.topic, group, world.member(group), 10, TTL, None))
    outcomes = [ParkedOutcome(event.row[0], event.token, None, None) for event in claimed]
    world.run(world.store.settle(world.topic, group, RangeSettlement(parked=outcomes), None))


@pytest.mark.parametrize(("was", "to"), WAYS)
def test_writers_go_on_and_one_is_slow(make: Callable[..., World], was: Tracking, to: Tracking) -> None:
    """A transaction that began before the move and commits after the switch is not forgotten, nobody waits."""
    world = make(was)
    world.join("a")
    world.join("b")
    written = world.write(20)
    stop, threads = threading.Event(), []
    numbers: list[int] = []

    def writer() -> None:
        while not stop.is_set():
            topic = world.topic
            seqs = world.run(world.store.write(topic, [Event("Happened", {})], None))
            numbers.extend(seqs or ())  # None: it has changed meanwhile; ask again

    with world.writing(3) as slow:
        for _ in range(2):
            threads.append(threading.Thread(target=writer))
            threads[-1].start()
        waited = 0
        steps = move(world.context, world.name, to)
        answer: Any = None
        while waited < 3:
            step = steps.send(answer)
            waited += isinstance(step, float)
            answer = None if isinstance(step, float) else world.run(step)  # type: ignore[arg-type]
        before = len(numbers)
        while len(numbers) < before + 20:  # nobody waits for the slow one
            pass
    steps.close()
    play(move(world.context, world.name, to), world.db)
    stop.set()
    for thread in threads:
        thread.join()
    written += slow + numbers
    assert sorted(world.drain("a")) == sorted(world.drain("b")) == sorted(written)
    if to != "offset":
        assert world.complete() == sorted(written)


def test_writers_may_be_quicker_than_the_move(make: Callable[..., World]) -> None:
    """Who writes more than a window for each step of the move does not keep it from its end."""
    world = make("offset")
    world.join("a")
    written = world.write(20)
    steps: list[Any] = []

    def take(step: Any) -> Any:
        steps.append(step)
        assert len(steps) < 500
        written.extend(world.write(8))
        return None if isinstance(step, float) else world.run(step)

    drive(move(world.context, world.name, "bitmap"), take)
    assert sorted(world.drain("a")) == sorted(written)
    assert world.complete() == sorted(written)


def test_readers_that_do_not_know_yet(make: Callable[..., World]) -> None:
    """A member with the topic as it was settles without marks: the move, or the next sweep, notes what it did."""
    world = make("offset")
    world.join("a")
    seqs = world.write(10)
    world.tick()
    taken, stale = world.claim("a"), world.topic
    play(move(world.context, world.name, "bitmap"), world.db)
    done = [(held, [row[0] for row in rows]) for held, rows in taken.pages]
    world.run(world.store.settle(stale, world.group("a"), RangeSettlement(finished=done), None))
    assert world.open() == seqs
    world.catch_up("a")
    assert world.complete() == seqs


def test_rolled_back_before_the_switch(make: Callable[..., World]) -> None:
    world = make("offset")
    world.join("a")
    seqs = world.write(30)
    world.run(world.store.begin_move(world.name, "bitmap", None))
    for _ in range(4):
        moving = world.run(world.store.move_step(world.name, None))
    assert moving is not None
    assert moving["phase"] == "build"
    assert world.run(world.store.cancel_move(world.name, None))
    assert not world.run(world.store.cancel_move(world.name, None))
    assert (world.topic.topic.tracking, world.topic.version, world.topic.moving) == ("offset", 1, None)
    assert world.group("a").bit is None
    assert world.sql(f"SELECT to_regclass('{world.mark}')") == [(None,)]
    assert sorted(world.drain("a")) == seqs


def test_past_the_switch_there_is_no_way_back(make: Callable[..., World]) -> None:
    world = make("bitmap")
    with world.writing():
        world.run(world.store.begin_move(world.name, "offset", None))
        world.run(world.store.move_step(world.name, None))
        with pytest.raises(ConfigError, match="finish the move"):
            world.run(world.store.cancel_move(world.name, None))
        with pytest.raises(ConfigError, match="on its way to 'offset'"):
            world.run(world.store.begin_move(world.name, "acks", None))
    play(move(world.context, world.name, "offset"), world.db)
    assert world.topic.moving is None


KILLED = """
import sys
sys.path[:0] = sys.argv[3:]
import relaybox.store.topics.moves as moves
from relaybox.topics.move import move
from relaybox.drivers.script import play
from topics.world import World
moves.WINDOW = 3
world = World("offset", url=sys.argv[1])
play(move(world.context, "orders", sys.argv[2], lambda moving: print(moving["phase"], flush=True)), world.db)
"""


@pytest.mark.parametrize(("was", "to"), [("offset", "bitmap"), ("bitmap", "acks"), ("acks", "offset")])
def test_killed_at_any_point(make: Callable[..., World], was: Tracking, to: Tracking) -> None:
    """The next one goes on; writers and readers go on in between."""
    world = make(was)
    world.join("a")
    world.join("b")
    written = world.write(40)
    chance, kills = random.Random(3), 0
    while world.topic.topic.tracking != to or world.topic.moving is not None:
        command = [sys.executable, "-c", KILLED, world.url, to, *sys.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as mover:
            assert mover.stdout is not None
            for _ in range(chance.randint(1, 15 if to != "offset" else 3)):
                mover.stdout.readline()
            os.kill(mover.pid, signal.SIGKILL)
        kills += 1
        assert kills < 60
        written += world.write(2)
        world.drain("b")
    assert kills >= 1
    assert sorted(world.drain("a")) == written
    if to != "offset":
        world.catch_up("b")
        assert world.complete() == written


def test_the_plan_touches_nothing(make: Callable[..., World]) -> None:
    world = make("offset")
    plan = play(move(world.context, world.name, "bitmap", dry_run=True), world.db)
    assert (plan.tracking, plan.to, plan.under_way) == ("offset", "bitmap", None)
    assert any("rolled back" in step for step in plan.steps)
    assert world.topic.moving is None
    with pytest.raises(ConfigError, match="pub_sub"):
        play(move(world.context, world.name, "rows", dry_run=True), world.db)


def test_too_many_groups_for_a_bitmap(make: Callable[..., World]) -> None:
    world = make("offset", shards=1)
    for n in range(65):
        world.join(f"g{n}")
    with pytest.raises(ConfigError, match=r"65 groups.*64"):
        play(move(world.context, world.name, "bitmap"), world.db)


def test_a_group_that_joins_meanwhile(make: Callable[..., World]) -> None:
    world = make("offset")
    world.join("a")
    seqs = world.write(20)
    world.run(world.store.begin_move(world.name, "bitmap", None))
    for _ in range(2):
        world.run(world.store.move_step(world.name, None))
    world.join("late", "earliest")
    world.join("now")
    play(move(world.context, world.name, "bitmap"), world.db)
    assert {world.group(name).bit for name in ("a", "late", "now")} == {0, 1, 2}
    more = world.write(3)
    assert sorted(world.drain("late")) == seqs + more
    assert sorted(world.drain("now")) == more
    world.drain("a")
    assert world.complete() == seqs + more


def test_events_cleaned_up_meanwhile_leave_no_mark(make: Callable[..., World]) -> None:
    soon = timedelta(microseconds=1)
    world = make("offset", retention=soon, zero_retention=soon)
    world.join("a")
    world.join("b")
    old = world.write(20)
    world.drain("a", "b")
    world.run(world.store.begin_move(world.name, "bitmap", None))
    while (world.topic.moving or {}).get("phase") != "switch":
        world.run(world.store.move_step(world.name, None))
    assert world.open() == old
    swept = world.run(world.store.sweep_log(world.topic, dict.fromkeys(range(4), 0), 1000, None))
    assert swept is not None
    assert swept.deleted == 20
    play(move(world.context, world.name, "bitmap"), world.db)
    assert world.open() == world.complete() == []
