"""What failed is tried again alone, behind it its key waits in order, and operators decide about the dead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from relaybox import ALL, Event
from relaybox.ids import key_hash
from relaybox.store.event_rows import lane_key
from relaybox.store.events import Search
from relaybox.store.topics import ClaimedRanges, GroupRow, ParkedEvent, ParkedOutcome, Parking, Start

from .kit import LEASE, START, World, happened, numbers

LATER = LEASE + timedelta(seconds=1)
SOON = timedelta(seconds=10)


@pytest.fixture
def world() -> Iterator[World]:
    with World(now=START) as world:
        yield world


def pass_time(world: World, time: timedelta) -> None:
    assert world.now is not None
    world.now += time


def park_all(world: World, group: GroupRow, taken: ClaimedRanges, *states: Any, delay: timedelta = timedelta()) -> None:
    """Everything of a claim, in the order of the numbers: the n-th with the n-th state, the others as the last."""
    found = sorted(((row, held) for held, page in taken.pages for row in page), key=lambda pair: int(pair[0][0]))
    parkings = []
    for index, (row, held) in enumerate(found):
        event = Event.stored(row)
        state = states[min(index, len(states) - 1)]
        hashed = key_hash(lane_key(event))
        parkings.append((held.token, Parking(event, held.place.shard, hashed, state, 1, delay, "why")))
    assert world.finish(group, taken, parkings) == 0


def claim(world: World, group: GroupRow, member: int, limit: int = 10) -> list[ParkedEvent]:
    claimed: list[ParkedEvent] = world.run(
        world.store.claim_parked(world.topic, group, member, limit, LEASE, world.now)
    )
    return claimed


def outcome(parked: ParkedEvent, **options: Any) -> ParkedOutcome:
    options = {"delay": None, "error": None, **options}
    return ParkedOutcome(parked.row[0], parked.token, **options)


def states(world: World) -> dict[int, str]:
    return dict(world.rows("SELECT seq, state FROM outbox_event_parked ORDER BY seq"))


def setup(world: World, *events: Event, **options: Any) -> tuple[GroupRow, int, list[int]]:
    group = world.group(**options)
    member = world.member(group, ttl=timedelta(days=1))
    return group, member, world.write(*events)


def test_a_failed_event_is_tried_again_when_it_is_due_and_the_cursor_goes_on(world: World) -> None:
    group, member, seqs = setup(world, happened(1))
    park_all(world, group, world.take(group, member), "retry", delay=SOON)
    more = world.write(happened(2))
    assert world.drain(group, member) == more
    assert claim(world, group, member) == []
    assert world.run(world.store.next_parked(group, world.now)) == SOON
    pass_time(world, SOON)
    (parked,) = claim(world, group, member)
    assert (parked.row[0], parked.attempts) == (seqs[0], 2)
    assert Event.stored(parked.row).payload == {"n": 1}
    assert world.settle(group, parked=[outcome(parked, delay=SOON, error="again")]) == 0
    assert claim(world, group, member) == []
    pass_time(world, SOON)
    (parked,) = claim(world, group, member)
    assert parked.attempts == 3
    assert world.settle(group, parked=[outcome(parked)]) == 0
    assert states(world) == {}
    assert world.run(world.store.next_parked(group, world.now)) is None


def test_an_attempt_that_was_nobodys_fault_does_not_count(world: World) -> None:
    group, member, _ = setup(world, happened(1))
    park_all(world, group, world.take(group, member), "retry")
    for _ in range(3):
        (parked,) = claim(world, group, member)
        assert parked.attempts == 2
        world.settle(group, parked=[outcome(parked, delay=timedelta(), counted=False)])


def test_of_a_key_only_the_first_is_tried_and_the_next_when_it_is_done(world: World) -> None:
    group, member, seqs = setup(world, *(happened(n, "k") for n in range(3)))
    park_all(world, group, world.take(group, member), "retry", "held")
    for seq in seqs:
        (parked,) = claim(world, group, member)
        assert parked.row[0] == seq
        assert claim(world, group, member) == []
        assert world.settle(group, parked=[outcome(parked)]) == 0


def test_an_unordered_group_tries_all_at_once(world: World) -> None:
    group, member, seqs = setup(world, *(happened(n, "k") for n in range(3)), ordered=False)
    park_all(world, group, world.take(group, member), "retry")
    assert [parked.row[0] for parked in claim(world, group, member)] == seqs


def test_a_claim_says_whose_keys_are_held(world: World) -> None:
    group, member, _ = setup(world, happened(1, "a"))
    park_all(world, group, world.take(group, member), "retry", delay=SOON)
    world.write(happened(2, "a"), happened(3, "b"))
    taken = world.take(group, member)
    assert taken.held == {key_hash("a")}
    loose = world.group("loose", ordered=False)
    reader = world.member(loose)
    park_all(world, loose, world.take(loose, reader), "retry", delay=SOON)
    world.write(happened(4, "a"))
    assert world.take(loose, reader).held == frozenset()


@pytest.mark.parametrize(("policy", "held"), [("skip", False), ("park", True)])
def test_a_dead_head_holds_its_key_only_where_the_group_parks(world: World, policy: str, held: bool) -> None:
    group, member, seqs = setup(world, happened(1, "k"), happened(2, "k"), on_exhausted=policy)
    park_all(world, group, world.take(group, member), "retry", "held")
    (parked,) = claim(world, group, member)
    assert world.settle(group, parked=[outcome(parked, dead=True, error="over")]) == 0
    following = claim(world, group, member)
    world.write(happened(3, "k"))
    assert world.take(group, member).held == {key_hash("k")}
    if not held:
        assert [each.row[0] for each in following] == seqs[1:]
        return
    assert following == []
    assert states(world) == {seqs[0]: "dead", seqs[1]: "held"}
    kept = world.kept(group)
    (letter,) = world.run(kept.events("dead", Search(ALL), 10)).events
    assert (letter.event.seq, letter.error, letter.ended_at) == (seqs[0], "over", world.now)
    assert world.run(kept.discard("open", [seqs[0]], world.now)) == 0
    assert world.run(kept.discard("dead", [seqs[0]], world.now)) == 1
    assert [each.row[0] for each in claim(world, group, member)] == seqs[1:]


def test_a_dead_event_is_replayed_with_fresh_attempts_before_what_waits_behind_it(world: World) -> None:
    group, member, seqs = setup(world, happened(1, "k"), happened(2, "k"), on_exhausted="park")
    park_all(world, group, world.take(group, member), "dead", "held")
    assert claim(world, group, member) == []
    kept = world.kept(group)
    assert world.run(kept.replay("dead", seqs, world.now, world.now)) == 1
    (parked,) = claim(world, group, member)
    assert (parked.row[0], parked.attempts) == (seqs[0], 1)
    world.settle(group, parked=[outcome(parked)])
    assert [each.row[0] for each in claim(world, group, member)] == seqs[1:]


def test_a_lost_claim_settles_nothing(world: World) -> None:
    group, member, _ = setup(world, happened(1))
    heir = world.member(group, "heir", timedelta(days=1))
    park_all(world, group, world.take(group, member), "retry")
    (old,) = claim(world, group, member)
    pass_time(world, LATER)
    (new,) = claim(world, group, heir)
    assert world.settle(group, parked=[outcome(old)]) == 1
    assert world.settle(group, parked=[outcome(old, dead=True)]) == 1
    assert world.settle(group, parked=[outcome(old, delay=SOON)]) == 1
    assert world.settle(group, parked=[outcome(new)]) == 0


def test_what_a_member_had_is_free_at_once_when_it_is_gone(world: World) -> None:
    group, member, seqs = setup(world, happened(1))
    park_all(world, group, world.take(group, member), "retry")
    claim(world, group, member)
    heir = world.member(group, "heir", timedelta(days=1))
    assert claim(world, group, heir) == []
    world.rows(f"DELETE FROM outbox_event_member WHERE id = {member}")
    assert [parked.row[0] for parked in claim(world, group, heir)] == seqs


def test_one_that_ends_its_process_every_time_ends_in_the_dead_letters(world: World) -> None:
    group, member, seqs = setup(world, happened(1, "k"), happened(2, "k"), max_attempts=3)
    park_all(world, group, world.take(group, member), "retry", "held")
    for attempt in (2, 3):
        (parked,) = claim(world, group, member)
        assert parked.attempts == attempt
        pass_time(world, LATER)
    assert claim(world, group, member) == []
    assert states(world) == {seqs[0]: "dead", seqs[1]: "retry"}
    assert [parked.row[0] for parked in claim(world, group, member)] == seqs[1:]


def test_blocking_groups_try_for_ever(world: World) -> None:
    group, member, _ = setup(world, happened(1), max_attempts=2, on_exhausted="block")
    park_all(world, group, world.take(group, member), "retry")
    for attempt in range(2, 8):
        (parked,) = claim(world, group, member)
        assert parked.attempts == attempt
        pass_time(world, LATER)


def test_parked_leases_are_renewed(world: World) -> None:
    group, member, _ = setup(world, happened(1))
    heir = world.member(group, "heir", timedelta(days=1))
    park_all(world, group, world.take(group, member), "retry")
    (parked,) = claim(world, group, member)
    for _ in range(3):
        pass_time(world, LEASE - timedelta(seconds=1))
        assert world.run(world.store.renew(group, [parked.token], LEASE, world.now)) == {parked.token}
        assert claim(world, group, heir) == []
    pass_time(world, LATER)
    assert world.run(world.store.renew(group, [parked.token], LEASE, world.now)) == set()


def test_a_held_event_whose_predecessor_is_gone_meanwhile_is_not_forgotten(world: World) -> None:
    """It was claimed while its key was held; before it is parked the key's queue is done."""
    group, member, _ = setup(world, happened(1, "k"))
    park_all(world, group, world.take(group, member), "retry")
    late = world.write(happened(2, "k"))
    taken = world.take(group, member)
    (head,) = claim(world, group, member)
    assert world.settle(group, parked=[outcome(head)]) == 0
    park_all(world, group, taken, "held")
    assert [parked.row[0] for parked in claim(world, group, member)] == late


