"""Pull consumers: a group's place, leases, fencing and partial commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kit.proxy import Proxy
from relaybox import ALL, Event, Retry, StartFrom
from relaybox.drivers import open_sync
from relaybox.errors import (
    AlreadyExists,
    Closed,
    ConfigError,
    LeaseLost,
    NotFound,
    Reject,
    StoreError,
)
from relaybox.facts import ClaimLost, Delivered, Died, Retried

from .kit import happened
from .liveness_kit import context, group_at
from .pull_kit import Pulled, beat, drained, seqs


@pytest.fixture
def pulled() -> Iterator[Pulled]:
    made = Pulled()
    yield made
    made.world.db.close()


# -- groups --------------------------------------------------------------------------------------------


def test_a_group_is_made_once_unless_asked_otherwise(pulled: Pulled) -> None:
    pulled.group()
    with pytest.raises(AlreadyExists, match="if_not_exists=True"):
        pulled.at().create()
    assert pulled.at().create(if_not_exists=True).group == "g"


def test_a_consumer_makes_the_group_and_there_must_be_a_topic(pulled: Pulled) -> None:
    pulled.world.write_many(3)
    with pulled.at("new", start=StartFrom.earliest(), ordered=False).consumer() as consumer:
        assert len(consumer.poll()) == 3
    assert (pulled.at("new").info().ordered, pulled.at("new").info().silence) == (False, timedelta(hours=24))
    with pytest.raises(NotFound, match="'no such topic' is not configured") as missing:
        group_at(pulled.context, topic="no such topic").consumer().poll()
    assert (missing.value.kind, missing.value.name) == ("topic", "no such topic")
    with pytest.raises(NotFound, match="no group 'nobody'"):
        pulled.at("nobody").pause()


def test_what_a_handle_does_not_say_is_as_the_group_is(pulled: Pulled) -> None:
    pulled.at(ordered=False, on_exhausted="park", retry=Retry(attempts=3), silence=timedelta(hours=2)).create()
    beat(pulled.consumer())
    found = pulled.at().info()
    assert (found.ordered, found.on_exhausted, found.attempts, found.silence) == (False, "park", 3, timedelta(hours=2))
    beat(pulled.at(on_exhausted="skip", retry=Retry(attempts=None)).consumer())
    found = pulled.at().info()
    assert (found.on_exhausted, found.attempts, found.silence) == ("skip", None, timedelta(hours=2))
    with pytest.raises(ConfigError, match="join it with ordered=False"):
        pulled.at(ordered=True).consumer().poll()


def test_the_place_is_fixed_when_the_group_is_made_not_by_the_first_poll(pulled: Pulled) -> None:
    pulled.world.write_many(3)
    pulled.at("latest").create()
    later = pulled.world.write_many(2)
    assert seqs(pulled.consumer(group="latest").poll()) == later


def test_a_new_consumer_does_not_skip_the_groups_backlog(pulled: Pulled) -> None:
    """The place is the group's."""
    pulled.at().create()
    written = pulled.world.write_many(5)
    with pulled.consumer("first") as first:
        assert sorted(drained(first)) == written
    more = pulled.world.write_many(5)
    assert sorted(drained(pulled.consumer("new"))) == more


def test_groups_are_independent(pulled: Pulled) -> None:
    pulled.group("a")
    pulled.group("b")
    written = pulled.world.write_many(10)
    assert sorted(drained(pulled.consumer(group="a"))) == written
    assert sorted(drained(pulled.consumer(group="b"))) == written


def test_dropping_a_group_refuses_its_consumers(pulled: Pulled) -> None:
    pulled.group()
    consumer = pulled.consumer()
    pulled.world.write_many(3)
    batch = consumer.poll()
    pulled.at().cancel()
    with pytest.raises((LeaseLost, NotFound)):
        consumer.commit(batch)
    pulled.later(2)
    with pytest.raises(NotFound):
        consumer.poll()


