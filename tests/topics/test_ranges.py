"""Claims of parts of a log: who gets what, what comes again, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from operator import itemgetter
from typing import Any

import psycopg
import pytest

from relaybox import ALL, Event
from relaybox.drivers.psycopg import PsycopgConnection
from relaybox.ids import key_hash
from relaybox.op import run
from relaybox.store.event_rows import lane_key
from relaybox.store.events import Search
from relaybox.store.outbox.postgres import COPY_FROM
from relaybox.store.topics import ClaimedRanges, Parking, Place, Range, RangeSettlement, Row, Start

from .kit import LEASE, START, World, happened, numbers

LATER = LEASE + timedelta(seconds=1)
LONG = timedelta(days=1)


@pytest.fixture
def world() -> Iterator[World]:
    with World(now=START) as world:
        yield world


def pass_time(world: World, time: timedelta = LATER) -> None:
    assert world.now is not None
    world.now += time


def parking(held: Range, row: Row, state: Any = "retry") -> tuple[int, Parking]:
    event = Event.stored(row)
    return held.token, Parking(event, held.place.shard, key_hash(lane_key(event)), state, 1, timedelta(), "why")


def shards(taken: ClaimedRanges) -> set[int]:
    return {held.place.shard for held, _ in taken.pages}


def test_two_members_never_have_the_same_event(world: World) -> None:
    group = world.group(ordered=False)
    first, second = world.member(group, "a"), world.member(group, "b")
    written = world.write_many(100)
    world.tick()
    seen: list[int] = []
    for _ in range(20):
        for member in (first, second):
            seen += numbers(world.claim(group, member, events=10, ranges=1).pages)
    assert sorted(seen) == written


def test_a_claim_under_way_leaves_the_other_member_his_share(world: World) -> None:
    """However much it may take itself: who finds everything locked would rest while there is work."""
    group = world.group(ordered=False)
    first, second = world.member(group, "a"), world.member(group, "b")
    world.write_many(100)
    world.tick()
    with psycopg.connect(world.url) as other:
        op: Any = world.store.claim(world.topic, group, first, events=5, ranges=99, lease=LEASE, now=world.now)
        under_way = run(op, PsycopgConnection(other))
        meanwhile = world.claim(group, second)
    assert shards(under_way)
    assert shards(meanwhile)
    assert not shards(under_way) & shards(meanwhile)
    assert (under_way.share, meanwhile.share) == (2, 2)  # of four shards


@pytest.mark.parametrize("copy", [False, True])
def test_a_batch_lies_shard_by_shard_as_it_is_read(world: World, copy: bool) -> None:
    events = [happened(n) for n in range(COPY_FROM)]
    numbers = world.run(world.store.write(world.topic, events, world.now, copy=copy))
    assert numbers == sorted(numbers)
    stored = world.rows(f"SELECT shard, seq, event_id FROM {world.log} ORDER BY ctid")
    assert [row[:2] for row in stored] == sorted(row[:2] for row in stored)
    assert [row[2] for row in sorted(stored, key=itemgetter(1))] == [event.id for event in events]


def test_several_groups_are_independent(world: World) -> None:
    one, two = world.group("one"), world.group("two")
    written = world.write_many(20)
    taken = world.take(one, world.member(one))
    assert sorted(world.drain(two, world.member(two))) == written
    assert sorted(numbers(taken.pages)) == written


def test_a_group_gets_what_was_written_between_its_start_and_its_first_claim(world: World) -> None:
    world.write_many(5)
    group = world.group(start=Start("latest"))
    written = world.write_many(5)
    assert sorted(world.drain(group, world.member(group))) == written


def test_what_another_transaction_has_locked_is_not_passed(world: World) -> None:
    """A claim of one group that is under way changes nothing for another, nor do locks on events."""
    one, two = world.group("one"), world.group("two")
    first, second = world.member(one), world.member(two)
    written = world.write_many(20)
    world.tick()
    with psycopg.connect(world.url) as other:
        other.execute(f"SELECT 1 FROM {world.log} WHERE seq % 3 = 0 FOR UPDATE")
        op: Any = world.store.claim(world.topic, one, first, events=5, ranges=9, lease=LEASE, now=world.now)
        under_way = run(op, PsycopgConnection(other))
        assert sorted(world.drain(two, second)) == written
        assert numbers(world.claim(one, world.member(one, "other")).pages) == []
        other.rollback()
    assert numbers(under_way.pages)
    assert sorted(world.drain(one, first)) == written


def test_pages_are_sorted_by_number(world: World) -> None:
    group = world.group()
    world.write_many(200)
    for _, page in world.take(group, world.member(group), events=50).pages:
        assert [row[0] for row in page] == sorted(row[0] for row in page)


def test_an_expired_range_comes_first_to_somebody_else_and_the_zombie_is_refused(world: World) -> None:
    group = world.group()
    zombie, heir = world.member(group, "a", LONG), world.member(group, "b", LONG)
    world.write_many(40)
    old = world.take(group, zombie, events=3)
    assert numbers(old.pages)
    pass_time(world)
    found = world.claim(group, heir, events=100)
    again = [held for held, _ in found.pages if held.attempts == 2]
    for shard in shards(found):
        first = next(held for held, _ in found.pages if held.place.shard == shard)
        assert first.attempts == 2 or shard not in shards(old)
    assert {held.place for held in again} <= {held.place for held, _ in old.pages}
    lost = [(held, page) for held, page in old.pages if held.place in {held.place for held in again}]
    refused = world.settle(
        group, finished=[(held, ()) for held, _ in lost], parkings=[parking(held, page[0]) for held, page in lost]
    )
    assert refused == len(lost) > 0
    assert world.one("SELECT count(*) FROM outbox_event_parked") == 0
    assert world.finish(group, found) == 0


def test_a_range_is_free_at_once_when_its_owner_is_gone(world: World) -> None:
    group = world.group()
    leaver = world.member(group, "a")
    written = world.write_many(10)
    assert sorted(numbers(world.take(group, leaver).pages)) == written
    heir = world.member(group, "b")
    assert world.claim(group, heir).pages == []
    world.run(world.store.leave(leaver, world.now))
    assert sorted(world.drain(group, heir)) == written


def test_a_later_batch_can_be_finished_before_an_earlier_one(world: World) -> None:
    """And the earlier one, whose member dies, is not passed."""
    group = world.group(ordered=False)
    first, second = world.member(group, "a", LONG), world.member(group, "b", LONG)
    written = world.write_many(60)
    world.tick()
    early = world.claim(group, first, events=5)
    late = world.claim(group, second, events=100)
    assert max(numbers(late.pages)) > max(numbers(early.pages))
    assert world.finish(group, late) == 0
    pass_time(world)
    seen = numbers(late.pages) + world.drain(group, second)
    assert sorted(seen) == written


def test_what_was_done_before_a_range_was_given_back_does_not_come_again(world: World) -> None:
    group = world.group()
    leaver, heir = world.member(group, "a"), world.member(group, "b")
    written = world.write_many(40)
    taken = world.take(group, leaver)
    done = [(held, [row[0] for row in page[::2]]) for held, page in taken.pages]
    assert world.settle(group, returned=done) == 0
    again = world.claim(group, heir, ranges=1)
    assert again.pages[0][0].attempts == 1, "to stop in order is nobody's fault"
    half = [(held, [page[0][0]]) for held, page in again.pages]
    assert world.settle(group, returned=half) == 0
    world.run(world.store.leave(leaver, world.now))
    rest = world.drain(group, heir)
    assert sorted([*rest, *(seq for _, seqs in done + half for seq in seqs)]) == written


def test_a_range_that_is_taken_a_third_time_becomes_single_events(world: World) -> None:
    group = world.group(max_attempts=3)
    world.write_many(6, keys=2)
    world.tick()
    for number in range(2):
        taken = world.claim(group, world.member(group, f"m{number}"))
        assert {held.attempts for held, _ in taken.pages} == {number + 1}
        pass_time(world, timedelta(minutes=2))
    member = world.member(group, "last", LONG)
    taken = world.claim(group, member)
    assert taken.pages == []
    assert taken.split == 6
    states = world.rows("SELECT state, count(*) FROM outbox_event_parked GROUP BY 1 ORDER BY 1")
    assert states == [("held", 4), ("retry", 2)]
    lone = world.run(world.store.claim_parked(world.topic, group, member, 10, LEASE, world.now))
    assert [parked.attempts for parked in lone] == [3, 3]
    pass_time(world)
    following = world.run(world.store.claim_parked(world.topic, group, member, 10, LEASE, world.now))
    assert following == []  # this time those that end their process are dead
    dead = world.run(world.kept(group).events("dead", Search(ALL), 100)).events
    assert [letter.event.seq for letter in dead] == [parked.row[0] for parked in lone]
    following = world.run(world.store.claim_parked(world.topic, group, member, 10, LEASE, world.now))
    assert len(following) == 2


def test_a_range_is_not_split_behind_one_that_is_still_to_be_done(world: World) -> None:
    """Its events could be tried, alone, before those of the first."""
    group = world.group()
    first, second = world.write(happened(1, "k")), world.write(happened(2, "k"))
    world.tick()
    member = world.member(group, "a", LONG)
    one = world.claim(group, member, events=1)
    two = world.claim(group, member, events=1)
    assert (numbers(one.pages), numbers(two.pages)) == (first, second)
    assert world.settle(group, returned=[(one.pages[0][0], ())]) == 0
    world.rows(f"UPDATE outbox_event_range SET attempts = 2 WHERE token = {two.pages[0][0].token}")
    pass_time(world)
    taken = world.claim(group, member)
    assert [held.attempts for held, _ in taken.pages] == [1, 3]
    assert (numbers(taken.pages), taken.split) == (first + second, 0)
    assert world.settle(group, finished=[(taken.pages[0][0], ())]) == 0
    pass_time(world)
    assert world.claim(group, member).split == 1


def test_what_comes_behind_a_split_range_is_held(world: World) -> None:
    """Its key has events that are tried alone now; none may overtake them."""
    group = world.group()
    world.write(happened(1, "k"))
    world.tick()
    for name in "ab":
        world.claim(group, world.member(group, name))
        pass_time(world, timedelta(minutes=2))
    world.write(happened(2, "k"))
    world.tick()
    taken = world.claim(group, world.member(group, "c"))
    assert taken.split == 1
    assert [row[4] for _, page in taken.pages for row in page] == ["k"]
    assert taken.held == {key_hash("k")}


def test_claims_do_not_wait_for_the_disk_and_settles_do(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write(happened(1))
    world.tick()

    def waits(connection: psycopg.Connection[Any]) -> str:
        return str(connection.execute("SHOW synchronous_commit").fetchall()[0][0])

    with psycopg.connect(world.url) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.commit()
        op: Any = world.store.claim(world.topic, group, member, events=5, ranges=9, lease=LEASE, now=world.now)
        taken = run(op, PsycopgConnection(connection))
        assert waits(connection) == "off"
        connection.commit()
        op = world.store.settle(world.topic, group, RangeSettlement(finished=[(taken.pages[0][0], ())]), world.now)
        assert run(op, PsycopgConnection(connection)) == 0
        assert waits(connection) == "on"


def test_an_ordered_group_gives_a_shard_to_one_member(world: World) -> None:
    group = world.group()
    first = world.member(group, "a")
    world.write_many(100)
    world.tick()
    alone = world.claim(group, first, events=5)
    assert len(shards(alone)) == 4
    second = world.member(group, "b")
    assert world.claim(group, second, events=5).pages == []
    more = world.claim(group, first, events=5)
    assert len(shards(more)) == 2, "half of the shards are the other's as soon as they are free"
    assert world.finish(group, alone) == 0
    others = world.claim(group, second, events=5)
    assert len(shards(others)) == 2
    assert shards(others).isdisjoint(shards(more))


def test_an_unordered_group_shares_a_shard(world: World) -> None:
    group = world.group(ordered=False)
    world.write(*(happened(n, "one key") for n in range(20)))
    world.tick()
    taken = [world.claim(group, world.member(group, name), events=5) for name in "abcd"]
    assert [len(numbers(each.pages)) for each in taken] == [5, 5, 5, 5]
    assert len({seq for each in taken for seq in numbers(each.pages)}) == 20


def test_a_member_that_takes_one_range_at_a_time_goes_round_all_shards(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write_many(400)
    world.tick()
    pass_time(world, timedelta(seconds=1))
    visited = []
    for _ in range(8):
        taken = world.claim(group, member, events=10, ranges=1)
        visited += list(shards(taken))
        pass_time(world, timedelta(seconds=1))
        assert world.finish(group, taken) == 0
    assert sorted(visited) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_claim_can_be_limited_in_all(world: World) -> None:
    group = world.group()
    member = world.member(group, "a", LONG)
    written = world.write_many(50)
    world.tick()
    seen: list[int] = []
    while (taken := world.claim(group, member, events=20, most=7)).pages:
        assert len(numbers(taken.pages)) <= 7
        seen += numbers(taken.pages)
    assert sorted(seen) == written
    world.run(world.store.leave(member, world.now))
    heir = world.member(group, "b", LONG)
    again: list[int] = []
    while (taken := world.claim(group, heir, most=7)).pages:
        assert len(numbers(taken.pages)) <= 7
        again += numbers(taken.pages)
    assert sorted(again) == written


def test_one_range_is_found_wherever_it_is(world: World) -> None:
    group = world.group()
    member = world.member(group)
    for n in range(12):
        if n == 6:
            for name in "abc":  # who take nothing themselves
                world.member(group, name)
        written = world.write(happened(n))
        taken = world.take(group, member, ranges=1)
        assert numbers(taken.pages) == written
        assert world.finish(group, taken) == 0


def test_leases_are_renewed_while_they_live(world: World) -> None:
    group = world.group()
    member, other = world.member(group, "a", LONG), world.member(group, "b", LONG)
    world.write(happened(1))
    taken = world.take(group, member)
    tokens = [held.token for held, _ in taken.pages]
    pass_time(world, LEASE - timedelta(seconds=1))
    assert world.run(world.store.renew(group, tokens, LEASE, world.now)) == set(tokens)
    pass_time(world, LEASE - timedelta(seconds=1))
    assert world.claim(group, other).pages == []
    pass_time(world)
    assert world.run(world.store.renew(group, tokens, LEASE, world.now)) == set()
    assert numbers(world.claim(group, other).pages) == numbers(taken.pages)


def test_leases_are_by_the_clock_of_the_database_not_by_the_start_of_a_transaction() -> None:
    with World() as world:
        group = world.group()
        member = world.member(group)
        world.write(happened(1))
        world.tick()
        with psycopg.connect(world.url) as connection:
            connection.execute("SELECT pg_sleep(0.4)")
            op: Any = world.store.claim(world.topic, group, member, events=5, ranges=9, lease=LEASE, now=None)
            run(op, PsycopgConnection(connection))
            left = connection.execute("SELECT until - clock_timestamp() FROM outbox_event_range").fetchall()
        assert left[0][0] > LEASE - timedelta(seconds=0.3)


def test_a_paused_group_gets_nothing_and_goes_on_where_it_was(world: World) -> None:
    group = world.group()
    member = world.member(group)
    written = world.write_many(5)
    world.run(world.store.set_state(group, "paused", "test", world.now))
    taken = world.take(group, member)
    assert (taken.pages, taken.state) == ([], "paused")
    world.run(world.store.set_state(group, "active", "test", world.now))
    assert sorted(world.drain(group, member)) == written


def test_a_member_that_is_gone_is_told(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write(happened(1))
    world.tick()
    world.run(world.store.leave(member, world.now))
    taken = world.claim(group, member)
    assert taken.pages == []
    assert not taken.alive
    world.rows("DELETE FROM outbox_event_cursor; DELETE FROM outbox_event_group")
    assert world.claim(group, member).state == "cancelled"


def test_a_claim_whose_reply_was_lost_is_given_back(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write_many(60)
    world.tick()
    known = world.claim(group, member, events=2)
    unknown = world.claim(group, member, events=2)
    tokens = [held.token for held, _ in known.pages]
    assert world.run(world.store.abandon(group, member, tokens, world.now)) == len(unknown.pages)
    again = world.claim(group, member, events=2)
    assert {(held.place, 1) for held, _ in unknown.pages} <= {(held.place, held.attempts) for held, _ in again.pages}
    assert world.finish(group, unknown) == len(unknown.pages)
    assert world.finish(group, known) == 0


def test_groups_at_the_same_place_share_what_was_read(world: World) -> None:
    class Kept(dict[tuple[int, Place, int], list[Row]]):
        reads = 0

        def get(self, topic_id: int, place: Place, limit: int) -> list[Row] | None:  # type: ignore[override]
            return super().get((topic_id, place, limit))

        def put(self, topic_id: int, place: Place, limit: int, rows: list[Row], *, more: bool) -> list[Row]:
            self.reads += 1
            self[topic_id, place, limit] = rows
            return rows

    pages = Kept()
    groups = [world.group(name) for name in "abc"]
    members = [world.member(group) for group in groups]
    written = world.write_many(100)
    target = world.tick()
    reads: list[int] = []
    for group, member in zip(groups, members, strict=True):
        if group.name == "b":
            world.write_many(3)
            world.tick()
        taken = world.claim(group, member, events=1000, pages=pages, target=target)
        assert sorted(numbers(taken.pages)) == written
        reads.append(pages.reads)
    assert reads == [4, 4, 4]


def test_idle_groups_and_idle_topics_write_nothing(world: World) -> None:
    group = world.group()
    member = world.member(group)
    world.write_many(5)
    world.drain(group, member)
    newest = world.one("SELECT max(tick) FROM outbox_event_tick")
    store, topic = world.store, world.topic
    with psycopg.connect(world.url) as connection:
        idle = PsycopgConnection(connection)
        for _ in range(10):
            claim = store.claim(topic, group, member, events=100, ranges=64, lease=LEASE, now=world.now)
            assert run(claim, idle).pages == []
            run(store.tick(topic, world.now), idle)
        assert connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert world.one("SELECT max(tick) FROM outbox_event_tick") == newest