def test_no_key_is_stuck_while_members_park_and_finish_at_once() -> None:
    """One member parks followers, another finishes the heads: the head of a queue is never held behind nobody."""
    with World() as world:
        group, member, _ = setup(world, happened(0, "k"))
        other = world.member(group, "other")
        park_all(world, group, world.take(group, member), "retry")
        rounds = 150
        failed: list[BaseException] = []

        def finish() -> None:
            done = 0
            try:
                while done < rounds + 1:
                    for parked in claim(world, group, other):
                        assert world.settle(group, parked=[outcome(parked)]) == 0
                        done += 1
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=finish)
        thread.start()
        for n in range(rounds):
            world.write(happened(n, "k"))
            park_all(world, group, world.take(group, member), "held")
        thread.join(30)
        assert not failed
        assert not thread.is_alive(), states(world)


def test_a_paused_group_tries_nothing(world: World) -> None:
    group, member, _ = setup(world, happened(1))
    park_all(world, group, world.take(group, member), "retry")
    world.run(world.store.set_state(group, "paused", "test", world.now))
    assert claim(world, group, member) == []


def test_after_a_seek_back_nothing_comes_twice(world: World) -> None:
    group, member, seqs = setup(world, happened(1, "k"), happened(2, "k"), happened(3, "k"))
    park_all(world, group, world.take(group, member), "dead", "retry", "held")
    (parked,) = claim(world, group, member)
    world.run(world.store.seek(world.topic, group, Start("event", event=seqs[1]), world.now))
    assert states(world) == {seqs[0]: "dead"}
    assert world.settle(group, parked=[outcome(parked)]) == 1
    taken = world.take(group, member)
    assert numbers(taken.pages) == seqs[1:]
    world.run(world.store.seek(world.topic, group, Start("latest"), world.now))
    assert states(world) == {seqs[0]: "dead"}
