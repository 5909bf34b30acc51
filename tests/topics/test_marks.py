"""Completion by sets: who must have an event, who is done with it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from relaybox.clock import utc_now
from relaybox.errors import TooManyGroups

from .world import World


@pytest.fixture(params=["bitmap", "acks"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


@pytest.fixture
def bitmap() -> Iterator[World]:
    world = World("bitmap")
    yield world
    world.close()


def test_complete_when_every_required_group_is_done(world: World) -> None:
    """The last ack completes in the same statement, and sets the time."""
    world.join("a")
    world.join("b")
    seqs = world.write(5)
    assert sorted(world.drain("a")) == seqs
    assert world.open() == seqs
    assert sorted(world.drain("b")) == seqs
    assert world.complete() == seqs


def test_who_has_it_and_who_has_not(world: World) -> None:
    """The numbers are derived from the sets."""
    for name in ("a", "b", "c"):
        world.join(name)
    (seq,) = world.write(1)
    world.drain("b")
    (found,) = world.run(world.store.completion(world.topic, [seq]))
    assert (found.completed_at, found.required, found.done) == (None, ["a", "b", "c"], ["b"])
    world.drain("a", "c")
    (found,) = world.run(world.store.completion(world.topic, [seq]))
    assert found.completed_at is not None
    assert (found.required, found.done) == (["a", "b", "c"], ["a", "b", "c"])


def test_an_ack_counts_once(world: World) -> None:
    """The same ack again changes nothing."""
    world.join("a")
    world.join("b")
    seqs = world.write(3)
    for _ in range(3):
        world.run(world.store.complete(world.topic, world.group("a"), seqs, None))
    assert world.open() == seqs


def test_a_late_joiner_does_not_stand_in_for_another(world: World) -> None:
    """A acks and C, who is not required, acks; B has not had it, so it stays open."""
    world.join("a")
    world.join("b")
    seqs = world.write(4)
    world.join("c", "earliest")
    assert sorted(world.drain("c")) == seqs
    world.drain("a")
    assert world.open() == seqs
    world.drain("b")
    assert world.complete() == seqs


def test_a_death_completes_what_waited_for_nobody_else(world: World) -> None:
    """Three groups, two finish, the third dies."""
    for name in ("a", "b", "c"):
        world.join(name)
    seqs = world.write(20)
    world.drain("a", "b")
    world.state("c", "dead")
    assert world.release() == 20
    assert world.complete() == seqs
    assert world.release() == 0


def test_release_again_takes_nobody_else_off(world: World) -> None:
    """A second run decrements nothing, and a join meanwhile does not confuse it."""
    for name in ("a", "b", "c"):
        world.join(name)
    seqs = world.write(6)
    world.drain("a")
    world.state("c", "dead")
    world.join("d")
    for _ in range(3):
        world.release()
    assert world.open() == seqs
    assert all(world.required(seq) == {"a", "b"} for seq in seqs)
    world.drain("b")
    assert world.complete() == seqs


def test_a_paused_group_keeps_its_claim(world: World) -> None:
    world.join("a")
    world.join("b")
    world.state("b", "paused")
    seqs = world.write(3)
    world.drain("a")
    assert world.release() == 0
    assert world.open() == seqs
    world.state("b", "active")
    world.drain("b")
    assert world.complete() == seqs


def test_release_finds_what_a_writer_committed_after_the_death(world: World) -> None:
    """Its transaction had read who is required before; the next sweep looks at all who are gone."""
    world.join("a")
    world.join("b")
    with world.writing(2) as seqs:
        world.state("b", "dead")
        assert world.release() == 0
    assert world.release() == 2
    world.drain("a")
    assert world.complete() == seqs


def test_complete_marks_never_change(world: World) -> None:
    """Neither joins, deaths, acks nor a sweep."""
    world.join("a")
    world.join("b")
    world.write(5)
    world.drain("a", "b")
    before = world.sql("SELECT * FROM outbox_event_mark_1 ORDER BY seq")
    world.join("c", "earliest")
    world.drain("c")
    world.state("b", "dead")
    world.release()
    world.catch_up("a", "c")
    assert world.sql("SELECT * FROM outbox_event_mark_1 ORDER BY seq") == before


def test_nobody_subscribed_is_not_complete(world: World) -> None:
    """An event that nobody was subscribed to stays open until its own time; it is not "done"."""
    seqs = world.write(3)
    world.release()
    assert world.open() == seqs


def test_force_complete(world: World) -> None:
    """Older ones, although groups wait for them; younger ones stay."""
    world.join("a")
    old = world.write(3)
    cut = world.sql("SELECT clock_timestamp()")[0][0]
    young = world.write(2)
    assert world.run(world.store.force_complete(world.topic, cut, None)) == 3
    assert world.complete() == old
    assert world.open() == young
    assert world.run(world.store.force_complete(world.topic, utc_now() - timedelta(days=1), None)) == 0


def test_a_skip_ahead_leaves_nothing_open(world: World) -> None:
    """What a group has left behind without an ack is noted as done; what it holds is not."""
    world.join("a")
    world.join("b")
    skipped = world.write(10)
    world.tick()
    held = world.claim("a", events=2, ranges=1)
    world.sql(
        "UPDATE outbox_event_cursor SET base = (SELECT max(tick) FROM outbox_event_tick), target = NULL, seq = 0 "
        f"WHERE group_id = {world.group('a').id}"
    )
    world.drain("b")
    world.catch_up("a", "b")
    taken = sorted(row[0] for _, found in held.pages for row in found)
    assert world.open() == taken
    world.settle("a", held)
    assert world.complete() == skipped


def test_the_acks_of_complete_events_take_no_room() -> None:
    """The table is no larger than what is open."""
    world = World("acks")
    try:
        for n in range(70):
            world.join(f"g{n}")
        seqs = world.write(3)
        world.drain(*(f"g{n}" for n in range(69)))
        assert world.open() == seqs
        assert world.sql("SELECT count(*) FROM outbox_event_ack_1") == [(69 * 3,)]
        world.drain("g69")
        assert world.complete() == seqs
        assert world.sql("SELECT count(*) FROM outbox_event_ack_1") == [(0,)]
    finally:
        world.close()


def test_the_65th_group(bitmap: World) -> None:
    """Refused with the ways out; the 64th works, in the sign bit."""
    for n in range(64):
        bitmap.join(f"g{n}")
    with pytest.raises(TooManyGroups, match=r"acks.*offset|offset.*acks"):
        bitmap.join("g64")
    seqs = bitmap.write(2)
    bitmap.drain(*(f"g{n}" for n in range(63)))
    assert bitmap.open() == seqs
    bitmap.drain("g63")
    assert bitmap.complete() == seqs


def test_a_bit_is_not_given_again_while_an_event_names_it(bitmap: World) -> None:
    """Not even by a complete event; after its clean-up it is."""
    for n in range(64):
        bitmap.join(f"g{n}")
    bitmap.write(1)
    bit = bitmap.group("g7").bit
    bitmap.state("g7", "cancelled")
    with pytest.raises(TooManyGroups):
        bitmap.join("new")
    bitmap.release()
    bitmap.drain(*(f"g{n}" for n in range(64) if n != 7))
    assert bitmap.open() == []
    bitmap.sql("DELETE FROM outbox_event_mark_1")
    assert bitmap.join("new").bit == bit


def test_the_mode_is_the_topics_whatever_the_number_of_groups(world: World) -> None:
    """Written with 3 groups and acked with 5, it is the same set."""
    for name in ("a", "b", "c"):
        world.join(name)
    seqs = world.write(2)
    world.drain("a")
    world.join("d")
    world.join("e")
    world.drain("b", "c", "d", "e")
    assert world.complete() == seqs


@pytest.mark.parametrize("tracking", ["bitmap", "acks"])
def test_sixteen_groups_ack_in_any_order_without_a_deadlock(tracking: str) -> None:
    world = World(tracking)  # type: ignore[arg-type]
    try:
        groups = [world.join(f"g{n}") for n in range(16)]
        seqs = world.write(400)
        topic, failures = world.topic, []

        def ack(n: int) -> None:
            chance = random.Random(n)
            left = seqs[:]
            chance.shuffle(left)
            try:
                while left:
                    batch, left = left[:40], left[40:]
                    again = chance.sample(seqs, 10)  # acks come twice around faults
                    mixed = batch + again
                    chance.shuffle(mixed)
                    world.run(world.store.complete(topic, groups[n], mixed, None))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=ack, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert world.complete() == seqs
    finally:
        world.close()


SWEEP = """
import sys
from relaybox.drivers import open_sync
from relaybox.store.names import Tables
from relaybox.store.topics import open_topic_store
db, store = open_sync(sys.argv[1]), open_topic_store("postgres", Tables())
topic = db.run(store.topic("orders"))
while changed := db.run(store.release(topic, None, limit=3)):
    print(changed, flush=True)
"""


@pytest.mark.parametrize("kills", [1, 2, 5])
def test_a_sweep_killed_in_the_middle_is_finished_by_the_next(world: World, kills: int) -> None:
    """After k of n rows, for several k; nobody is taken off twice and nothing is left behind."""
    for name in ("a", "b", "c"):
        world.join(name)
    seqs = world.write(60)
    world.drain("a")
    world.state("c", "dead")
    for after in range(1, kills + 1):
        with subprocess.Popen([sys.executable, "-c", SWEEP, world.url], stdout=subprocess.PIPE, text=True) as sweep:
            assert sweep.stdout is not None
            for _ in range(after):
                sweep.stdout.readline()
            os.kill(sweep.pid, signal.SIGKILL)
    world.release()
    assert world.open() == seqs
    assert all(world.required(seq) == {"a", "b"} for seq in seqs)
    world.drain("b")
    assert world.complete() == seqs