# -- poll ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_polls_never_overlap_and_what_expires_comes_again_first(pulled: Pulled, ordered: bool) -> None:
    pulled.group(ordered=ordered)
    written = pulled.world.write_many(200)
    a, b = pulled.consumer("a"), pulled.consumer("b")
    first = a.poll(20)
    assert 0 < len(first) <= 20
    other = drained(b)
    assert not set(seqs(first)) & set(other)
    newer = pulled.world.write_many(50)
    pulled.later(31)
    again = b.poll(1000)
    assert set(seqs(first)) <= set(seqs(again))
    assert [again.attempts(event) for event in again if event in set(first)] == [2] * len(first)
    b.commit(again)
    assert sorted(other + seqs(again) + drained(b)) == sorted(written + newer)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_another_left_behind_may_be_larger_than_what_is_asked_for(pulled: Pulled, ordered: bool) -> None:
    """It comes whole, whether or not the cursors have moved on meanwhile."""
    pulled.group(ordered=ordered)
    written = pulled.world.write(*(happened(n, "k") for n in range(40)))
    first = pulled.consumer("first").poll(40)
    assert len(first) == 40
    pulled.later(31)
    newer = pulled.world.write(happened(40, "other key"))
    pulled.world.tick()
    second = pulled.consumer("second")
    batch = second.poll(10)
    assert set(written) <= set(seqs(batch))
    second.commit(batch)
    assert seqs(batch) + drained(second) == written + newer


