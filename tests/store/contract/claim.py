"""Claims: each row to one holder at a time, the longest-due first, and free again when the lease ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from relaybox.event import Event
from relaybox.ids import new_token
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.outbox.values import Settlement

from .harness import LEASE, MICROSECOND, SECOND, T0, Harness, Runner, some_events


class ClaimContract(Harness):
    async def test_no_event_is_claimed_before_its_time(self) -> None:
        [now, soon] = [Event("Now", None), Event("Soon", None, deliver_at=T0 + SECOND)]
        await self.write(now, soon)
        assert (await self.take()).ids == [now.id]
        assert (await self.take(now=T0 + SECOND - MICROSECOND)).ids == []
        assert (await self.take(now=T0 + SECOND)).ids == [soon.id]

    async def test_the_longest_due_go_first_and_come_sorted(self) -> None:
        late = [Event("Late", None, deliver_at=T0 + timedelta(seconds=n)) for n in (3, 2, 1)]
        await self.write(*late)
        await self.write(*some_events(2), now=T0 + timedelta(seconds=9))
        taken = await self.take(2, now=T0 + timedelta(minutes=1))
        assert set(taken.ids) == {late[2].id, late[1].id}
        assert taken.seqs == sorted(taken.seqs)

    @pytest.mark.parametrize("limit", [1, 7])
    async def test_never_more_than_the_limit(self, limit: int) -> None:
        await self.write(*some_events(20))
        seen: list[int] = []
        while taken := (await self.take(limit)).seqs:
            assert len(taken) <= limit
            seen += taken
        assert len(seen) == len(set(seen)) == 20

    async def test_claiming_counts_the_attempt(self) -> None:
        """So an event that kills its worker still reaches the dead letters."""
        await self.write(*some_events(2))
        for attempt in (1, 2, 3):
            taken = await self.take(now=T0 + attempt * LEASE)
            assert taken.attempts == [attempt, attempt]

    async def test_two_claimers_never_share_a_row(self) -> None:
        await self.write(*some_events(240))
        runners = [self.db, self.another(), self.another()]

        async def drain(db: Runner, owner: int) -> list[int]:
            mine: list[int] = []
            while taken := (await self.take(7, owner=owner, db=db)).seqs:
                mine += taken
            return mine

        shares = await asyncio.gather(*(drain(db, n) for n, db in enumerate(runners, 1)))
        every = [seq for share in shares for seq in share]
        assert len(every) == len(set(every)) == 240

    async def test_a_claim_is_exclusive_until_its_lease_ends(self) -> None:
        await self.write(*some_events(3))
        first = await self.take(owner=1)
        assert (await self.take(owner=2, now=T0 + LEASE - MICROSECOND)).rows == []
        second = await self.take(owner=2, now=T0 + LEASE)
        assert second.seqs == first.seqs
        assert await self.run(self.store.verify(first.held)) == set()
        assert await self.run(self.store.verify(second.held)) == set(second.seqs)

    async def test_a_stale_token_changes_nothing(self) -> None:
        """The fence: after a take-over, nothing the former holder says about the row counts."""
        await self.write(*some_events(5))
        stale = await self.take(owner=1)
        fresh = await self.take(owner=2, now=T0 + LEASE)
        at = T0 + LEASE
        assert await self.run(self.store.renew(stale.held, LEASE * 9, at)) == set()
        assert await self.run(self.store.release(stale.held, at)) == 0
        for settlement in (
            Settlement(done=stale.held),
            Settlement(retry=stale.retries()),
            Settlement(dead=stale.deaths()),
            Settlement(done=stale.held, ordered=True),
            Settlement(retry=stale.retries(), hold=stale.held, ordered=True),
            Settlement(dead=stale.deaths(), park=stale.held, ordered=True),
        ):
            assert await self.run(self.store.settle(settlement, at)) == 5
        assert await self.run(self.store.blocked(10, None)) == []
        assert await self.run(self.store.verify(fresh.held)) == set(fresh.seqs)
        assert (await self.take(owner=3, now=at)).rows == []
        assert await self.run(self.store.settle(Settlement(done=fresh.held), at)) == 0
        assert (await self.run(self.store.status(at))).dead == 0

    async def test_a_made_up_token_or_row_changes_nothing(self) -> None:
        await self.write(*some_events(1))
        taken = await self.take()
        wrong = [HeldRow(taken.seqs[0], new_token()), HeldRow(taken.seqs[0] + 999, taken.claim.token)]
        assert await self.run(self.store.verify(wrong)) == set()
        assert await self.run(self.store.renew(wrong, LEASE, T0)) == set()
        settlement = Settlement(
            done=wrong,
            retry=[RetryRow(h.seq, h.token, SECOND, "x") for h in wrong],
            dead=[Death(h.seq, h.token, "x") for h in wrong],
        )
        assert await self.run(self.store.settle(settlement, T0)) == 6
        assert await self.run(self.store.verify(taken.held)) == set(taken.seqs)

    async def test_an_unclaimed_row_cannot_be_settled(self) -> None:
        [seq] = await self.write(*some_events(1))
        taken = await self.take()
        await self.run(self.store.release(taken.held, T0))
        assert await self.run(self.store.settle(Settlement(done=taken.held), T0)) == 1
        assert (await self.take()).seqs == [seq]

    async def test_renewing_keeps_the_claim(self) -> None:
        await self.write(*some_events(2))
        taken = await self.take()
        assert await self.run(self.store.renew(taken.held, LEASE, T0 + LEASE / 2)) == set(taken.seqs)
        assert (await self.take(owner=2, now=T0 + LEASE)).seqs == []
        assert (await self.take(owner=2, now=T0 + LEASE * 1.5)).seqs == taken.seqs

    async def test_releasing_gives_the_attempt_back(self) -> None:
        await self.write(*some_events(3))
        taken = await self.take()
        assert await self.run(self.store.release(taken.held[:2], T0 + SECOND)) == 2
        again = await self.take(owner=2, now=T0 + SECOND)
        assert (again.seqs, again.attempts) == (taken.seqs[:2], [1, 1])

    async def test_nothing_held_is_nothing_to_do(self) -> None:
        assert await self.run(self.store.verify([])) == set()
        assert await self.run(self.store.renew([], LEASE, T0)) == set()
        assert await self.run(self.store.release([], T0)) == 0
        assert await self.run(self.store.settle(Settlement(), T0)) == 0

    async def test_a_row_whose_event_was_deleted_can_still_be_settled(self) -> None:
        """Somebody cleaned the wide table by hand: the row must not come back for ever."""
        await self.write(*some_events(2))
        await self.run(self.raw(f"DELETE FROM {self.named('event')}"))
        taken = await self.take()
        assert taken.ids == [None, None]
        assert await self.run(self.store.settle(Settlement(done=taken.held), T0)) == 0
        assert (await self.take(now=T0 + LEASE)).rows == []

    async def test_how_long_the_oldest_has_waited_and_when_the_next_is_due(self) -> None:
        assert await self.run(self.store.oldest(T0)) == timedelta(0)
        assert await self.run(self.store.next_due(T0)) is None
        await self.write(Event("Later", None, deliver_at=T0 + timedelta(seconds=90)))
        assert await self.run(self.store.oldest(T0)) == timedelta(0)
        assert await self.run(self.store.next_due(T0)) == timedelta(seconds=90)
        later = T0 + timedelta(seconds=100)
        assert await self.run(self.store.oldest(later)) == timedelta(seconds=10)
        due = await self.run(self.store.next_due(later))
        assert due is not None
        assert due <= timedelta(0)

    async def test_the_age_counts_until_an_event_is_settled(self) -> None:
        """Claimed, renewed, given back, claimed again: it waits all the time."""

        async def ages(seconds: int) -> tuple[float, float]:
            now = T0 + SECOND * seconds
            oldest = await self.run(self.store.oldest(now))
            return oldest.total_seconds(), (await self.run(self.store.status(now))).oldest_due.total_seconds()

        await self.write(*some_events(2))
        await self.write(Event("Later", None, deliver_at=T0 + SECOND * 12))
        taken = await self.take(now=T0 + SECOND * 3)
        assert await ages(4) == (4, 4)
        await self.run(self.store.renew(taken.held, LEASE, T0 + SECOND * 5))
        assert await ages(6) == (6, 6)
        await self.run(self.store.release(taken.held, T0 + SECOND * 7))
        assert await ages(8) == (8, 8)
        taken = await self.take(now=T0 + SECOND * 9)
        assert await ages(10) == (10, 10)
        await self.run(self.store.settle(Settlement(done=taken.held[:1], retry=taken.retries(SECOND * 9)[1:]), T0))
        assert await ages(11) == (2, 2), "a retry counts from its own time"
        later = await self.take(1, now=T0 + SECOND * 18)
        assert await ages(19) == (10, 10)
        assert await self.run(self.store.settle(Settlement(done=later.held), T0)) == 0

    async def test_the_age_of_what_its_writer_claims_counts(self) -> None:
        [seq] = await self.write(*some_events(1), claim=Claim(1, token := new_token(), LEASE))
        assert await self.run(self.store.oldest(T0 + SECOND)) == SECOND
        assert (await self.run(self.store.status(T0 + SECOND))).oldest_due == SECOND
        assert await self.run(self.store.settle(Settlement(done=[HeldRow(seq, token)]), T0)) == 0
        assert await self.run(self.store.oldest(T0 + SECOND)) == timedelta(0)

    async def test_the_database_clock_decides_when_no_time_is_given(self) -> None:
        await self.run(self.store.write([Event("Now", None)], None, None))
        await self.run(self.store.write([Event("Later", None, deliver_at=T0.replace(year=2999))], None, None))
        tx = not self.store.capabilities.single_statement
        claim = Claim(1, new_token(), LEASE)
        rows = await self.run(self.store.claim(claim, 10, None), tx=tx)
        assert [claimed.row[2] for claimed in rows] == ["Now"]
        assert await self.run(self.store.claim(Claim(2, new_token(), LEASE), 10, None), tx=tx) == []
