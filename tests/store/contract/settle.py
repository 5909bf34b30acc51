"""Outcomes: done is gone, retry comes back when due, dead waits for a decision; and the eventual clean-up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relaybox.event import Event
from relaybox.store.claims import Death, RetryRow
from relaybox.store.events import Search
from relaybox.store.outbox.values import Settlement
from relaybox.values import ALL, StoredEvent, Where

from .harness import LEASE, MICROSECOND, SECOND, T0, Harness, some_events


class SettleContract(Harness):
    async def letters(self, where: Where = ALL, after: int = 0, limit: int = 100) -> list[StoredEvent]:
        return (await self.run(self.store.events("dead", Search(where, after=after), limit))).events

    async def test_one_batch_of_all_outcomes(self) -> None:
        seqs = await self.write(*some_events(9))
        taken = await self.take()
        settlement = Settlement(
            done=taken.held[6:][::-1],
            retry=[RetryRow(h.seq, h.token, SECOND * 2, f"r{h.seq}") for h in taken.held[:3][::-1]],
            dead=[Death(h.seq, h.token, f"d{h.seq}") for h in taken.held[3:6][::-1]],
        )
        assert await self.run(self.store.settle(settlement, T0)) == 0
        assert await self.run(self.store.settle(settlement, T0)) == 9
        status = await self.run(self.store.status(T0))
        assert (status.due, status.delayed, status.claimed, status.retrying, status.dead) == (0, 3, 0, 3, 3)
        assert [(letter.event.seq, letter.error) for letter in await self.letters()] == [
            (seq, f"d{seq}") for seq in seqs[3:6]
        ]
        assert (await self.take(now=T0 + LEASE)).seqs == seqs[:3]

    async def test_a_retry_is_due_after_its_delay(self) -> None:
        seqs = await self.write(*some_events(2))
        taken = await self.take()
        delays = [timedelta(seconds=1.5), timedelta(days=3, microseconds=1)]
        retry = [RetryRow(h.seq, h.token, d, "bad") for h, d in zip(taken.held, delays, strict=True)]
        assert await self.run(self.store.settle(Settlement(retry=retry), T0)) == 0
        for seq, delay in zip(seqs, delays, strict=True):
            assert (await self.take(now=T0 + delay - MICROSECOND)).rows == []
            again = await self.take(now=T0 + delay, lease=timedelta(days=9))
            assert (again.seqs, again.attempts) == ([seq], [2])

    @pytest.mark.parametrize("outcome", ["retry", "dead"])
    async def test_error_text_is_cut_and_made_storable(self, outcome: str) -> None:
        [seq] = await self.write(*some_events(1))
        taken = await self.take()
        error = "🎉\x00\ud800'%s" + "x" * 5_000
        if outcome == "retry":
            await self.run(self.store.settle(Settlement(retry=taken.retries(SECOND, error)), T0))
            taken = await self.take(now=T0 + SECOND)
            assert taken.seqs == [seq]
            await self.run(self.store.settle(Settlement(retry=taken.retries(SECOND, error)), T0 + SECOND))
            [[(stored,)]] = await self.run(self.raw(f"SELECT last_error FROM {self.named('pending')}"))
        else:
            await self.die(taken, error)
            [letter] = await self.letters()
            assert letter.error is not None
            stored = letter.error
        assert len(stored) == 4_000
        assert stored.startswith("🎉")
        assert stored[3:9] == "'%sxxx"

    async def test_a_dead_letter_carries_event_reason_and_time(self) -> None:
        event = Event("Broken", {"n": 1}, key="k", tenant="acme", headers={"a": "b"}, id="the-id")
        await self.write(event)
        await self.die(await self.take(), now=T0 + SECOND)
        [letter] = await self.letters()
        assert (letter.event.id, letter.event.payload, letter.event.headers) == ("the-id", {"n": 1}, {"a": "b"})
        assert (letter.attempts, letter.error, letter.ended_at) == (1, "hopeless", T0 + SECOND)
        assert letter.ended_at is not None
        assert letter.ended_at.tzinfo is UTC
        assert await self.run(self.store.numbers_of(["the-id", "nobody"], None)) == [letter.event.seq]
        assert (await self.take(now=T0 + timedelta(days=999))).rows == []

    async def test_dead_letters_are_filtered_counted_and_paged(self) -> None:
        events = [
            Event("A", None, key="1", aggregate_type="Order", tenant="x"),
            Event("A", None, key="2", aggregate_type="Order", tenant="y"),
            Event("B", None, key="1", tenant="x"),
            Event("B", None),
        ]
        await self.write(*events)
        await self.die(await self.take())
        for where, expected in (
            (ALL, [0, 1, 2, 3]),
            (Where(type="A"), [0, 1]),
            (Where(type="a"), []),
            (Where(aggregate_type="Order"), [0, 1]),
            (Where(aggregate_type="__GLOBAL__"), [2, 3]),
            (Where(key="1"), [0, 2]),
            (Where(tenant="x"), [0, 2]),
            (Where(type="B", key="1", tenant="x"), [2]),
            (Where(tenant="'; --%s"), []),
        ):
            assert [letter.event.id for letter in await self.letters(where)] == [events[n].id for n in expected]
            assert await self.run(self.store.count_events("dead", Search(where))) == len(expected)
        [first, second] = await self.letters(limit=2)
        rest = await self.letters(after=second.event.seq or 0)
        assert [letter.event.id for letter in (first, second, *rest)] == [event.id for event in events]

    async def test_replay_starts_afresh_and_keeps_the_reason(self) -> None:
        seqs = await self.write(*some_events(3))
        taken = await self.take()
        await self.die(taken, "first reason")
        newest, cutoff = await self.run(self.store.newest(T0))
        assert (newest, cutoff) == (seqs[-1], T0)
        at = T0 + SECOND
        assert await self.run(self.store.replay("dead", [seqs[1], seqs[0], 999_999], cutoff, at)) == 2
        assert await self.run(self.store.replay("dead", seqs[:2], cutoff, at)) == 0
        [[*errors]] = await self.run(self.raw(f"SELECT last_error FROM {self.named('pending')}"))
        assert [row[0] for row in errors] == ["first reason"] * 2
        assert await self.run(self.store.count_events("dead", Search(ALL))) == 1
        assert await self.run(self.store.settle(Settlement(done=taken.held[:2]), at)) == 2, "the old token is gone"
        again = await self.take(now=at)
        assert (again.seqs, again.attempts) == (seqs[:2], [1, 1])

    async def test_replay_leaves_what_died_after_the_cutoff(self) -> None:
        seqs = await self.write(*some_events(2))
        taken = await self.take()
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[:1]), T0))
        _, cutoff = await self.run(self.store.newest(T0))
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[1:]), T0 + MICROSECOND))
        assert await self.run(self.store.replay("dead", seqs, cutoff, T0 + SECOND)) == 1
        assert [letter.event.seq for letter in await self.letters()] == seqs[1:]

    async def test_no_events_no_newest(self) -> None:
        newest, cutoff = await self.run(self.store.newest(T0))
        assert (newest, cutoff, cutoff.tzinfo) == (0, T0, UTC)
        assert await self.run(self.store.replay("dead", [], T0, T0)) == 0

    async def test_purging_done_events_keeps_all_others(self) -> None:
        """Pending, dead and young ones stay; what is passed once is not looked at again."""
        seqs = await self.write(*some_events(6))
        taken = await self.take()
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[:1], done=taken.held[2:]), T0))
        young = await self.write(*some_events(1), now=T0 + timedelta(days=2))
        young_taken = await self.take(now=T0 + timedelta(days=2))
        done = [h for h in young_taken.held if h.seq in young]
        assert await self.run(self.store.settle(Settlement(done=done), T0)) == 0
        before = T0 + timedelta(days=1)
        one = await self.run(self.store.purge_done(before, 0, 3))
        assert one == (3, seqs[2], 1)
        two = await self.run(self.store.purge_done(before, one.last, 100))
        assert two == (3, seqs[5], 3)
        three = await self.run(self.store.purge_done(before, two.last, 100))
        assert three == (0, seqs[5], 0)
        [[*left]] = await self.run(self.raw(f"SELECT seq FROM {self.named('event')} ORDER BY seq"))
        assert [row[0] for row in left] == [seqs[0], seqs[1], *young]

    async def test_a_delayed_event_is_old_from_its_delivery_on(self) -> None:
        await self.write(Event("Later", None, deliver_at=T0 + timedelta(days=2)))
        taken = await self.take(now=T0 + timedelta(days=2))
        await self.run(self.store.settle(Settlement(done=taken.held), T0 + timedelta(days=2)))
        assert (await self.run(self.store.purge_done(T0 + timedelta(days=1), 0, 10))).gone == 0
        assert (await self.run(self.store.purge_done(T0 + timedelta(days=3), 0, 10))).gone == 1

    async def test_purging_dead_letters_takes_old_ones_only(self) -> None:
        await self.write(*some_events(4))
        taken = await self.take()
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[:3]), T0))
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[3:]), T0 + SECOND))
        assert await self.run(self.store.purge_dead(T0 + SECOND, 2)) == 2
        assert await self.run(self.store.purge_dead(T0 + SECOND, 2)) == 1
        assert await self.run(self.store.purge_dead(T0 + SECOND, 2)) == 0
        assert [letter.event.seq for letter in await self.letters()] == taken.seqs[3:]
        assert await self.run(self.store.stored(taken.ids)) == set(taken.ids[3:])

    async def test_purging_by_age_takes_all_states(self) -> None:
        old = some_events(4)
        await self.write(*old)
        taken = await self.take(3)
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[:1], done=taken.held[1:2]), T0))
        await self.write(Event("Young", None, id="young"), now=T0 + SECOND)
        assert await self.run(self.store.purge_age(T0 + SECOND, 3)) == 3
        assert await self.run(self.store.purge_age(T0 + SECOND, 3)) == 1
        assert await self.run(self.store.stored([e.id for e in old] + ["young"])) == {"young"}
        status = await self.run(self.store.status(T0 + LEASE))
        assert (status.due, status.claimed, status.dead) == (1, 0, 0)

    async def test_status_counts_each_state(self) -> None:
        empty = await self.run(self.store.status(T0))
        assert (empty.due, empty.delayed, empty.claimed, empty.retrying, empty.dead) == (0, 0, 0, 0, 0)
        assert empty.oldest_due == timedelta(0)
        await self.write(*some_events(6))
        taken = await self.take(4)
        await self.run(self.store.settle(Settlement(dead=taken.deaths()[:1], retry=taken.retries()[1:3]), T0))
        await self.write(Event("Later", None, deliver_at=T0 + timedelta(days=1)))
        status = await self.run(self.store.status(T0 + SECOND / 2))
        assert (status.due, status.delayed, status.claimed, status.retrying, status.dead) == (2, 3, 1, 2, 1)
        assert status.oldest_due == SECOND / 2
        assert status.events == 7

    async def test_a_look_at_what_waits_claims_nothing(self) -> None:
        first = await self.write(*some_events(300), copy=await self.db.copies())
        await self.write(Event("Later", None, deliver_at=T0 + timedelta(days=1)))
        last = await self.write(*some_events(2))
        for limit, expected in ((5, first[:5]), (999, [*first, *last])):
            rows = await self.run(self.store.waiting(limit, T0), tx=False)
            assert [Event.stored(row).seq for row in rows] == expected
        while (await self.take()).rows:
            pass
        assert await self.run(self.store.waiting(9, T0), tx=False) == []

    async def test_the_view_shows_the_classic_status(self) -> None:
        """0 NEW, 1 DONE, 2 RETRY, 3 DEAD, for people and tools."""
        await self.write(*some_events(4))
        taken = await self.take(3)
        settlement = Settlement(done=taken.held[:1], retry=taken.retries()[1:2], dead=taken.deaths()[2:])
        await self.run(self.store.settle(settlement, T0))
        [[*rows]] = await self.run(self.raw(f"SELECT status FROM {self.named('status')} ORDER BY seq"))
        assert [int(row[0]) for row in rows] == [1, 2, 3, 0]

    async def test_times_before_1970_and_far_ahead_survive(self) -> None:
        early, far = datetime(1969, 7, 20, 20, 17, tzinfo=UTC), datetime(2900, 1, 1, tzinfo=UTC)
        await self.write(Event("Moon", None, occurred_at=early), Event("Far", None, occurred_at=far))
        assert [event.occurred_at for event in (await self.take()).events] == [early, far]