def test_no_more_than_asked_for(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(100)
    consumer = pulled.consumer()
    for most in (1, 2, 3, 7, 50):
        batch = consumer.poll(most)
        assert 0 < len(batch) <= most
        consumer.commit(batch)


def test_nothing_there_is_an_empty_batch(pulled: Pulled) -> None:
    pulled.group()
    consumer = pulled.consumer()
    batch = consumer.poll()
    assert len(batch) == 0
    consumer.commit(batch)
    pulled.at().pause()
    pulled.world.write_many(3)
    assert not consumer.poll(), "paused"
    pulled.at().resume()
    assert len(consumer.poll()) == 3


@pytest.mark.parametrize(("most", "lease"), [(0, timedelta(seconds=1)), (5, timedelta(0))])
def test_impossible_polls(pulled: Pulled, most: int, lease: timedelta) -> None:
    pulled.group()
    with pytest.raises(ConfigError, match="positive"):
        pulled.consumer().poll(most, lease=lease)


def test_an_ordered_consumer_has_one_batch_at_a_time(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(50)
    consumer = pulled.consumer()
    batch = consumer.poll(5)
    with pytest.raises(ConfigError, match="commit or release it first"):
        consumer.poll(5)
    consumer.release(batch)
    assert set(consumer.poll(50)) >= set(batch), "at once"


def test_an_unordered_consumer_may_have_many(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    written = pulled.world.write_many(60)
    consumer = pulled.consumer()
    batches = []
    while batch := consumer.poll(10):
        batches.append(batch)
    assert sorted(seq for batch in batches for seq in seqs(batch)) == written
    for batch in reversed(batches):
        consumer.commit(batch)
    assert pulled.at().lag().events == 0


# -- commit --------------------------------------------------------------------------------------------


def test_a_commit_twice_is_one(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    consumer = pulled.consumer()
    batch = consumer.poll()
    consumer.commit(batch)
    consumer.commit(batch)
    consumer.release(batch)
    assert [fact.count for fact in pulled.of(Delivered)] == [5]
    assert pulled.at().lag().events == 0


def test_a_commit_of_what_was_lost_is_refused(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    written = pulled.world.write_many(5)
    slow, other = pulled.consumer("slow"), pulled.consumer("other")
    batch = slow.poll()
    pulled.later(31)
    taken = other.poll()
    assert seqs(taken) == seqs(batch) == written
    with pytest.raises(LeaseLost, match="the lease ended"):
        slow.commit(batch)
    assert pulled.of(ClaimLost)
    other.commit(taken)
    assert pulled.at().lag().events == 0


def test_a_commit_after_the_time_is_good_while_nobody_else_has_it(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    consumer = pulled.consumer()
    batch = consumer.poll()
    pulled.later(45)
    consumer.commit(batch)
    assert pulled.at().lag().events == 0


def test_a_commit_whose_reply_was_lost_may_be_repeated(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    proxy = Proxy(pulled.world.url, at=b"DELETE")
    db = open_sync(proxy.url)
    consumer = group_at(context(pulled.world, pulled.facts, pulled.clock, db)).consumer("c")
    batch = consumer.poll()
    proxy.cut = "after"
    with pytest.raises(StoreError):
        consumer.commit(batch)
    consumer.commit(batch)
    assert pulled.at().lag().events == 0
    db.close()
    proxy.close()


def test_part_of_a_batch(pulled: Pulled) -> None:
    """What is done stays done, the rest comes again at once and no attempt is counted."""
    pulled.group()
    written = pulled.world.write_many(20)
    consumer = pulled.consumer()
    batch = consumer.poll(20)
    done = list(batch)[::2]
    consumer.commit(batch, done=done)
    rest = consumer.poll(20)
    assert set(batch) - set(done) <= set(rest)
    assert not set(done) & set(rest)
    assert {rest.attempts(event) for event in rest} == {1}
    consumer.commit(rest)
    assert sorted({event.seq or 0 for event in done} | set(seqs(rest)) | set(drained(consumer))) == written


def test_an_event_of_another_batch_is_refused(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    pulled.world.write_many(10)
    consumer = pulled.consumer()
    one, other = consumer.poll(3), consumer.poll(3)
    with pytest.raises(ConfigError, match="is not in this batch"):
        consumer.commit(one, failed={other[0]: "no"})
    consumer.commit(one)
    consumer.commit(other)


def test_what_fails_is_tried_again_later_and_holds_nobody_up(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    written = pulled.world.write_many(10)
    consumer = pulled.consumer()
    batch = consumer.poll(10)
    bad = batch[0]
    consumer.commit(batch, failed={bad: ValueError("4111 is no card")})
    rest = drained(consumer)
    assert bad.seq not in rest
    assert sorted([*seqs(batch), *rest]) == written
    pulled.later(60)
    again = consumer.poll()
    assert seqs(again) == [bad.seq]
    assert again.attempts(again[0]) == 2
    consumer.commit(again)
    assert (pulled.at().lag().events, pulled.at().lag().parked) == (0, 0)
    (fact,) = pulled.of(Retried)
    assert (fact.event_id, fact.attempts) == (bad.id, 1)


def test_new_events_come_although_each_poll_finds_one_that_failed(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    (bad,) = pulled.world.write(happened(1))
    consumer = pulled.consumer()
    batch = consumer.poll()
    consumer.commit(batch, failed={batch[0]: ValueError("no")})
    (new,) = pulled.world.write(happened(2))
    seen: set[int] = set()
    for _ in range(2):
        pulled.later(600)
        batch = consumer.poll()
        assert bad in seqs(batch)
        seen |= set(seqs(batch))
        consumer.commit(batch, failed={event: ValueError("no") for event in batch})
    assert seen == {bad, new}


@pytest.mark.parametrize("error", [Reject("bad"), "worn out"])
def test_what_fails_for_good_is_a_dead_letter(pulled: Pulled, error: Any) -> None:
    pulled.group(attempts=2)
    pulled.world.write(happened(1))
    consumer = pulled.consumer()
    for _ in range(1 if isinstance(error, Reject) else 2):
        batch = consumer.poll()
        consumer.commit(batch, failed={batch[0]: error})
        pulled.later(120)
    assert not consumer.poll()
    (letter,) = pulled.at().dead.list()
    assert str(error) in (letter.error or "")
    assert len(pulled.of(Died)) == 1
    assert pulled.at().lag().dead == 1
    assert pulled.at().dead.replay(ALL) == 1
    assert pulled.at().dead.replay(ALL) == 0, "safe to repeat"
    assert drained(consumer) == [letter.event.seq]


def test_a_dead_letter_that_is_discarded_is_gone(pulled: Pulled) -> None:
    pulled.group(on_exhausted="park")
    pulled.world.write(happened(1, "k"), happened(2, "k"))
    consumer = pulled.consumer()
    batch = consumer.poll(1)
    consumer.commit(batch, failed={batch[0]: Reject("bad")})
    assert drained(consumer) == [], "its key waits for an operator"
    assert pulled.at().dead.discard(batch[0].id) == 1
    assert pulled.at().dead.discard(batch[0].id) == 0
    assert drained(consumer) == [2]


# -- leases --------------------------------------------------------------------------------------------


def test_extending_holds_a_batch_and_an_expired_one_is_refused(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    pulled.world.write_many(5)
    consumer, other = pulled.consumer(), pulled.consumer("other")
    batch = consumer.poll()
    pulled.later(20)
    assert consumer.extend(batch) == pulled.clock.now() + timedelta(seconds=30)
    pulled.later(20)
    assert not other.poll(), "50 s are not over"
    pulled.later(15)
    with pytest.raises(LeaseLost):
        consumer.extend(batch)
    assert len(other.poll()) == 5


def test_a_sign_of_life_does_not_touch_leases(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    pulled.world.write_many(5)
    consumer, other = pulled.consumer(), pulled.consumer("other")
    consumer.poll()
    for _ in range(4):
        pulled.later(10)
        beat(consumer)
    assert len(other.poll()) == 5
    (member, _) = pulled.at().info().members
    assert (member.name, member.alive, member.silent) == ("c", True, timedelta(0))


def test_a_long_lease_outlives_the_healthy_window(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    consumer, other = pulled.consumer(), pulled.consumer("other")
    batch = consumer.poll(lease=timedelta(minutes=10))
    pulled.later(300)
    beat(consumer)
    pulled.later(290)
    assert not other.poll()
    consumer.commit(batch)


def test_leaving_frees_what_is_not_committed_at_once(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    with pulled.consumer() as consumer:
        consumer.poll()
    with pytest.raises(Closed):
        consumer.poll()
    assert len(pulled.consumer("other").poll()) == 5


def test_a_reaped_consumer_comes_back_to_the_groups_place(pulled: Pulled) -> None:
    """Nothing is lost by it."""
    pulled.group()
    pulled.world.write_many(5)
    consumer = pulled.consumer()
    consumer.poll()
    pulled.later(25 * 3600)
    reaped = pulled.world.run(pulled.world.store.reap_members(timedelta(hours=24), pulled.world.now))
    assert [member.name for member in reaped] == ["c"]
    assert len(consumer.poll()) == 5


def test_a_poll_brings_a_silent_group_back(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write_many(5)
    consumer = pulled.consumer()
    consumer.commit(consumer.poll())
    pulled.later(400)
    for topic in pulled.world.run(pulled.world.store.to_check(pulled.world.now)):
        assert pulled.world.run(pulled.world.store.check_groups(topic, pulled.world.now))[0].died
    pulled.world.write_many(7)
    assert len(consumer.poll()) == 7
    assert pulled.at().info().state == "active"


def test_an_event_keeps_its_times(pulled: Pulled) -> None:
    """They are read as bytes; in UTC, whatever the session's zone."""
    early = datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC)
    pulled.group()
    pulled.world.write(Event("Landed", None, key="eagle", occurred_at=early.astimezone(timezone(timedelta(hours=2)))))
    (event,) = pulled.consumer().poll()
    assert (event.occurred_at, event.occurred_at.tzinfo) == (early, UTC)
    assert (event.created_at, event.deliver_at) == (pulled.world.now, None)


# -- with a batch, and waiting -------------------------------------------------------------------------


def test_leaving_a_batch_commits_it_and_an_error_gives_it_back(pulled: Pulled) -> None:
    pulled.group()
    written = pulled.world.write_many(5)
    consumer = pulled.consumer()
    with pytest.raises(ZeroDivisionError), consumer.poll() as batch:
        raise ZeroDivisionError
    with consumer.poll() as batch:
        assert seqs(batch) == written
        assert {batch.attempts(event) for event in batch} == {1}, "no attempt was counted"
    assert pulled.at().lag().events == 0
    with consumer.poll() as batch:
        assert not batch


def test_a_batch_that_was_committed_inside_stays_as_it_was_committed(pulled: Pulled) -> None:
    pulled.group(ordered=False)
    pulled.world.write_many(5)
    consumer = pulled.consumer()
    with consumer.poll() as batch:
        consumer.commit(batch, failed={batch[0]: "no"})
    assert (pulled.at().lag().events, pulled.at().lag().parked) == (1, 1)


@dataclass
class Happened:
    n: int


def test_payloads_are_read_into_the_model(pulled: Pulled) -> None:
    pulled.group()
    pulled.world.write(happened(7))
    with pulled.at().consumer(model=Happened).poll() as batch:
        assert [event.payload for event in batch] == [Happened(7)]
